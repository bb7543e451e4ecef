"""The end of a tunnel in a pod: makes it, repairs it and undoes it, with a socket in the pod's network namespace.

For each family that is asked for: a tunnel's link, which takes packets of any node; the VIPs on it; and for the VIPs'
answers a routing table that is the pod's own one with a smaller MSS, since clients must leave room for the outer header
(the SYN with which a client says its own MSS does not matter: answers travel without an outer header).

For IPv4, the pod must neither answer ARP requests for a VIP nor send any with a VIP as the source: the node would take
such a request for a forged one. Two settings of the pod's own link prevent that. Their former values are kept in the
alias of the tunnel's link.

Whatever else the namespace contains is not kroute's: a link of that name is refused unless its group is this node's
network namespace, by its inode. So a node that sees the processes of others (of a cluster in its containers) leaves
their pods alone. (The numbers are those of include/uapi/linux/if_link.h, if_tunnel.h and fib_rules.h.)
"""

import errno
import re
import socket
import struct
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple, TypeVar

from kroute.kernel.errors import KernelError, describe_errno, none_if_refused
from kroute.kernel.net.addresses import (
    FOREVER,
    encode_bind,
    encode_unbind,
    parse_address,
)
from kroute.kernel.net.links import encode_delete_link, encode_no_link_local, set_link
from kroute.kernel.net.policy_routing import (
    FRA_SRC,
    RTM_DELRULE,
    RTM_GETRULE,
    RTM_NEWRULE,
)
from kroute.kernel.net.steering import PROTOCOL, TABLE, is_own_rule, own_rule
from kroute.kernel.netlink.message import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    address_family,
    attribute,
    attributes,
    message,
    nested,
    number_in,
    pack_address,
    text,
    to_text,
    u8,
    u32,
    unpack_address,
)
from kroute.kernel.netlink.netlink_socket import NetlinkSocket
from kroute.kernel.netlink.rtnetlink import (
    ADDRESS_HEADER,
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
    RTM_DELROUTE,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETROUTE,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTN_UNICAST,
    listing,
)

IFLA_MTU, IFLA_IFALIAS, IFLA_GROUP, IFLA_INFO_DATA, IFLA_INET_CONF = 4, 20, 27, 2, 1
IFLA_IPTUN_LOCAL, IFLA_IPTUN_FLAGS, IFLA_IPTUN_PROTO = 2, 8, 9
IP6_TNL_F_IGN_ENCAP_LIMIT = 0x1
CONF_RP_FILTER, CONF_ARP_ANNOUNCE, CONF_ARP_IGNORE = 8, 18, 19
"""IPV4_DEVCONF_… of include/uapi/linux/ip.h. rtnetlink sets them for one link without a file below /proc/sys."""
WANTED_CONF = {CONF_ARP_IGNORE: 1, CONF_ARP_ANNOUNCE: 2}
"""What the pod's own link has at least."""
RTA_METRICS, RTAX_ADVMSS = 8, 8
RT_TABLE_MAIN = 254
RTNH_F_ONLINK = 0x4

_COPIED = (RTA_DST, RTA_GATEWAY, RTA_OIF, RTA_PRIORITY, RTA_MULTIPATH, RTA_VIA)

T = TypeVar("T")

ALIAS = "kroute direct return"
MOST_ROUTES = 64
"""Routes of a pod that are copied."""
MOST_LISTED = 4096
"""Addresses, routes or rules that are listed. A namespace with more of one of them is left alone."""
MOST_SEGMENT = 65535 - 40
"""Bytes; see ip_metrics_convert in net/ipv4/metrics.c."""
LOOSE = 2
"""rp_filter of the tunnel's link: answers leave by another link. The greater of this and `all` holds."""
_BEFORE = re.compile(r": arp_ignore=(\d) arp_announce=(\d) on (\S{1,15})$")


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


class PodTunnel(NamedTuple):
    """What a pod is to have: its address, and the VIPs, all of one family."""

    address: str
    vips: frozenset[str]


def greatest_segment(mtu: int, kind: TunnelKind) -> int:
    """The MSS, in bytes, that leaves room for the outer header; 0, which is the kernel's own, if there is no room.

    A process in the pod may give its link any MTU. The kernel keeps no greater MSS than MOST_SEGMENT.
    """
    return min(max(0, mtu - kind.overhead - kind.headers), MOST_SEGMENT)


