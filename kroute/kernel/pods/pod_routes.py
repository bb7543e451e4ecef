"""Routes to the pods of other nodes, in table main, and the tunnels that some of them go through.

A route of ours has a metric of its own, which is great. So it stands beside another program's route to the same
network, and that one wins. The kernel deletes routes of IPv4 with the link that they go by, and sends no event.

A tunnel is a link for one other node: the kernel takes from it what that node's address has sent, and from nobody else.
So no stranger puts packets into the pods' network. What a tunnel is follows from its name, so one that is to be another
is another link. The kernel gives it the MTU of the interface towards the node, less the outer headers.

Of two tunnels between the same addresses the kernel refuses the second. Beside another program's ours stands by until
`make_again`, and carries packets at once when that one goes. In IPv4 it has its address as an alias alone: it takes
what no other tunnel does, and the kernel chooses its source. In IPv6 it would send with none, so it is bound to the
interface towards the node, and the kernel prefers it there. In IPv4 even a loose `rp_filter` would drop that.

What a node sends to pods through a tunnel has the node's address as source, and the answers must not go another way:
networks between nodes drop what comes from pods. So rules have this node's pods look into TABLE first, which leads to
the addresses of nodes behind tunnels through these.

A tunnel with a port carries its packets in UDP, with the header of GUE (as kube-router's `--overlay-encap=fou`), and
the kernel has to be told to take such packets at that port: `ports`, `set_port`. (The numbers are those of
include/uapi/linux/if_tunnel.h and if_link.h.)
"""

import errno
import re
import socket
from base64 import b32encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple, TypeAlias
from zlib import crc32

from kroute.kernel.digest import Digest
from kroute.kernel.errors import Change, Failure, none_if_refused, raise_refusal
from kroute.kernel.net.links import TUNNELS, encode_delete_link, encode_no_link_local, set_link
from kroute.kernel.net.policy_routing import (
    FR_ACT_TO_TBL,
    FRA_PRIORITY,
    FRA_PROTOCOL,
    FRA_SRC,
    FRA_TABLE,
    RTM_DELRULE,
    RTM_GETRULE,
    RTM_NEWRULE,
)
from kroute.kernel.net.routes import ELSEWHERE, RouteLookup
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    address_family,
    attribute,
    attributes,
    be16,
    message,
    nested,
    number_in,
    pack_address,
    text,
    to_be16,
    to_text,
    to_u16,
    u8,
    u16,
    u32,
    unpack_address,
)
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE
from kroute.kernel.netlink.rtnetlink import (
    IFF_UP,
    IFLA_IFNAME,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    LINK_HEADER,
    ROUTE_HEADER,
    RT_SCOPE_LINK,
    RT_SCOPE_NOWHERE,
    RTA_DST,
    RTA_GATEWAY,
    RTA_OIF,
    RTA_PREFSRC,
    RTA_PRIORITY,
    RTA_TABLE,
    RTM_DELROUTE,
    RTM_GETLINK,
    RTM_GETROUTE,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTN_UNICAST,
    interface_index,
    listing,
)
from kroute.kernel.pods.gue_ports import GuePorts
from kroute.kernel.pods.pod_network import (
    IFLA_IFALIAS,
    IFLA_INFO_DATA,
    IFLA_IPTUN_FLAGS,
    IFLA_IPTUN_LOCAL,
    IFLA_IPTUN_PROTO,
    IFLA_MTU,
    IP6_TNL_F_IGN_ENCAP_LIMIT,
    RT_TABLE_MAIN,
)

PROTOCOL = 108
"""What our routes name as their origin (`proto` of ip-route)."""
TABLE = 27508
"""The routing table of what this node's pods send to other nodes' own addresses."""
PRIORITY = 32765
"""Of the rules that lead to it: the last before table main, and after kube-router's, which has this one or a smaller.

What comes out of its tunnel is dropped (`rp_filter`) where the way back to a node is ours.
"""
METRIC = 2048
"""Greater than those that programs and the kernel give by themselves."""
MOST_LOOKED_UP = 64
"""Links that are looked up one by one, and not by a list of all."""
GUE_OVERHEAD = 12
"""Bytes of the headers of UDP and GUE."""
OVERHEAD: Mapping[int, int] = {socket.AF_INET: 20, socket.AF_INET6: 40}
"""Bytes of the outer header."""

