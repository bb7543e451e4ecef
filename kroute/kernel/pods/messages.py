"""rtnetlink messages for the end of a tunnel in a pod (include/uapi/linux/if_link.h, if_tunnel.h, fib_rules.h)."""

import socket
import struct
from typing import NamedTuple

from kroute.kernel.net.addresses import IFA_F_NODAD, IFA_F_NOPREFIXROUTE
from kroute.kernel.net.policy_routing import FR_ACT_TO_TBL, FRA_PRIORITY, FRA_PROTOCOL, FRA_SRC, FRA_TABLE
from kroute.kernel.net.steering import PROTOCOL, TABLE
from kroute.kernel.netlink.message import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    attribute,
    attributes,
    message,
    nested,
    pack_address,
    text,
    to_text,
    to_u32,
    u8,
    u32,
    unpack_address,
)
from kroute.kernel.netlink.rtnetlink import (
    ADDRESS_HEADER,
    IFA_ADDRESS,
    IFA_CACHEINFO,
    IFA_FLAGS,
    IFA_LOCAL,
    IFF_UP,
    IFLA_AF_SPEC,
    IFLA_IFNAME,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    LINK_HEADER,
    ROUTE_HEADER,
    RT_SCOPE_HOST,
    RTA_DST,
    RTA_GATEWAY,
    RTA_MULTIPATH,
    RTA_OIF,
    RTA_PRIORITY,
    RTA_TABLE,
    RTA_VIA,
    RTM_GETLINK,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTM_SETLINK,
    RTN_UNICAST,
)

IFLA_MTU, IFLA_IFALIAS, IFLA_GROUP, IFLA_INFO_DATA, IFLA_INET_CONF = 4, 20, 27, 2, 1
IFLA_IPTUN_LOCAL, IFLA_IPTUN_FLAGS, IFLA_IPTUN_PROTO = 2, 8, 9
IP6_TNL_F_IGN_ENCAP_LIMIT = 0x1
CONF_RP_FILTER, CONF_ARP_ANNOUNCE, CONF_ARP_IGNORE = 8, 18, 19
"""IPV4_DEVCONF_… of include/uapi/linux/ip.h. rtnetlink sets them for one link without a file below /proc/sys."""
RTA_METRICS, RTAX_ADVMSS = 8, 8
RT_TABLE_MAIN = 254
RTNH_F_ONLINK = 0x4

_NEVER_A_SOURCE = struct.pack("=IIII", 0, 0xFFFFFFFF, 0, 0)
"""struct ifa_cacheinfo: deprecated at once, valid for ever."""
_COPIED = (RTA_DST, RTA_GATEWAY, RTA_OIF, RTA_PRIORITY, RTA_MULTIPATH, RTA_VIA)


class TunnelKind(NamedTuple):
    """A kind of tunnel. `overhead` is the outer header, `headers` those of IP and TCP inside, in bytes."""

    link: str
    kind: str
    protocol: int
    overhead: int
    headers: int


KINDS: dict[int, TunnelKind] = {
    socket.AF_INET: TunnelKind("kroute-dsr4", "ipip", socket.IPPROTO_IPIP, 20, 40),
    socket.AF_INET6: TunnelKind("kroute-dsr6", "ip6tnl", socket.IPPROTO_IPV6, 40, 60),
}
"""The tunnel of each family, and the name of its link in pods."""


class PodLink(NamedTuple):
    """A link of a pod. `conf` are its IPv4 settings, by number; `local` the tunnel's own address.

    `group` is the number that its maker gave it.
    """

    ifindex: int
    name: str
    kind: str
    local: str
    alias: str
    is_up: bool
    mtu: int
    group: int
    conf: dict[int, int]


def encode_link_query(*, name: str = "", index: int = 0) -> bytes:
    return message(RTM_GETLINK, 0, LINK_HEADER.pack(0, 0, index, 0, 0) + (text(IFLA_IFNAME, name) if name else b""))


def parse_link(payload: bytes) -> PodLink:
    _family, _type, index, flags, _change = LINK_HEADER.unpack_from(payload)
    found = attributes(payload, LINK_HEADER.size)
    info = attributes(found.get(IFLA_LINKINFO, b""))
    tunnel = attributes(info.get(IFLA_INFO_DATA, b""))
    local = tunnel.get(IFLA_IPTUN_LOCAL, b"")
    inet = attributes(attributes(found.get(IFLA_AF_SPEC, b"")).get(socket.AF_INET, b""))
    values = inet.get(IFLA_INET_CONF, b"")
    return PodLink(
        index,
        to_text(found.get(IFLA_IFNAME, b"")),
        kind := to_text(info.get(IFLA_INFO_KIND, b"")),
        unpack_address(local) if kind in {"ipip", "ip6tnl"} and len(local) in {4, 16} else "",
        to_text(found.get(IFLA_IFALIAS, b"")),
        bool(flags & IFF_UP),
        to_u32(found[IFLA_MTU]) if IFLA_MTU in found else 0,
        to_u32(found[IFLA_GROUP]) if IFLA_GROUP in found else 0,
        {at + 1: int(value) for at, (value,) in enumerate(struct.iter_unpack("=I", values[: len(values) & ~3]))},
    )