class PodNetwork:
    """One family of a pod's network namespace, through a socket in it. Raises KernelError.

    `owner` is the inode of the node's own network namespace.
    """

    def __init__(self, netlink: NetlinkSocket, family: int, owner: int) -> None:
        self._netlink = netlink
        self._owner = owner
        self._family = family
        self._kind: TunnelKind = KINDS[family]

    async def ensure(self, end: PodTunnel) -> list[str]:
        """Make or repair the end; returns what was wrong. Writes nothing if all is right, or if a list is too long."""
        addresses = await self._addresses()
        carrier = next((index for index, address in addresses if address == end.address), None)
        if carrier is None:
            raise KernelError(f"the pod does not have {end.address}; it may have ended", errno=errno.EADDRNOTAVAIL)
        routes, rules = await self._routes(), set(await self._rules())
        done: list[str] = []
        link = await self._own_link()
        if link is not None and link.local != end.address:
            await self._delete(link)
            link = None
        if link is None:
            await self._write([encode_create(self._kind, end.address, self._owner)], f"make the link {self._kind.link}")
            done.append(f"link {self._kind.link}")
            link = await self._link(name=self._kind.link)
        own = await self._link(index=carrier)
        if link is None or own is None:
            raise KernelError("the pod's links have gone meanwhile; trying again", errno=errno.ENODEV)
        done += await self._settings(link, own)
        bound = {address for index, address in addresses if index == link.ifindex}
        done += await self._vips(link, end.vips, bound)
        return done + await self._routing(link, own, end.vips, routes, rules)

    async def has_address(self, address: str) -> bool:
        return address in {bound for _, bound in await self._addresses()}

    async def undo(self) -> bool:
        """Take everything of ours away; returns whether there was something.

        A namespace with too long lists is left alone, as if nothing there were ours: kroute would not have prepared it.
        """
        link = await self._link(name=self._kind.link)
        if link is None or not self._is_ours(link):
            return False
        try:
            rules = [vip for vip in await self._rules() if vip]
            routes = [route for route in await self._routes() if table_of(route) == TABLE]
        except KernelError as error:
            if error.errno == errno.E2BIG:
                return False
            raise
        await self._write([message(RTM_DELRULE, 0, rule_from(vip)) for vip in rules], "delete rules", {errno.ENOENT})
        await self._delete_routes(routes)
        await self._delete(link)
        return True

    async def _own_link(self) -> PodLink | None:
        """Our link, None if there is none of its name. Raises KernelError EEXIST if it is another's."""
        link = await self._link(name=self._kind.link)
        if link is not None and not self._is_ours(link):
            sentence = f"a link {link.name} ({link.kind or 'of no kind'}) in the pod is not kroute's; delete it there"
            raise KernelError(sentence, errno=errno.EEXIST)
        return link

    def _is_ours(self, link: PodLink) -> bool:
        return link.kind == self._kind.kind and link.group == self._owner

    async def _settings(self, link: PodLink, own: PodLink) -> list[str]:
        """Settings of both links. What the pod's own link had is noted before it is changed."""
        wanted = WANTED_CONF if self._family == socket.AF_INET else {}
        changed = {number: value for number, value in wanted.items() if own.conf.get(number, value) < value}
        messages = []
        if not link.alias:
            ignore, announce = own.conf.get(CONF_ARP_IGNORE, 0), own.conf.get(CONF_ARP_ANNOUNCE, 0)
            noted = f": arp_ignore={ignore} arp_announce={announce} on {own.name}" if wanted else ""
            messages.append(set_link(link.ifindex, text(IFLA_IFALIAS, ALIAS + noted)))
        messages += [encode_conf(own.ifindex, number, value) for number, value in changed.items()]
        if wanted and link.conf.get(CONF_RP_FILTER, LOOSE) != LOOSE:
            messages.append(encode_conf(link.ifindex, CONF_RP_FILTER, LOOSE))
        if not link.is_up:
            await self._write([encode_no_link_local(link.ifindex)], "", {errno.EAFNOSUPPORT, errno.EOPNOTSUPP})
            messages.append(set_link(link.ifindex, flags=IFF_UP))
        await self._write(messages, f"set up {link.name}")
        return [f"settings of {link.name} and {own.name}"] if messages else []

    async def _vips(self, link: PodLink, wanted: frozenset[str], bound: set[str]) -> list[str]:
        bound = {address for address in bound if not address.startswith("fe80:")}
        added, removed = sorted(wanted - bound), sorted(bound - wanted)
        await self._write([encode_unbind(link.ifindex, vip) for vip in removed], "unbind VIPs", {errno.EADDRNOTAVAIL})
        # never the source of the pod's own calls: an IPv4 VIP by its scope, an IPv6 one as it is deprecated
        lifetime = FOREVER if self._family == socket.AF_INET6 else 0
        bindings = [encode_bind(link.ifindex, vip, lifetime, scope=RT_SCOPE_HOST) for vip in added]
        await self._write(bindings, "bind VIPs", {errno.EEXIST})
        return [*(f"VIP {vip}" for vip in added), *(f"surplus {vip}" for vip in removed)]

    async def _routing(
        self, link: PodLink, own: PodLink, vips: frozenset[str], routes: Sequence[bytes], rules: set[str]
    ) -> list[str]:
        """The rules and routes of the answers. Routes come first: a rule to an empty table changes nothing."""
        advmss = greatest_segment(own.mtu, self._kind)
        found = {
            copy: route for route in routes if table_of(route) == TABLE and (copy := copied_route(route, 0)) is not None
        }
        others = (route for route in routes if table_of(route) != TABLE and interface_of(route) != link.ifindex)
        copies = [copy for route in others if (copy := copied_route(route, advmss)) is not None][:MOST_ROUTES]
        copies.sort(key=lambda route: -route[6])  # by scope: routes to gateways before those by them
        await self._delete_routes([route for copy, route in found.items() if copy not in copies])
        missing = [route for route in copies if route not in found]
        new_routes = [message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, route) for route in missing]
        await self._write(new_routes, "write routes", {errno.EEXIST})
        surplus = [message(RTM_DELRULE, 0, rule_from(vip)) for vip in sorted(rules - vips) if vip]
        added = [message(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, rule_from(vip)) for vip in sorted(vips - rules)]
        await self._write([*surplus, *added], "write rules", {errno.EEXIST, errno.ENOENT})
        return ["routes of answers"] if missing or added or surplus else []

    async def _delete(self, link: PodLink) -> None:
        """Delete our link, then give the pod's own link its settings back."""
        await self._write([encode_delete_link(link.ifindex)], f"delete {link.name}", {errno.ENODEV})
        before = _BEFORE.search(link.alias)
        own = await self._link(name=before[3]) if before else None
        if before and own is not None:
            values = zip(WANTED_CONF.items(), (int(before[1]), int(before[2])), strict=True)
            changed = [(number, was) for (number, ours), was in values if own.conf.get(number) == ours != was]
            await self._write([encode_conf(own.ifindex, *change) for change in changed], f"restore {own.name}")

    async def _link(self, *, name: str = "", index: int = 0) -> PodLink | None:
        query = LINK_HEADER.pack(0, 0, index, 0, 0) + (text(IFLA_IFNAME, name) if name else b"")
        request = self._netlink.request(message(RTM_GETLINK, 0, query), parse_link)
        found = await none_if_refused(request, errno.ENODEV)
        return found[0] if found else None

    async def _addresses(self) -> list[tuple[int, str]]:
        """Each address of the family with the index of its link."""
        query = message(RTM_GETADDR, NLM_F_DUMP, ADDRESS_HEADER.pack(self._family, 0, 0, 0, 0))

        def parse(payload: bytes) -> tuple[int, str] | None:
            index = ADDRESS_HEADER.unpack_from(payload)[4]
            found = parse_address(payload, {index: ""})
            is_wanted = found is not None and address_family(found.address) == self._family
            return (index, found.address) if found is not None and is_wanted else None

        return await self._listed(query, parse, "addresses")

    async def _routes(self) -> list[bytes]:
        query = listing(RTM_GETROUTE, self._family)
        return await self._listed(query, lambda route: route if copied_route(route, 0) is not None else None, "routes")

    async def _rules(self) -> list[str]:
        return await self._listed(listing(RTM_GETRULE, self._family), parse_own_rule, "rules")

    async def _listed(self, query: bytes, parse: Callable[[bytes], T | None], what: str) -> list[T]:
        """As `NetlinkSocket.request`; KernelError E2BIG after MOST_LISTED answers, of repeated dumps together."""
        count = 0

        def parse_next(payload: bytes) -> T | None:
            nonlocal count
            count += 1
            if count > MOST_LISTED:
                raise KernelError(f"the namespace has more than {MOST_LISTED} {what}", errno=errno.E2BIG)
            return parse(payload)

        return await self._netlink.request(query, parse_next)

    async def _delete_routes(self, payloads: Sequence[bytes]) -> None:
        await self._write([message(RTM_DELROUTE, 0, payload) for payload in payloads], "delete routes", {errno.ESRCH})

    async def _write(self, messages: Sequence[bytes], what: str, tolerated: Container[int] = ()) -> None:
        for number in (await self._netlink.transact(messages)).values():
            if number not in tolerated:
                missing = ": the kernel lacks this kind of tunnel" if number == errno.EOPNOTSUPP else ""
                raise KernelError(f"cannot {what} in the pod: {describe_errno(number)}{missing}", errno=number)


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
        number_in(found, IFLA_MTU),
        number_in(found, IFLA_GROUP),
        {at + 1: int(value) for at, (value,) in enumerate(struct.iter_unpack("=I", values[: len(values) & ~3]))},
    )


