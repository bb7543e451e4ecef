"""The links, addresses, routes and rules of a namespace as lines of text, read by rtnetlink in this process.

Four tools per namespace say more, and take a hundred times as long in a machine of the lab. Left out is what changes by
itself: counters, lifetimes, whether a peer is there.
"""

import re
import socket
import struct
from collections import defaultdict
from collections.abc import Iterator

from kroute.kernel.netlink.message import (
    NLM_F_DUMP,
    NLMSG_DONE,
    NLMSG_ERROR,
    attributes,
    iterate_messages,
    message,
    to_text,
    to_u32,
    unpack_address,
)
from kroute.kernel.netlink.rtnetlink import (
    ADDRESS_HEADER,
    IFA_ADDRESS,
    IFA_LOCAL,
    IFF_NOARP,
    IFF_UP,
    IFLA_AF_SPEC,
    IFLA_IFNAME,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    LINK_HEADER,
    ROUTE_HEADER,
    RTA_DST,
    RTA_GATEWAY,
    RTA_MULTIPATH,
    RTA_OIF,
    RTA_PREFSRC,
    RTA_PRIORITY,
    RTA_TABLE,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETROUTE,
    SCOPES,
)
from tests.lab.namespaces import Namespace

_RTM_GETRULE = 34
_IFLA_ADDRESS, _IFLA_MTU, _IFLA_QDISC, _IFLA_MASTER = 1, 4, 6, 10
_IFLA_INET_CONF, _IFLA_INET6_CONF = 1, 2
_FRA = {1: "to", 2: "from", 3: "iif", 6: "priority", 10: "fwmark", 14: "suppress_prefixlength", 15: "table", 16: "mask"}
"""linux/fib_rules.h"""
_BY_ITSELF = re.compile(r"fe80::|ff00::|\S+ type 4 |(?:tunl0|ip6tnl0|sit0) ")
"""The kernel gives a link these addresses and routes some time after its peer is up, and a namespace these links when a
module is loaded. The anycast address of a network goes with an address of it for which another node answered."""
_RECEIVE_BUFFER = 1 << 16


def open_netlink(namespace: Namespace, protocol: int = socket.NETLINK_ROUTE) -> socket.socket:
    """A netlink socket in a namespace. The kernel answers at once, so it may block."""
    opened = namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    opened.settimeout(30)
    return opened


def dump(netlink: socket.socket, kind: int, payload: bytes) -> Iterator[bytes]:
    """Yield the payload of each answer to a request for a dump. Raises OSError if the kernel refuses it."""
    netlink.send(message(kind, NLM_F_DUMP, payload))
    while True:
        for answer, _, _, content in iterate_messages(netlink.recv(_RECEIVE_BUFFER)):
            if answer == NLMSG_DONE:
                return
            if answer == NLMSG_ERROR:
                (code,) = struct.unpack_from("=i", content)
                raise OSError(-code, "the kernel refuses a dump")
            yield content


def network_state(namespace: Namespace) -> dict[str, list[str]]:
    """Return the lines of each kind of object, in order."""
    with open_netlink(namespace) as netlink:
        links = list(dump(netlink, RTM_GETLINK, bytes(LINK_HEADER.size)))
        names = defaultdict(lambda: "a link that has gone meanwhile")
        names |= {LINK_HEADER.unpack_from(link)[2]: to_text(_of(link, LINK_HEADER)[IFLA_IFNAME]) for link in links}
        addresses = dump(netlink, RTM_GETADDR, bytes(ADDRESS_HEADER.size))
        state = {
            "links": [_link(link, names) for link in links],
            "settings of links": [line for link in links for line in _settings(link)],
            "addresses": [_address(address, names) for address in addresses],
        }
        both = [bytes([family]).ljust(ROUTE_HEADER.size, b"\0") for family in (socket.AF_INET, socket.AF_INET6)]
        state["routes"] = [_route(it, names) for of in both for it in dump(netlink, RTM_GETROUTE, of)]
        state["rules of routing"] = [_rule(it) for of in both for it in dump(netlink, _RTM_GETRULE, of)]
    return {kind: sorted(line for line in lines if not _BY_ITSELF.match(line)) for kind, lines in state.items()}


