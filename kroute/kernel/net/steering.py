"""Delivers packets to addresses that are on no link of the node: a table of local routes that only a mark leads to.

An address on a link is this node's in every respect: a packet *from* it that arrives at any link is taken for a forged
one, and dropped (`fib_validate_source`; the sysctl accept_local would let everybody forge every address of the node).
With direct return pods answer from such addresses, through this node. So these are in a table of their own, in which
only marked packets are looked up. The lookup of a packet's source has no mark (unless `src_valid_mark` is set, and then
the answer's own, which has none), and finds the route to the internet as for any other stranger.
"""

import errno
import socket
from collections.abc import Mapping, Sequence
from functools import partial

from kroute.kernel.errors import Change, Failure, KernelError, none_if_refused, raise_refusal
from kroute.kernel.net.policy_routing import (
    FAMILIES,
    FR_ACT_TO_TBL,
    FRA_FWMARK,
    FRA_FWMASK,
    FRA_PRIORITY,
    FRA_PROTOCOL,
    FRA_TABLE,
    RTM_DELRULE,
    RTM_GETRULE,
    RTM_NEWRULE,
)
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    address_family,
    attribute,
    attributes,
    message,
    number_in,
    pack_address,
    u8,
    u32,
    unpack_address,
)
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE
from kroute.kernel.netlink.rtnetlink import (
    ROUTE_HEADER,
    RT_SCOPE_HOST,
    RTA_DST,
    RTA_OIF,
    RTA_TABLE,
    RTM_DELROUTE,
    RTM_GETROUTE,
    RTM_NEWROUTE,
    RTN_LOCAL,
    interface_index,
    listing,
)

PROTOCOL = 107
"""What kroute's rules and routes for direct return name as their origin (`proto` of ip-route), here and in pods."""
TABLE = 27506
"""The routing table of direct return, on nodes and in pods."""
PRIORITY = 90
"""Of the rule: after the kernel's own for table local (0), before those of other programs."""


class Steer(Change, frozen=True):
    """Deliver marked packets to this address to the node; not `is_wanted`: no longer."""

    address: str
    is_wanted: bool = True

    def __str__(self) -> str:
        return f"{'' if self.is_wanted else 'stop '}delivering packets to {self.address}"


class Steering(NetlinkClient):
    """The table of the calling process's network namespace."""

    protocol = NETLINK_ROUTE

    async def read(self) -> set[str]:
        """The addresses in the table. The kernel lists no other table, which may have all routes of the internet."""
        found: list[str] = []
        for family in FAMILIES:
            query = listing(RTM_GETROUTE, family, u32(RTA_TABLE, TABLE))
            # ENOENT: there is no such table before its first route
            found += await none_if_refused(self.netlink.request(query, _parse_route), errno.ENOENT) or ()
        return set(found)

    async def has_rules(self, mark: int) -> bool:
        """Whether each family that the kernel has has one rule, with this mark."""
        return all([await self._rules(family) in (None, [_rule(family, mark)]) for family in FAMILIES])

    async def ensure_rules(self, mark: int) -> list[str]:
        """Have one rule for each family of the kernel, with this mark; returns what was not so. Raises KernelError."""
        wrong: list[str] = []
        for family in FAMILIES:
            right = _rule(family, mark)
            if (found := await self._rules(family)) is None:
                continue
            changes = [message(RTM_DELRULE, 0, rule) for rule in found if rule != right]
            if right not in found:
                changes.append(message(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, right))
            refused = await self.netlink.transact(changes)
            rule = "write the rule that delivers packets to VIPs"
            raise_refusal(refused, rule, "trying again", {errno.ENOENT, errno.EEXIST})
            wrong += ["the rule of direct return was missing or another"] if changes else []
        return wrong

    async def write(self, changes: Sequence[Steer]) -> list[Failure[Steer]]:
        """Make the changes in order; those that the kernel refuses do not stop the others."""
        index = interface_index("lo") or 1
        return await self.write_each(changes, partial(_encode, index), {errno.EEXIST, errno.ESRCH})

    async def remove(self) -> bool:
        """Delete the routes, then the rules; returns whether there were any. Raises KernelError."""
        addresses = await self.read()
        for failure in await self.write([Steer(address, is_wanted=False) for address in sorted(addresses)]):
            raise KernelError(str(failure), errno=failure.errno)
        rules = [rule for family in FAMILIES for rule in await self._rules(family) or ()]
        await self.netlink.transact([message(RTM_DELRULE, 0, rule) for rule in rules])
        return bool(addresses or rules)

    async def _rules(self, family: int) -> list[bytes] | None:
        """The rules of a family that are ours; None if the kernel is without that family."""
        lacks_family = (errno.EAFNOSUPPORT, errno.EOPNOTSUPP) if family == socket.AF_INET6 else ()
        return await none_if_refused(self.netlink.request(listing(RTM_GETRULE, family), _parse_rule), *lacks_family)


def own_rule(family: int, priority: int, selector: bytes, source_length: int = 0) -> bytes:
    """The payload of a rule that sends what the attributes `selector` select to TABLE."""
    header = ROUTE_HEADER.pack(family, 0, source_length, 0, 0, 0, 0, FR_ACT_TO_TBL, 0)
    return header + selector + u32(FRA_PRIORITY, priority) + u32(FRA_TABLE, TABLE) + u8(FRA_PROTOCOL, PROTOCOL)


def is_own_rule(found: Mapping[int, bytes]) -> bool:
    """Whether these are the attributes of a rule that `own_rule` has made."""
    return number_in(found, FRA_TABLE) == TABLE and found.get(FRA_PROTOCOL) == bytes([PROTOCOL])


def _rule(family: int, mark: int) -> bytes:
    return own_rule(family, PRIORITY, u32(FRA_FWMARK, mark) + u32(FRA_FWMASK, mark))


def _parse_rule(payload: bytes) -> bytes | None:
    """A rule of ours, as `_rule` writes it; None for any other."""
    found = attributes(payload, ROUTE_HEADER.size)
    is_ours = is_own_rule(found) and FRA_FWMARK in found and found.get(FRA_FWMASK) == found[FRA_FWMARK]
    return _rule(payload[0], number_in(found, FRA_FWMARK)) if is_ours else None


def _encode(index: int, change: Steer) -> bytes:
    packed, family = pack_address(change.address), address_family(change.address)
    header = ROUTE_HEADER.pack(family, len(packed) * 8, 0, 0, 0, PROTOCOL, RT_SCOPE_HOST, RTN_LOCAL, 0)
    body = header + attribute(RTA_DST, packed) + u32(RTA_OIF, index) + u32(RTA_TABLE, TABLE)
    if change.is_wanted:
        return message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, body)
    return message(RTM_DELROUTE, 0, body)


def _parse_route(payload: bytes) -> str | None:
    _, _, _, _, table, protocol, _, kind, _ = ROUTE_HEADER.unpack_from(payload)
    found = attributes(payload, ROUTE_HEADER.size)
    is_ours = (number_in(found, RTA_TABLE, table), protocol, kind) == (TABLE, PROTOCOL, RTN_LOCAL)
    return unpack_address(found[RTA_DST]) if is_ours and RTA_DST in found else None