IFLA_IPTUN_LINK, IFLA_IPTUN_REMOTE = 1, 3
IFLA_IPTUN_ENCAP_TYPE, IFLA_IPTUN_ENCAP_FLAGS, IFLA_IPTUN_ENCAP_DPORT = 15, 16, 18
TUNNEL_ENCAP_GUE, TUNNEL_ENCAP_FLAG_CSUM6 = 2, 2
IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS = 29, 1 << 3

_KINDS: Mapping[int, tuple[str, int]] = {
    socket.AF_INET: ("ipip", socket.IPPROTO_IPIP),
    socket.AF_INET6: ("ip6tnl", socket.IPPROTO_IPV6),
}
_NAME = re.compile(rf"{TUNNELS}[a-z2-7]{{8}}")


class Tunnel(NamedTuple):
    """A tunnel to another node. `port` is that of UDP; 0: packets are in IP alone."""

    local: str
    remote: str
    port: int = 0
    is_up: bool = True

    def __str__(self) -> str:
        return f"{self.local} to {self.remote}{f' in UDP, port {self.port}' if self.port else ''}"

    @property
    def link(self) -> str:
        """The name of its link, with 40 bits of a digest: as many as there is room for."""
        digest = sha256(f"{self.local} {self.remote} {self.port}".encode()).digest()
        return f"{TUNNELS}{b32encode(digest[:5]).decode().lower()}"


class PodRoute(NamedTuple):
    """A route to pods of another node: by the node itself, or through the tunnel with this link.

    `source` is that of what this node sends; "" if the kernel chooses. `is_for_pods`: it leads to the node's own
    address, and only this node's pods take it.
    """

    source: str = ""
    gateway: str = ""
    link: str = ""
    is_for_pods: bool = False

    def __str__(self) -> str:
        way = f"via {self.gateway}" if self.gateway else f"dev {self.link}"
        return f"{way}{f' src {self.source}' if self.source else ''}{f' table {TABLE}' if self.is_for_pods else ''}"


class SetPodRoute(Change, frozen=True):
    """Make a route, or with `replaces` change ours. Refused: EEXIST if there is one of this metric already."""

    words = "set the route to the pods in {change.network}"

    network: str
    route: PodRoute
    replaces: bool = False


class DeletePodRoute(Change, frozen=True):
    """Delete our route."""

    words = "delete the route to the pods in {change.network}"

    network: str
    route: PodRoute


class SetRule(Change, frozen=True):
    """Have this node's pods with addresses in a network look into TABLE first; not `is_wanted`: no longer."""

    network: str
    is_wanted: bool = True

    def __str__(self) -> str:
        return f"{'write' if self.is_wanted else 'delete'} the routing rule for this node's pods in {self.network}"


class MakeTunnel(Change, frozen=True):
    """Make a tunnel, or repair the one with its link. Beside another program's between these ends it stands by.

    Refused: EEXIST if it cannot, since there is no interface towards the other end.
    """

    words = "make the tunnel to {change.tunnel.remote}"

    tunnel: Tunnel


class DeleteTunnel(Change, frozen=True):
    """Delete a tunnel, with the routes through it."""

    words = "delete the tunnel {change.link}"

    link: str


PodRouteChange: TypeAlias = SetPodRoute | DeletePodRoute | MakeTunnel | DeleteTunnel | SetRule
_ORDER = (MakeTunnel, SetPodRoute, SetRule, DeletePodRoute, DeleteTunnel)


def is_tunnel(link: str) -> bool:
    """Whether a link has the name of one of our tunnels."""
    return _NAME.fullmatch(link) is not None