def encode_create(kind: TunnelKind, local: str, group: int) -> bytes:
    """Make a tunnel that takes packets of any sender to this address. It is down, and sends nothing itself.

    Of what says who made it only the group is taken in this message; the alias is not.
    """
    tunnel = attribute(IFLA_IPTUN_LOCAL, pack_address(local)) + u8(IFLA_IPTUN_PROTO, kind.protocol)
    if kind.kind == "ip6tnl":
        tunnel += u32(IFLA_IPTUN_FLAGS, IP6_TNL_F_IGN_ENCAP_LIMIT)
    info = nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, kind.kind), nested(IFLA_INFO_DATA, tunnel))
    head = LINK_HEADER.pack(0, 0, 0, 0, 0)
    return message(
        RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, head + text(IFLA_IFNAME, kind.link) + u32(IFLA_GROUP, group) + info
    )


def encode_alias(index: int, alias: str) -> bytes:
    return message(RTM_SETLINK, 0, LINK_HEADER.pack(0, 0, index, 0, 0) + text(IFLA_IFALIAS, alias))


def encode_conf(index: int, number: int, value: int) -> bytes:
    """Set an IPv4 setting of one link."""
    conf = nested(IFLA_AF_SPEC, nested(socket.AF_INET, nested(IFLA_INET_CONF, u32(number, value))))
    return message(RTM_SETLINK, 0, LINK_HEADER.pack(0, 0, index, 0, 0) + conf)


def encode_vip(index: int, vip: str) -> bytes:
    """Add a VIP that is never the source of the pod's own calls: IPv4 by its scope, IPv6 as it is deprecated."""
    packed = pack_address(vip)
    length = len(packed) * 8
    if ":" in vip:
        body = ADDRESS_HEADER.pack(socket.AF_INET6, length, 0, 0, index) + attribute(IFA_LOCAL, packed)
        body += u32(IFA_FLAGS, IFA_F_NODAD | IFA_F_NOPREFIXROUTE) + attribute(IFA_CACHEINFO, _NEVER_A_SOURCE)
    else:
        body = ADDRESS_HEADER.pack(socket.AF_INET, length, 0, RT_SCOPE_HOST, index)
        body += attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed)
    return message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body)


def rule_from(vip: str) -> bytes:
    """The payload of the rule that sends a VIP's answers to TABLE."""
    packed = pack_address(vip)
    family = socket.AF_INET6 if ":" in vip else socket.AF_INET
    head = ROUTE_HEADER.pack(family, 0, len(packed) * 8, 0, 0, 0, 0, FR_ACT_TO_TBL, 0)
    return head + attribute(FRA_SRC, packed) + _rule_tail()


def _rule_tail() -> bytes:
    return u32(FRA_PRIORITY, TABLE) + u32(FRA_TABLE, TABLE) + u8(FRA_PROTOCOL, PROTOCOL)


def parse_own_rule(payload: bytes) -> str | None:
    """The VIP of a rule of ours; None for any other rule."""
    found = attributes(payload, ROUTE_HEADER.size)
    if to_u32(found.get(FRA_TABLE, bytes(4))) != TABLE or found.get(FRA_PROTOCOL) != bytes([PROTOCOL]):
        return None
    return unpack_address(found[FRA_SRC]) if FRA_SRC in found else ""


def copied_route(payload: bytes, advmss: int) -> bytes | None:
    """A unicast route of table main as TABLE has it, with the greatest segment to ask of clients; None for any other.

    A route of TABLE gives itself, so that both can be compared.
    """
    family, length, _, _, table, protocol, scope, kind, flags = ROUTE_HEADER.unpack_from(payload)
    found = attributes(payload, ROUTE_HEADER.size)
    table = to_u32(found[RTA_TABLE]) if RTA_TABLE in found else table
    is_ours = table == TABLE and protocol == PROTOCOL
    if kind != RTN_UNICAST or not (is_ours or table == RT_TABLE_MAIN) or not {RTA_OIF, RTA_MULTIPATH} & found.keys():
        return None
    if is_ours:
        metric = attributes(found.get(RTA_METRICS, b"")).get(RTAX_ADVMSS)
        advmss = to_u32(metric) if metric is not None else 0
    head = ROUTE_HEADER.pack(family, length, 0, 0, 0, PROTOCOL, scope, kind, flags & RTNH_F_ONLINK)
    kept = b"".join(attribute(it, found[it]) for it in _COPIED if it in found)
    return head + kept + u32(RTA_TABLE, TABLE) + nested(RTA_METRICS, u32(RTAX_ADVMSS, advmss))


def table_of(payload: bytes) -> int:
    found = attributes(payload, ROUTE_HEADER.size)
    return to_u32(found[RTA_TABLE]) if RTA_TABLE in found else int(payload[4])


def interface_of(payload: bytes) -> int:
    found = attributes(payload, ROUTE_HEADER.size)
    return to_u32(found[RTA_OIF]) if RTA_OIF in found else 0


def encode_new_route(payload: bytes) -> bytes:
    return message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, payload)