def encode_create(kind: TunnelKind, local: str, group: int) -> bytes:
    """Make a tunnel that takes packets of any sender to this address. It is down, and sends nothing itself.

    Of what says which program made it only the group is taken in this message; the alias is not.
    """
    tunnel = attribute(IFLA_IPTUN_LOCAL, pack_address(local)) + u8(IFLA_IPTUN_PROTO, kind.protocol)
    if kind.kind == "ip6tnl":
        tunnel += u32(IFLA_IPTUN_FLAGS, IP6_TNL_F_IGN_ENCAP_LIMIT)
    info = nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, kind.kind), nested(IFLA_INFO_DATA, tunnel))
    link = LINK_HEADER.pack(0, 0, 0, 0, 0) + text(IFLA_IFNAME, kind.link) + u32(IFLA_GROUP, group) + info
    return message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, link)


def encode_conf(index: int, number: int, value: int) -> bytes:
    """Set an IPv4 setting of one link."""
    conf = nested(IFLA_AF_SPEC, nested(socket.AF_INET, nested(IFLA_INET_CONF, u32(number, value))))
    return set_link(index, conf)


def rule_from(vip: str) -> bytes:
    """The payload of the rule that sends a VIP's answers to TABLE."""
    packed = pack_address(vip)
    return own_rule(address_family(vip), TABLE, attribute(FRA_SRC, packed), len(packed) * 8)


