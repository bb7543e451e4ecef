"""The kernel's structures as kroute packs them, and its numbers, against its headers and this machine's C compiler.

What a compiler for another architecture says of them, the same tests say when they run there (`make arm64`).
"""

import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import kroute
from kroute.checks import neighbours, running_proxies
from kroute.kernel import inotify, packet_log
from kroute.kernel.iptables import nft_rules, table_digest
from kroute.kernel.ipvs import messages as ipvs
from kroute.kernel.ipvs import outlines
from kroute.kernel.net import addresses, next_hops
from kroute.kernel.netlink import batch, message, netlink_socket, rtnetlink, socket_diag, socket_filter
from kroute.kernel.netlink.client import GENERIC_HEADER
from kroute.kernel.pods import namespaces
from kroute.runtime import namespace_lock
from tests.unit.each import assert_each

HEADERS = (
    "stddef.h",
    "sched.h",
    "sys/socket.h",
    "linux/fib_rules.h",
    "linux/filter.h",
    "linux/genetlink.h",
    "linux/if.h",
    "linux/if_addr.h",
    "linux/inet_diag.h",
    "linux/inotify.h",
    "linux/ip_vs.h",
    "linux/netfilter/nfnetlink.h",
    "linux/netfilter/nfnetlink_log.h",
    "linux/netfilter/x_tables.h",
    "linux/netfilter/xt_connmark.h",
    "linux/netfilter/xt_ipvs.h",
    "linux/netfilter/xt_mark.h",
    "linux/netfilter/xt_sctp.h",
    "linux/netfilter/xt_set.h",
    "linux/netfilter/xt_tcpudp.h",
    "linux/netfilter_ipv4/ip_tables.h",
    "linux/netfilter_ipv6/ip6_tables.h",
    "linux/netlink.h",
    "linux/nsfs.h",
    "linux/rtnetlink.h",
    "linux/sock_diag.h",
    "linux/sockios.h",
)


LAST = "..."


class Packed(NamedTuple):
    """A structure, or a part of it, and what kroute packs and unpacks it with.

    `members` has the member of each value; two dots follow the first of several that are one value for kroute. The
    format begins with the structure or with the member `begin`, and ends with the structure, before the member `end`,
    or, with LAST, after its last value.
    """

    structure: str
    format: struct.Struct
    members: str
    end: str = ""
    begin: str = ""