class PodRoutes(NetlinkClient):
    """The routes and tunnels of the calling process's network namespace. All raise KernelError."""

    protocol = NETLINK_ROUTE

    async def routes(self) -> dict[str, PodRoute]:
        """Our routes, by network."""
        names = dict(socket.if_nameindex())
        found: dict[str, PodRoute] = {}
        for family in _KINDS:
            parsed = await self.netlink.request(_listing(family), lambda payload: _parse_route(payload, names))
            found.update(parsed)  # a kernel without IPv6 answers with those of IPv4 again
        return found

    async def rules(self) -> set[str]:
        """The networks of the rules that are ours."""
        found: list[str] = []
        for family in _KINDS:
            lacks_family = (errno.EAFNOSUPPORT, errno.EOPNOTSUPP) if family == socket.AF_INET6 else ()
            request = self.netlink.request(listing(RTM_GETRULE, family), _parse_rule)
            found += await none_if_refused(request, *lacks_family) or ()
        return set(found)

    async def tunnels(self) -> dict[str, Tunnel]:
        """Our tunnels, by the names of their links."""
        found: dict[str, Tunnel] = {}
        for kind, _ in _KINDS.values():
            header = LINK_HEADER.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
            info = nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, kind)) + u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
            found.update(await self.netlink.request(message(RTM_GETLINK, NLM_F_DUMP, header + info), _parse_tunnel))
        return found

    async def mtu(self, interfaces: Iterable[str]) -> int | None:
        """The smallest MTU of these interfaces; None if none of them exists."""
        found: list[int] = []
        for name in interfaces:
            query = message(RTM_GETLINK, 0, LINK_HEADER.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + text(IFLA_IFNAME, name))
            found += await none_if_refused(self.netlink.request(query, _parse_mtu), errno.ENODEV) or ()
        return min(found, default=None)

    async def write(self, changes: Sequence[PodRouteChange]) -> list[Failure[PodRouteChange]]:
        """Make the changes: tunnels, then routes, then what is deleted. A deletion of what is gone is no failure."""
        failures = await self._make([change for change in changes if isinstance(change, MakeTunnel)])
        routed = {it.route.link for it in changes if isinstance(it, SetPodRoute) and it.route.link}
        indexes = _indexes(routed | {it.link for it in changes if isinstance(it, DeleteTunnel)})
        rest: list[PodRouteChange] = []
        for change in sorted(changes, key=lambda change: _ORDER.index(type(change))):
            if isinstance(change, SetPodRoute) and change.route.link and change.route.link not in indexes:
                failures.append(Failure(change, errno.ENODEV))
            elif not isinstance(change, MakeTunnel) and not (
                isinstance(change, DeleteTunnel) and change.link not in indexes
            ):
                rest.append(change)
        harmless = {errno.ESRCH, errno.ENOENT}
        return failures + await self.write_each(rest, lambda change: _encode(change, indexes), harmless)

    async def _make(self, changes: Sequence[MakeTunnel]) -> list[Failure[PodRouteChange]]:
        """Make tunnels: down at first, since their links take some settings only when they exist."""
        made: Sequence[PodRouteChange] = changes
        failures = await self.write_each(made, lambda change: _encode(change, {}))
        taken = {failure.change for failure in failures if failure.errno == errno.EEXIST}
        if taken:
            failures = [failure for failure in failures if failure.change not in taken]
            failures += await self._stand_by([change for change in changes if change in taken])
        refused = {failure.change for failure in failures}
        present = _indexes({change.tunnel.link for change in changes})
        settings: list[bytes] = []
        for change in changes:
            index = present.get(change.tunnel.link)
            if change in refused or index is None:
                continue
            settings.append(encode_no_link_local(index))
            if change in taken:
                settings.append(set_link(index, text(IFLA_IFALIAS, change.tunnel.local)))
            settings.append(set_link(index, flags=IFF_UP))
        refused_settings = await self.netlink.transact(settings)
        tolerated = {errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.ENODEV}  # a kernel without IPv6; deleted meanwhile
        raise_refusal(refused_settings, "set up tunnels to other nodes", "trying again", tolerated)
        return failures

    async def _stand_by(self, changes: Sequence[MakeTunnel]) -> list[Failure[PodRouteChange]]:
        """Make tunnels beside those that other programs have between the same ends."""
        made: dict[PodRouteChange, bytes] = {}
        async with RouteLookup() as lookup:
            for change in changes:
                way = await lookup.towards(change.tunnel.remote)
                if way is not None and (index := interface_index(way.interface)) is not None:
                    made[change] = _create(change.tunnel, beside=index)
        wanted: Sequence[PodRouteChange] = changes
        failures = [Failure(change, errno.EEXIST) for change in wanted if change not in made]
        return failures + await self.write_each(list(made), made.__getitem__)