def _of(content: bytes, header: struct.Struct) -> dict[int, bytes]:
    return attributes(content, header.size)


def _link(content: bytes, names: dict[int, str]) -> str:
    found = _of(content, LINK_HEADER)
    flags = LINK_HEADER.unpack_from(content)[3]
    kind = attributes(found.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND, b"")
    words = [to_text(found[IFLA_IFNAME]), to_text(kind), "up" if flags & IFF_UP else "down"]
    words += ["noarp"] if flags & IFF_NOARP else []
    words += [f"mtu {to_u32(found[_IFLA_MTU])}", f"qdisc {to_text(found.get(_IFLA_QDISC, b''))}"]
    words += [found.get(_IFLA_ADDRESS, b"").hex(":")]
    words += [f"master {names[to_u32(found[_IFLA_MASTER])]}"] if _IFLA_MASTER in found else []
    return " ".join(words)


def _settings(content: bytes) -> Iterator[str]:
    """Yield the sysctls of a link, by their numbers in linux/ip.h and linux/ipv6.h."""
    found = _of(content, LINK_HEADER)
    families = attributes(found[IFLA_AF_SPEC])
    name = to_text(found[IFLA_IFNAME])
    ipv4 = attributes(families.get(socket.AF_INET, b"")).get(_IFLA_INET_CONF, b"")
    ipv6 = attributes(families.get(socket.AF_INET6, b"")).get(_IFLA_INET6_CONF, b"")
    for family, values, first in (("ipv4", ipv4, 1), ("ipv6", ipv6, 0)):
        numbers = struct.unpack(f"={len(values) // 4}i", values)
        yield from (f"{name} {family} setting {at} = {number}" for at, number in enumerate(numbers, first))


def _address(content: bytes, names: dict[int, str]) -> str:
    found = _of(content, ADDRESS_HEADER)
    _, length, _, scope, index = ADDRESS_HEADER.unpack_from(content)
    address = unpack_address(found.get(IFA_LOCAL) or found[IFA_ADDRESS])
    return f"{address}/{length} dev {names[index]} scope {SCOPES[scope]}"


def _route(content: bytes, names: dict[int, str]) -> str:
    found = _of(content, ROUTE_HEADER)
    family, length, _, _, _, protocol, scope, kind, _ = ROUTE_HEADER.unpack_from(content)
    everything = "0.0.0.0" if family == socket.AF_INET else "::"
    destination = unpack_address(found[RTA_DST]) if RTA_DST in found else everything
    words = [f"{destination}/{length} type {kind} table {to_u32(found[RTA_TABLE])} protocol {protocol} scope {scope}"]
    words += [f"via {unpack_address(found[RTA_GATEWAY])}"] if RTA_GATEWAY in found else []
    words += [f"dev {names[to_u32(found[RTA_OIF])]}"] if RTA_OIF in found else []
    words += [f"src {unpack_address(found[RTA_PREFSRC])}"] if RTA_PREFSRC in found else []
    words += [f"metric {to_u32(found[RTA_PRIORITY])}"] if RTA_PRIORITY in found else []
    words += [f"paths {found[RTA_MULTIPATH].hex()}"] if RTA_MULTIPATH in found else []
    return " ".join(words)


def _rule(content: bytes) -> str:
    family, to_length, from_length, *_, action, _ = ROUTE_HEADER.unpack_from(content)
    found = _of(content, ROUTE_HEADER)
    words = [f"{_FRA[kind]} {value.hex()}" for kind, value in sorted(found.items()) if kind in _FRA]
    return f"family {family} to /{to_length} from /{from_length} action {action} {' '.join(words)}"