_ENTRY_HEADER = struct.Struct("=H29sB")
"""That of `kroute/kernel/iptables/table.py`, which loads libraries of iptables when it is imported."""
_HOOKS = (
    " ".join(("name valid_hooks", *(f"{name}[{hook}]" for name in ("hook_entry", "underflow") for hook in range(5))))
    + " num_entries size"
)
PACKED = (
    Packed("nlmsghdr", message.HEADER, "nlmsg_len nlmsg_type nlmsg_flags nlmsg_seq nlmsg_pid"),
    Packed("nlmsghdr", netlink_socket._SENDER, "nlmsg_seq nlmsg_pid", begin="nlmsg_seq"),
    Packed("nlmsghdr", netlink_socket._SEQUENCE, "nlmsg_seq", LAST, "nlmsg_seq"),
    Packed("nlattr", message._ATTRIBUTE, "nla_len nla_type"),
    Packed("nlattr", ipvs._NEST, "nla_len nla_type"),
    Packed("nfgenmsg", message.NFNETLINK_HEADER, "nfgen_family version res_id"),
    Packed("nfulnl_msg_config_mode", packet_log._MODE, "copy_range copy_mode"),
    Packed("genlmsghdr", GENERIC_HEADER, "cmd version reserved"),
    Packed("ifinfomsg", rtnetlink.LINK_HEADER, "ifi_family ifi_type ifi_index ifi_flags ifi_change"),
    Packed("ifaddrmsg", rtnetlink.ADDRESS_HEADER, "ifa_family ifa_prefixlen ifa_flags ifa_scope ifa_index"),
    Packed(
        "rtmsg",
        rtnetlink.ROUTE_HEADER,
        "rtm_family rtm_dst_len rtm_src_len rtm_tos rtm_table rtm_protocol rtm_scope rtm_type rtm_flags",
    ),
    Packed("fib_rule_hdr", rtnetlink.ROUTE_HEADER, "family dst_len src_len tos table res1 res2 action flags"),
    Packed("ifreq", rtnetlink._INTERFACE_REQUEST, "ifr_name ifr_ifindex"),
    Packed("ifreq", running_proxies._INTERFACE_FLAGS, "ifr_name ifr_flags", LAST),
    Packed("ifa_cacheinfo", addresses._CACHE_INFO, "ifa_prefered ifa_valid cstamp tstamp"),
    Packed("rtnexthop", next_hops._NEXT_HOP, "rtnh_len rtnh_flags rtnh_hops rtnh_ifindex"),
    Packed("rtvia", next_hops._VIA_FAMILY, "rtvia_family", "rtvia_addr"),
    Packed("inet_diag_req_v2", socket_diag._QUESTION, "sdiag_family sdiag_protocol idiag_ext pad idiag_states", "id"),
    Packed("inet_diag_sockid", socket_diag._ID, "idiag_sport idiag_dport idiag_src idiag_dst", "idiag_if"),
    Packed("inet_diag_sockid", struct.Struct("=III"), "idiag_if idiag_cookie[0] idiag_cookie[1]", begin="idiag_if"),
    Packed(
        "inet_diag_msg",
        socket_diag._ANSWER,
        "idiag_family idiag_state idiag_timer idiag_retrans id"
        " idiag_expires idiag_rqueue idiag_wqueue idiag_uid idiag_inode",
    ),
    Packed("sock_filter", socket_filter._INSTRUCTION, "code jt jf k"),
    Packed("sock_fprog", socket_filter._PROGRAM, "len filter"),
    Packed("ucred", namespace_lock._CREDENTIALS, "pid uid gid"),
    Packed("inotify_event", inotify._HEADER, "wd mask cookie len", "name"),
    Packed("ip_vs_flags", ipvs._FLAGS, "flags mask"),
    Packed("ip_vs_getinfo", outlines._INFO, "version size num_services"),
    Packed("ip_vs_get_services", outlines._HEAD, "num_services", "entrytable"),
    Packed("ip_vs_service_entry", outlines._KEY, "protocol addr port", "fwmark"),
    Packed(
        "ip_vs_service_entry",
        outlines._REST,
        "fwmark sched_name flags timeout netmask num_dests",
        "stats",
        "fwmark",
    ),
    Packed("ip_vs_service_entry", outlines._OUTLINE, "protocol.. fwmark..", "stats"),
    Packed("ip_vs_get_dests", outlines._DESTS_HEAD, "protocol addr port fwmark num_dests", "entrytable"),
    Packed("ip_vs_dest_entry", outlines._DEST, "addr port conn_flags weight activeconns inactconns"),
    Packed("ipt_getinfo", table_digest._INFO, _HOOKS),
    Packed("ip6t_getinfo", table_digest._INFO, _HOOKS),
    Packed("ipt_get_entries", table_digest._LIST_HEADER, "name size", "entrytable"),
    Packed("ip6t_get_entries", table_digest._LIST_HEADER, "name size", "entrytable"),
    Packed("ipt_entry", table_digest._OFFSET, "target_offset", LAST, "target_offset"),
    Packed("ip6t_entry", table_digest._OFFSET, "next_offset", LAST, "next_offset"),
    Packed(
        "xt_error_target",
        table_digest._ERROR_TARGET,
        "target.u.user.target_size target.u.user.name target.u.user.revision errorname",
        LAST,
    ),
    Packed("xt_entry_match", _ENTRY_HEADER, "u.user.match_size u.user.name u.user.revision"),
    Packed("xt_entry_target", _ENTRY_HEADER, "u.user.target_size u.user.name u.user.revision"),
    Packed("xt_mark_tginfo2", neighbours._XT_MARK, "mark mask"),
    Packed("xt_mark_tginfo2", nft_rules._XT_MARK, "mark mask"),
    Packed("xt_mark_mtinfo1", neighbours._XT_MARK, "mark mask", LAST),
    Packed("xt_connmark_tginfo1", neighbours._XT_CONNMARK, "ctmark ctmask nfmask mode", LAST),
    Packed("xt_ipvs_mtinfo", nft_rules._XT_IPVS, "l4proto fwd_method invert bitmask", LAST),
    Packed("xt_set_info", nft_rules._XT_SET, "index dim flags"),
    Packed("xt_tcp", nft_rules._FIRST_AND_LAST, "spts[0] spts[1]", LAST),
)

ATTRIBUTES = {"=HHHH4s", "=HHHH16s", "=HHHHHH"}
"""Headers of attributes that hold each other, each a `struct nlattr`."""