class PodNetworkKernel:
    """What connects pods: routes, tunnels and ports of tunnels. No socket stays open between two calls.

    All raise KernelError.
    """

    async def digest(self) -> Digest:
        """A digest of our routes, with their number."""
        async with PodRoutes() as client:
            found = [it for family in _KINDS for it in await client.netlink.request(_listing(family), crc32)]
        return Digest(hash(tuple(found)), (len(found),))

    async def read(self) -> tuple[dict[str, PodRoute], dict[str, Tunnel]]:
        """Our routes by network, and our tunnels by link."""
        async with PodRoutes() as client:
            return await client.routes(), await client.tunnels()

    async def rules(self) -> set[str]:
        """The networks of this node's pods for which there are rules."""
        async with PodRoutes() as client:
            return await client.rules()

    async def mtu(self, interfaces: Collection[str], families: Collection[int] = ()) -> int | None:
        """The smallest MTU of these interfaces and of these families' default routes; None if none of them exists."""
        async with PodRoutes() as client, RouteLookup() as lookup:
            ways = [await lookup.towards(ELSEWHERE[family]) for family in families]
            return await client.mtu({*interfaces, *(way.interface for way in ways if way is not None)} - {""})

    async def write(self, changes: Sequence[PodRouteChange]) -> list[Failure[PodRouteChange]]:
        """Make the changes; returns those that the kernel refused."""
        async with PodRoutes() as client:
            return await client.write(changes)

    async def make_again(self) -> None:
        """Make our tunnels as they are to be. Those beside which there still is another program's go on standing by."""
        async with PodRoutes() as client:
            await client.write([MakeTunnel(tunnel) for tunnel in (await client.tunnels()).values()])

    async def ports(self) -> set[tuple[int, int]]:
        """The families and ports at which the kernel takes packets of tunnels out of UDP."""
        async with GuePorts() as client:
            return await client.ports()

    async def set_port(self, family: int, port: int, *, is_wanted: bool) -> None:
        """Have the kernel take packets of tunnels at this port, or not."""
        async with GuePorts() as client:
            await client.set_port(family, port, is_wanted=is_wanted)


def _listing(family: int) -> bytes:
    """The request for all routes of a family that are ours."""
    header = ROUTE_HEADER.pack(family, 0, 0, 0, 0, PROTOCOL, 0, RTN_UNICAST, 0)
    return message(RTM_GETROUTE, NLM_F_DUMP, header)


def _indexes(names: Collection[str]) -> dict[str, int]:
    """The indexes of these links that exist. All links are listed only for many."""
    if len(names) > MOST_LOOKED_UP:
        return {name: index for index, name in socket.if_nameindex()}
    return {name: index for name in names if (index := interface_index(name)) is not None}


def _encode(change: PodRouteChange, indexes: Mapping[str, int]) -> bytes:
    match change:
        case MakeTunnel(tunnel):
            return _create(tunnel)
        case SetPodRoute(_, route):
            return _set_route(change, indexes.get(route.link, 0))
        case DeletePodRoute(network, route):
            gone = _destination(network, RT_SCOPE_NOWHERE, is_for_pods=route.is_for_pods)  # of any scope
            return message(RTM_DELROUTE, 0, gone)
        case DeleteTunnel(link):
            return encode_delete_link(indexes[link])
        case SetRule(network, is_wanted):
            flags = NLM_F_CREATE | NLM_F_EXCL if is_wanted else 0
            return message(RTM_NEWRULE if is_wanted else RTM_DELRULE, flags, _rule(network))


def _set_route(change: SetPodRoute, index: int) -> bytes:
    flags = NLM_F_CREATE | (NLM_F_REPLACE if change.replaces else NLM_F_EXCL)
    route = change.route
    scope = RT_SCOPE_LINK if index and ":" not in change.network else 0
    body = _destination(change.network, scope, is_for_pods=route.is_for_pods)
    if route.source:
        body += attribute(RTA_PREFSRC, pack_address(route.source))
    if route.gateway:
        body += attribute(RTA_GATEWAY, pack_address(route.gateway))
    if index:
        body += u32(RTA_OIF, index)
    return message(RTM_NEWROUTE, flags, body)


def _destination(network: str, scope: int, *, is_for_pods: bool) -> bytes:
    """What our route to a network has at least."""
    address, _, length = network.partition("/")
    header = ROUTE_HEADER.pack(address_family(address), int(length), 0, 0, 0, PROTOCOL, scope, RTN_UNICAST, 0)
    table = TABLE if is_for_pods else RT_TABLE_MAIN
    return header + attribute(RTA_DST, pack_address(address)) + u32(RTA_PRIORITY, METRIC) + u32(RTA_TABLE, table)


def _rule(network: str) -> bytes:
    address, _, length = network.partition("/")
    header = ROUTE_HEADER.pack(address_family(address), 0, int(length), 0, 0, 0, 0, FR_ACT_TO_TBL, 0)
    rest = u32(FRA_PRIORITY, PRIORITY) + u32(FRA_TABLE, TABLE) + u8(FRA_PROTOCOL, PROTOCOL)
    return header + attribute(FRA_SRC, pack_address(address)) + rest