def parse_own_rule(payload: bytes) -> str | None:
    """The VIP of a rule of ours; None for any other rule."""
    found = attributes(payload, ROUTE_HEADER.size)
    if not is_own_rule(found):
        return None
    return unpack_address(found[FRA_SRC]) if FRA_SRC in found else ""


def copied_route(payload: bytes, advmss: int) -> bytes | None:
    """A unicast route of table main as TABLE has it, with the greatest segment to ask of clients; None for any other.

    A route of TABLE gives itself, so that both can be compared.
    """
    family, length, _, _, table, protocol, scope, kind, flags = ROUTE_HEADER.unpack_from(payload)
    found = attributes(payload, ROUTE_HEADER.size)
    table = number_in(found, RTA_TABLE, table)
    is_ours = table == TABLE and protocol == PROTOCOL
    if kind != RTN_UNICAST or not (is_ours or table == RT_TABLE_MAIN) or not {RTA_OIF, RTA_MULTIPATH} & found.keys():
        return None
    if is_ours:
        advmss = number_in(attributes(found.get(RTA_METRICS, b"")), RTAX_ADVMSS)
    head = ROUTE_HEADER.pack(family, length, 0, 0, 0, PROTOCOL, scope, kind, flags & RTNH_F_ONLINK)
    kept = b"".join(attribute(kind, found[kind]) for kind in _COPIED if kind in found)
    return head + kept + u32(RTA_TABLE, TABLE) + nested(RTA_METRICS, u32(RTAX_ADVMSS, advmss))


def table_of(payload: bytes) -> int:
    return number_in(attributes(payload, ROUTE_HEADER.size), RTA_TABLE, payload[4])


def interface_of(payload: bytes) -> int:
    return number_in(attributes(payload, ROUTE_HEADER.size), RTA_OIF)