NAMED = (
    (batch, "NFNL_MSG_BATCH_BEGIN NFNL_MSG_BATCH_END"),
    (inotify, "IN_CLOSE_WRITE IN_MOVED_FROM IN_MOVED_TO IN_CREATE IN_DELETE IN_DELETE_SELF IN_MOVE_SELF"),
    (inotify, "IN_Q_OVERFLOW IN_ONLYDIR"),
    (namespaces, "CLONE_NEWNET NS_GET_USERNS NS_GET_PARENT NS_GET_OWNER_UID"),
    (netlink_socket, "NETLINK_ROUTE NETLINK_NETFILTER NETLINK_GENERIC NETLINK_ADD_MEMBERSHIP NETLINK_CAP_ACK"),
    (netlink_socket, "NETLINK_GET_STRICT_CHK SOL_NETLINK SO_RCVBUFFORCE SO_SNDBUFFORCE"),
    (packet_log, "NFNL_SUBSYS_ULOG NFULNL_MSG_PACKET NFULNL_MSG_CONFIG NFULA_PAYLOAD NFULA_PREFIX"),
    (packet_log, "NFULA_CFG_CMD NFULA_CFG_MODE NFULNL_CFG_CMD_BIND NFULNL_COPY_PACKET"),
    (rtnetlink, "IFNAMSIZ SIOCGIFINDEX IFF_UP IFF_NOARP"),
    (running_proxies, "SIOCGIFFLAGS IFF_UP"),
    (socket_diag, "NETLINK_SOCK_DIAG"),
    (socket_filter, "SO_ATTACH_FILTER"),
)
"""Numbers that have the kernel's names."""
NUMBERS = (
    (outlines.GET_INFO, "IP_VS_SO_GET_INFO"),
    (outlines.GET_SERVICES, "IP_VS_SO_GET_SERVICES"),
    (outlines.GET_REAL_SERVERS, "IP_VS_SO_GET_DESTS"),
    (outlines._WORD * outlines._WORDS, "sizeof(struct ip_vs_service_entry)"),
    (outlines._WORD * outlines._OUTLINE_WORDS, "offsetof(struct ip_vs_service_entry, stats)"),
    (table_digest.GET_INFO, "IPT_SO_GET_INFO"),
    (table_digest.GET_ENTRIES, "IPT_SO_GET_ENTRIES"),
    (table_digest.GET_INFO, "IP6T_SO_GET_INFO"),
    (table_digest.GET_ENTRIES, "IP6T_SO_GET_ENTRIES"),
    (table_digest._COUNTERS_SIZE, "sizeof(struct xt_counters)"),
    (socket_filter.TYPE_AT, "offsetof(struct nlmsghdr, nlmsg_type)"),
    (socket_filter.PORT_AT, "offsetof(struct nlmsghdr, nlmsg_pid)"),
    (netlink_socket.FLAGS_OFFSET, "offsetof(struct nlmsghdr, nlmsg_flags)"),
    (netlink_socket.SEQUENCE_OFFSET, "offsetof(struct nlmsghdr, nlmsg_seq)"),
    *(
        (getattr(layout, member), f"offsetof(struct {entry}, {member})")
        for entry, layout in zip(("ipt_entry", "ip6t_entry"), table_digest._LAYOUTS.values(), strict=True)
        for member in ("target_offset", "next_offset", "counters")
    ),
    *(
        (at, f"offsetof(struct {structure}, {member})")
        for name, structure in (("tcp", "xt_tcp"), ("udp", "xt_udp"), ("sctp", "xt_sctp_info"))
        for at, member in zip(nft_rules._XT_PORTS[name], ("spts", "dpts", "invflags"), strict=True)
    ),
)
"""Other numbers, and what the headers say that they are."""


def test_every_structure_and_number_is_as_the_headers_of_this_architecture_say(tmp_path: Path) -> None:
    claims = [claim for row in PACKED for claim in claims_of(row)]
    claims += [(getattr(module, name), name) for module, names in NAMED for name in names.split()]
    source = tmp_path / "structures.c"
    source.write_text(
        "#define _GNU_SOURCE\n"
        + "".join(f"#include <{header}>\n" for header in HEADERS)
        + "".join(f'_Static_assert({text} == {value}, "{text} == {value}");\n' for value, text in (*claims, *NUMBERS))
    )
    compiled = subprocess.run(["gcc", "-fsyntax-only", source], capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr


def test_every_format_is_that_of_a_structure_of_a_packet_or_of_one_number() -> None:
    checked = ATTRIBUTES | {row.format.format for row in PACKED}

    def check(module: Path) -> None:
        used = re.findall(r'\bstruct\.\w+\("([^"]+)"', module.read_text())
        assert not [one for one in used if one[0] not in "!>" and one not in checked and len(values(one)) != 1]

    assert_each(sorted(Path(kroute.__file__).parent.rglob("*.py")), check)


def claims_of(row: Packed) -> Iterator[tuple[int, str]]:
    """What must hold for the structure: numbers, and what they are in C."""
    begin = f" - offsetof(struct {row.structure}, {row.begin})" if row.begin else ""
    last = ""
    for (offset, size), member in zip(values(row.format.format), row.members.split(), strict=True):
        last = member.removesuffix("..")
        yield offset, f"offsetof(struct {row.structure}, {last}){begin}"
        if last == member:
            yield size, f"sizeof(((struct {row.structure} *)0)->{member})"
    end = f"offsetof(struct {row.structure}, {row.end})" if row.end else f"sizeof(struct {row.structure})"
    if row.end == LAST:
        end = f"offsetof(struct {row.structure}, {last}) + sizeof(((struct {row.structure} *)0)->{last})"
    yield row.format.size, f"{end}{begin}"


def values(form: str) -> list[tuple[int, int]]:
    """Offset and size of each value of a format, in bytes."""
    order, before, found = (form[0], "", []) if form[0] in "@=<>!" else ("@", "", [])
    for count, kind in re.findall(r"(\d*)([a-zA-Z?])", form):
        times = 1 if kind in "sx" else int(count or 1)
        item = f"{count}{kind}" if kind in "sx" else kind
        for _ in range(times):
            before += item
            if kind != "x":
                size = struct.calcsize(order + item)
                found.append((struct.calcsize(order + before) - size, size))
        if times == 0:
            before += f"0{kind}"
    return found
