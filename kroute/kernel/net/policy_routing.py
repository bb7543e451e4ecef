"""Policy routing rules (`ip rule`), and routes in tables that other programs made. kroute makes neither.

A deletion repeats every attribute of the dump, so the kernel deletes exactly that rule or route, or refuses.
"""

import errno
import socket
from collections.abc import Collection, Sequence
from typing import NamedTuple

from kroute.kernel.errors import Failure, none_if_refused
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import NLM_F_DUMP, attributes, message, to_u32, unpack_address
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE
from kroute.kernel.netlink.rtnetlink import (
    ROUTE_HEADER,
    RTA_DST,
    RTA_OIF,
    RTA_TABLE,
    RTM_DELROUTE,
    RTM_GETROUTE,
    RTN_LOCAL,
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
    """A route of some table. `destination` is "default" or ADDRESS/LENGTH; `interface` is "" if it has none."""

    family: int
    table: int
    destination: str
    interface: str
    is_local: bool
    payload: bytes = b""

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
            query = message(RTM_GETRULE, NLM_F_DUMP, ROUTE_HEADER.pack(family, 0, 0, 0, 0, 0, 0, 0, 0))
            # a kernel without IPv6 refuses to list its rules
            lacks_family = (errno.EAFNOSUPPORT,) if family == socket.AF_INET6 else ()
            found += await none_if_refused(self._netlink.request(query, _parse_rule), *lacks_family) or ()
        return [rule for family in FAMILIES for rule in found if rule.family == family]

    async def routes(self, tables: Collection[int]) -> list[TableRoute]:
        names = dict(socket.if_nameindex())
        found: list[TableRoute] = []
        for family in FAMILIES:
            query = message(RTM_GETROUTE, NLM_F_DUMP, ROUTE_HEADER.pack(family, 0, 0, 0, 0, 0, 0, 0, 0))
            routes = await self._netlink.request(query, lambda payload: _parse_route(payload, names))
            found += [route for route in routes if route.family == family and route.table in tables]
        return found

    async def delete(self, things: Sequence[PolicyRule | TableRoute]) -> list[Failure[PolicyRule | TableRoute]]:
        """Delete rules and routes. One that no longer exists is no failure."""
        kinds = {PolicyRule: RTM_DELRULE, TableRoute: RTM_DELROUTE}
        refused = await self._netlink.transact([message(kinds[type(thing)], 0, thing.payload) for thing in things])
        return [
            Failure(things[at], number) for at, number in refused.items() if number not in {errno.ESRCH, errno.ENOENT}
        ]


def _parse_rule(payload: bytes) -> PolicyRule:
    family, _, _, _, table, *_ = ROUTE_HEADER.unpack_from(payload)
    found = attributes(payload, ROUTE_HEADER.size)
    mark = to_u32(found[FRA_FWMARK]) if FRA_FWMARK in found else None
    priority = to_u32(found[FRA_PRIORITY]) if FRA_PRIORITY in found else 0
    mask = to_u32(found[FRA_FWMASK]) if FRA_FWMASK in found else WHOLE_MARK
    return PolicyRule(family, priority, mark, to_u32(found[FRA_TABLE]) if FRA_TABLE in found else table, payload, mask)


def _parse_route(payload: bytes, names: dict[int, str]) -> TableRoute:
    family, length, _, _, table, _, _, kind, _ = ROUTE_HEADER.unpack_from(payload)
    found = attributes(payload, ROUTE_HEADER.size)
    destination = f"{unpack_address(found[RTA_DST])}/{length}" if RTA_DST in found else "default"
    interface = names.get(to_u32(found[RTA_OIF]), "") if RTA_OIF in found else ""
    number = to_u32(found[RTA_TABLE]) if RTA_TABLE in found else table
    return TableRoute(family, number, destination, interface, kind == RTN_LOCAL, payload)


def _name(family: int) -> str:
    return "IPv6" if family == socket.AF_INET6 else "IPv4"
