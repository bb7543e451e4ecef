"""Policy routing rules (`ip rule`), and routes in tables that other programs made. kroute makes neither.

A deletion repeats every attribute of the dump, so the kernel deletes exactly that rule or route, or refuses.
"""

import errno
import socket
from collections.abc import Collection, Sequence
from typing import NamedTuple

from kroute.kernel.errors import Failure, none_if_refused
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import attributes, message, number_in, to_u32, unpack_address
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE
from kroute.kernel.netlink.rtnetlink import (
    ROUTE_HEADER,
    RTA_DST,
    RTA_OIF,
    RTA_TABLE,
    RTM_DELROUTE,
    RTM_GETROUTE,
    RTN_LOCAL,
    listing,
)

RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
FR_ACT_TO_TBL = 1
FRA_SRC, FRA_PRIORITY, FRA_FWMARK, FRA_TABLE, FRA_FWMASK, FRA_PROTOCOL = 2, 6, 10, 15, 16, 21
"""Attributes of a rule (include/uapi/linux/fib_rules.h). Its header is the same as a route's."""
FAMILIES = (socket.AF_INET, socket.AF_INET6)
WHOLE_MARK = 0xFFFFFFFF


class PolicyRule(NamedTuple):
    """A rule that sends packets to a table. `payload` is the kernel's message.

    `mark` None: packets of any mark. Else the bits `mask` of a packet's mark are compared with it.
    """

    family: int
    priority: int
    mark: int | None
    table: int
    payload: bytes = b""
    mask: int = WHOLE_MARK

    def __str__(self) -> str:
        mark = "" if self.mark is None else f" fwmark {self.mark:#x}"
        return f"{_name(self.family)} rule {self.priority}{mark} lookup {self.table}"


class TableRoute(NamedTuple):
    """A route of some table. `destination` is "default" or ADDRESS/LENGTH; `interface` is "" if it has none.

    `protocol` is the number of its origin.
    """

    family: int
    table: int
    destination: str
    interface: str
    is_local: bool
    payload: bytes = b""
    protocol: int = 0

    def __str__(self) -> str:
        kind = "local " if self.is_local else ""
        return f"{_name(self.family)} route {kind}{self.destination} dev {self.interface} table {self.table}"


class PolicyRouting(NetlinkClient):
    """The rules and routes of the calling process's network namespace."""

    protocol = NETLINK_ROUTE

    async def rules(self) -> list[PolicyRule]:
        """All rules of both families."""
        found: list[PolicyRule] = []
        for family in FAMILIES:
            # a kernel without IPv6 refuses to list its rules
            lacks_family = (errno.EAFNOSUPPORT,) if family == socket.AF_INET6 else ()
            request = self.netlink.request(listing(RTM_GETRULE, family), _parse_rule)
            found += await none_if_refused(request, *lacks_family) or ()
        return [rule for family in FAMILIES for rule in found if rule.family == family]

    async def routes(self, tables: Collection[int]) -> list[TableRoute]:
        names = dict(socket.if_nameindex())
        found: list[TableRoute] = []
        for family in FAMILIES:
            routes = await self.netlink.request(
                listing(RTM_GETROUTE, family), lambda payload: _parse_route(payload, names)
            )
            found += [route for route in routes if route.family == family and route.table in tables]
        return found

    async def delete(self, things: Sequence[PolicyRule | TableRoute]) -> list[Failure[PolicyRule | TableRoute]]:
        """Delete rules and routes. One that no longer exists is no failure."""
        return await self.write_each(things, _deletion, {errno.ESRCH, errno.ENOENT})


def _deletion(thing: PolicyRule | TableRoute) -> bytes:
    return message(RTM_DELRULE if isinstance(thing, PolicyRule) else RTM_DELROUTE, 0, thing.payload)


def _parse_rule(payload: bytes) -> PolicyRule:
    family, _, _, _, table, *_ = ROUTE_HEADER.unpack_from(payload)
    found = attributes(payload, ROUTE_HEADER.size)
    mark = to_u32(found[FRA_FWMARK]) if FRA_FWMARK in found else None
    priority, mask = number_in(found, FRA_PRIORITY), number_in(found, FRA_FWMASK, WHOLE_MARK)
    return PolicyRule(family, priority, mark, number_in(found, FRA_TABLE, table), payload, mask)


def _parse_route(payload: bytes, names: dict[int, str]) -> TableRoute:
    family, length, _, _, table, protocol, _, kind, _ = ROUTE_HEADER.unpack_from(payload)
    found = attributes(payload, ROUTE_HEADER.size)
    destination = f"{unpack_address(found[RTA_DST])}/{length}" if RTA_DST in found else "default"
    interface = names.get(number_in(found, RTA_OIF), "")
    table = number_in(found, RTA_TABLE, table)
    return TableRoute(family, table, destination, interface, kind == RTN_LOCAL, payload, protocol)


def _name(family: int) -> str:
    return "IPv6" if family == socket.AF_INET6 else "IPv4"
