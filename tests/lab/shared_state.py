"""What the tests' shared cluster is like: everything that a file of tests could leave changed for the next one.

It is read in this process, from netlink and /proc. Left out is what the kernel changes by itself or forgets in time:
entries of conntrack, connections of IPVS, neighbours, learned MTUs.
"""

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

from kroute.kernel.ipset import CMD_LIST, FLAG_LIST_SETNAME, encode_list_flags, parse_name, set_message
from kroute.kernel.netlink.message import HEADER_SIZE, attributes, to_text
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER
from kroute.kernel.socket_options import ask
from tests.lab.cluster import Node
from tests.lab.firewall import has_legacy
from tests.lab.hosts import Host
from tests.lab.namespaces import Namespace
from tests.lab.rtnetlink_state import dump, network_state, open_netlink

State = dict[str, list[str]]
"""Lines of text, by the kind of what they say."""

_SYSCTLS = ("net/ipv4", "net/ipv6")
_SYSCTLS_OF_NODES = ("net/ipv4/conf/all", "net/ipv4/vs", "net/ipv6/conf/all", "net/netfilter", "net/bridge")
_CHANGES_BY_ITSELF = frozenset({"nf_conntrack_count"})
_LISTEN, _UNCONNECTED, _SCTP_LISTENING = "0A", "07", "10"
_NFT_GETTABLE, _NFT_GETCHAIN, _NFT_GETRULE = 10 << 8 | 1, 10 << 8 | 4, 10 << 8 | 7
_NFTA_TABLE, _NFTA_CHAIN_HOOK = 1, 4
"""The name of a table, in itself, its chains and its rules; where packets meet a chain that belongs to no rule."""
_OF_IPTABLES = frozenset({"filter", "nat", "mangle", "raw", "security"})
"""The tables that iptables-nft makes for a first rule, and leaves behind the last one."""
_IPSET_LIST = 6 << 8 | CMD_LIST
_GENERIC_HEADER = struct.Struct("=BBH")
"""struct nfgenmsg: family, version, resource."""
_ALL = _GENERIC_HEADER.pack(0, 0, 0)
_GET_INFO, _INFO = 64, struct.Struct("=32s13I")
"""IPT_SO_GET_INFO, IP6T_SO_GET_INFO and struct ipt_getinfo: the table's name, a bit for each hook, …, entries, size."""


def server_state(host: Host) -> State:
    """Return what a host is like whose sysctls nobody sets."""
    return {**network_state(host.namespace), "sockets": sorted(_sockets(host.namespace))}


def client_state(host: Host) -> State:
    """Return what a host is like from which tests call."""
    return {**server_state(host), "sysctls": sorted(_sysctls(host.namespace, *_SYSCTLS))}


def node_state(node: Node) -> State:
    """Return what a node is like while no agent runs on it."""
    return {
        **server_state(node),
        "virtual servers": _virtual_servers(node.namespace),
        "firewall": sorted([*_nft_tables(node.namespace), *(_legacy(node.namespace) if has_legacy() else ())]),
        "sysctls": sorted(_sysctls(node.namespace, *_SYSCTLS, *_SYSCTLS_OF_NODES)),
        "files": sorted(str(path.relative_to(node.state_dir)) for path in node.state_dir.rglob("*")),
    }


def _virtual_servers(namespace: Namespace) -> list[str]:
    try:
        return namespace.read("/proc/net/ip_vs").splitlines()[3:]
    except FileNotFoundError:  # its module has not been loaded yet
        return []


def _sockets(namespace: Namespace) -> Iterator[str]:
    """Yield the sockets that wait for whoever calls."""
    for protocol, state in (("tcp", _LISTEN), ("tcp6", _LISTEN), ("udp", _UNCONNECTED), ("udp6", _UNCONNECTED)):
        for line in namespace.read(f"/proc/net/{protocol}").splitlines()[1:]:
            _, local, remote, now, *_ = line.split()
            if now == state and remote.endswith(":0000"):
                yield f"{protocol} {_endpoint(local)}"
    for line in namespace.read("/proc/net/sctp/eps").splitlines()[1:]:
        _, _, _, now, _, port, *_ = line.split()
        if now == _SCTP_LISTENING:
            yield f"sctp {port}"


def _endpoint(text: str) -> str:
    """Turn `0100007F:1F90`, whose words are in the host's byte order, into 127.0.0.1:8080."""
    words, port = text.split(":")
    numbers = [int(words[at : at + 8], 16) for at in range(0, len(words), 8)]
    return f"{ipaddress.ip_address(struct.pack(f'={len(numbers)}I', *numbers))}:{int(port, 16)}"


def _nft_tables(namespace: Namespace) -> list[str]:
    with open_netlink(namespace, NETLINK_NETFILTER) as netlink:
        try:
            tables, chains, rules = (
                [(content[0], attributes(content, _GENERIC_HEADER.size)) for content in dump(netlink, kind, _ALL)]
                for kind in (_NFT_GETTABLE, _NFT_GETCHAIN, _NFT_GETRULE)
            )
        except OSError:  # this kernel has no nf_tables
            return []
    own_chains = [(family, found) for family, found in chains if _NFTA_CHAIN_HOOK not in found]
    in_use = {(family, to_text(found[_NFTA_TABLE])) for family, found in rules + own_chains}
    names = [(family, to_text(found[_NFTA_TABLE])) for family, found in tables]
    return [f"nft table of family {it[0]}: {it[1]}" for it in names if it[1] not in _OF_IPTABLES or it in in_use]


def _legacy(namespace: Namespace) -> Iterator[str]:
    """Yield the tables of iptables-legacy that have more than their built-in chains, and the sets of ipset."""
    for family, level, names in (
        (socket.AF_INET, socket.IPPROTO_IP, "/proc/net/ip_tables_names"),
        (socket.AF_INET6, socket.IPPROTO_IPV6, "/proc/net/ip6_tables_names"),
    ):
        for table in namespace.read(names).split():
            with namespace.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
                answer = ask(raw, level, _GET_INFO, table.encode().ljust(_INFO.size, b"\0"))
            _, hooks, *_, entries, _ = _INFO.unpack(answer)
            if more := entries - hooks.bit_count() - 1:  # a policy for each, and the entry behind the last chain
                yield f"{names.rpartition('/')[2].partition('_')[0]}, table {table}: {more} rules and chains"
    request = set_message(CMD_LIST, 0, encode_list_flags(FLAG_LIST_SETNAME))[HEADER_SIZE:]
    with open_netlink(namespace, NETLINK_NETFILTER) as netlink:
        yield from (f"set {parse_name(it)}" for it in dump(netlink, _IPSET_LIST, request))


def _sysctls(namespace: Namespace, *directories: str) -> Iterator[str]:
    with namespace.inside():
        for directory in directories:
            with contextlib.suppress(FileNotFoundError), os.scandir(f"/proc/sys/{directory}") as entries:
                for entry in entries:
                    if entry.name not in _CHANGES_BY_ITSELF and entry.is_file():
                        with contextlib.suppress(OSError):  # some cannot be read
                            yield f"{directory}/{entry.name} = {_content(entry.path)}"


def _content(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096).decode().strip()
    finally:
        os.close(descriptor)