def _parse_rule(payload: bytes) -> str | None:
    """The network of a rule of ours; None for any other."""
    length, found = ROUTE_HEADER.unpack_from(payload)[2], attributes(payload, ROUTE_HEADER.size)
    is_ours = number_in(found, FRA_TABLE) == TABLE and found.get(FRA_PROTOCOL) == bytes([PROTOCOL])
    is_right = number_in(found, FRA_PRIORITY) == PRIORITY and FRA_SRC in found
    return f"{unpack_address(found[FRA_SRC])}/{length}" if is_ours and is_right else None


def _parse_route(payload: bytes, names: Mapping[int, str]) -> tuple[str, PodRoute] | None:
    _, length, _, _, table, protocol, _, kind, _ = ROUTE_HEADER.unpack_from(payload)
    found = attributes(payload, ROUTE_HEADER.size)
    is_for_pods = (table := number_in(found, RTA_TABLE, table)) == TABLE
    if table not in {RT_TABLE_MAIN, TABLE} or (protocol, kind) != (PROTOCOL, RTN_UNICAST) or RTA_DST not in found:
        return None
    if number_in(found, RTA_PRIORITY) != METRIC:
        return None
    source = unpack_address(found[RTA_PREFSRC]) if RTA_PREFSRC in found else ""
    gateway = unpack_address(found[RTA_GATEWAY]) if RTA_GATEWAY in found else ""
    link = "" if gateway else names.get(number_in(found, RTA_OIF), "")
    return f"{unpack_address(found[RTA_DST])}/{length}", PodRoute(source, gateway, link, is_for_pods)


def _create(tunnel: Tunnel, beside: int = 0) -> bytes:
    """The request for a tunnel; `beside` another program's: the index of the interface towards the node."""
    family = address_family(tunnel.remote)
    kind, protocol = _KINDS[family]
    local = bytes(4) if beside and family == socket.AF_INET else pack_address(tunnel.local)
    data = attribute(IFLA_IPTUN_LOCAL, local)
    data += attribute(IFLA_IPTUN_REMOTE, pack_address(tunnel.remote)) + u8(IFLA_IPTUN_PROTO, protocol)
    if family == socket.AF_INET6:
        data += u32(IFLA_IPTUN_LINK, beside) if beside else b""
        data += u32(IFLA_IPTUN_FLAGS, IP6_TNL_F_IGN_ENCAP_LIMIT)
    if tunnel.port:
        flags = TUNNEL_ENCAP_FLAG_CSUM6 if family == socket.AF_INET6 else 0  # without, an IPv6 receiver drops them
        data += u16(IFLA_IPTUN_ENCAP_TYPE, TUNNEL_ENCAP_GUE) + u16(IFLA_IPTUN_ENCAP_FLAGS, flags)
        data += be16(IFLA_IPTUN_ENCAP_DPORT, tunnel.port)
    info = nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, kind), nested(IFLA_INFO_DATA, data))
    header = LINK_HEADER.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    return message(RTM_NEWLINK, NLM_F_CREATE, header + text(IFLA_IFNAME, tunnel.link) + info)


def _parse_tunnel(payload: bytes) -> tuple[str, Tunnel] | None:
    flags = LINK_HEADER.unpack_from(payload)[3]
    found = attributes(payload, LINK_HEADER.size)
    name = to_text(found.get(IFLA_IFNAME, b""))
    info = attributes(found.get(IFLA_LINKINFO, b""))
    if not is_tunnel(name) or to_text(info.get(IFLA_INFO_KIND, b"")) not in {kind for kind, _ in _KINDS.values()}:
        return None
    data = attributes(info.get(IFLA_INFO_DATA, b""))
    local, remote = (data.get(kind, b"") for kind in (IFLA_IPTUN_LOCAL, IFLA_IPTUN_REMOTE))
    if len(local) not in {4, 16} or len(remote) not in {4, 16}:
        return name, Tunnel("", "", 0, is_up=False)
    is_gue = IFLA_IPTUN_ENCAP_TYPE in data and to_u16(data[IFLA_IPTUN_ENCAP_TYPE]) == TUNNEL_ENCAP_GUE
    port = to_be16(data[IFLA_IPTUN_ENCAP_DPORT]) if is_gue and IFLA_IPTUN_ENCAP_DPORT in data else 0
    stands_by = not any(local) and IFLA_IFALIAS in found
    own = to_text(found[IFLA_IFALIAS]) if stands_by else unpack_address(local)
    return name, Tunnel(own, unpack_address(remote), port, bool(flags & IFF_UP))


def _parse_mtu(payload: bytes) -> int:
    return number_in(attributes(payload, LINK_HEADER.size), IFLA_MTU)
