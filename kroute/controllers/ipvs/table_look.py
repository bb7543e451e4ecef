"""Looks at the IPVS table between two resyncs.

IPVS reports no changes, and has no generation. But the outlines of all IPv4 virtual servers come in one system call.
Compared with those of the last look they show each that is missing, new, or has other options, or more or fewer real
servers, except where kroute itself has written meanwhile: there they are compared with what it wrote.

The rest, which is all of IPv6, and weights and exchanged real servers of IPv4, is read of some virtual servers in each
look, mostly of IPv6, as many as their share of a processor allows.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, cycle, repeat

from kroute.kernel.clients import VirtualServerTable
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import IpvsChange, RealServerKey, VirtualServerState
from kroute.kernel.ipvs.outlines import Outlines, outline_key, parse_outline, parse_outline_key
from kroute.model.plan import VirtualServer, VirtualServerKey
from kroute.reconcile.batches import sliced
from kroute.reconcile.comparison.virtual_servers import (
    agrees,
    in_terms_of_plans,
    matches_exactly,
    options_of,
    planned_key,
)
from kroute.settings import Settings

SHARE_OF_LOOKS = 1 / 2
"""The part of `Settings.resync_budget` that may be spent on reading virtual servers singly, if some are of IPv6."""
SHARE_OF_IPV4 = 1 / 16
"""The same if all are of IPv4: what is missing shows in their outlines."""
LEAST_OF_IPV6 = 1024
"""How many virtual servers of IPv6 are read in a look at least: nothing else shows that one of their real servers is
missing. It takes some 50 us for each."""
LEAST_A_LOOK = 64
"""How many virtual servers are read in a look beside those, at least, whatever that costs: about a millisecond of IPv4,
and some of IPv6."""
LEAST_OF_IPV4 = 16
"""The same if all are of IPv4."""
READ_TOGETHER = 16
"""Virtual servers that are read between two measurements of their cost."""

Applied = Mapping[VirtualServerKey, VirtualServer]
Draining = Callable[[VirtualServerKey], Collection[RealServerKey]]
Ours = Callable[[], Set[VirtualServerKey]]


class TableLook:
    """Knows what the table was at the last look, and what kroute itself has written since.

    `clock` returns seconds. It is not the processor's, which some kernels count in ticks longer than a look: on a busy
    machine a look reads less.
    """

    def __init__(
        self, ipvs: VirtualServerTable, settings: Settings, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.table = ipvs
        self._budget = settings.resync_period * settings.resync_budget
        self._clock = clock
        self._outlines: Outlines | None = None
        self._written: set[VirtualServerKey] = set()
        self._turns: dict[bool, list[VirtualServerKey]] = {True: [], False: []}

    def wrote(self, changes: Iterable[IpvsChange]) -> None:
        """Remember whose outlines may differ because kroute itself writes these changes."""
        self._written.update(map(planned_key, {change.key for change in changes}))

    async def begin(self) -> None:
        """Note the table as it is before a scan. What changes after this, the next look shows."""
        self._written.clear()
        self._outlines = None
        try:
            self._outlines = await self.table.outlines()
        except KernelError:
            return  # the next look says that anything may have changed

    async def finds_change(self, applied: Applied, draining: Draining, ours: Ours) -> bool:
        """Whether others may have changed a virtual server of `ours`, or one of its real servers.

        `applied` is what kroute knows to be in the kernel, without real servers that are `draining`. Raises
        KernelError, which says as little as a change.
        """
        before, written = self._outlines, set(self._written)
        if before is None:
            return True
        now = await self.table.outlines()
        if (now != before or written) and await _differs(before, now, written, ours(), applied, draining):
            return True
        if not await self._are_some_as_applied(applied, draining):
            return True
        self._outlines = now
        self._written = self._written - written  # a new set: one that was large keeps its table
        return False

    async def _are_some_as_applied(self, applied: Applied, draining: Draining) -> bool:
        """Whether the kernel has the real servers of those whose turn it is, and of IPv6 the options."""
        begun, read = self._clock(), 0
        self._begin_rounds(applied)
        if self._turns[True]:
            seconds = self._budget * SHARE_OF_LOOKS
            least = LEAST_A_LOOK + min(LEAST_OF_IPV6, len(self._turns[True]))
        else:
            seconds, least = self._budget * SHARE_OF_IPV4, LEAST_OF_IPV4
        for keys in self._in_turn():
            if not await self._are_as_applied(keys, applied, draining):
                return False
            read += len(keys)
            if read >= least and self._clock() - begun >= seconds:
                break
            await asyncio.sleep(0)
        return True

    async def _are_as_applied(self, keys: Sequence[VirtualServerKey], applied: Applied, draining: Draining) -> bool:
        """The same of these virtual servers, which are of one family."""
        is_ipv6 = ":" in keys[0].address
        found = await (self.table.real_servers(keys) if is_ipv6 else self.table.ipv4_real_servers(keys))
        options = await self.table.options(keys) if is_ipv6 else {}
        for key in keys:
            if (server := applied.get(key)) is None:
                continue
            state, drains = VirtualServerState(options.get(key, options_of(server)), found[key]), draining(key)
            if matches_exactly(state, server):
                continue
            # One that drains and has a weight does not drain: another program has given it that weight.
            idle = {real for real in drains if real in found[key] and not found[key][real].weight}
            if not agrees(in_terms_of_plans(key, state, idle), server, drains):
                return False
        return True

    def _begin_rounds(self, applied: Applied) -> None:
        """Let everybody of a family have a turn again, if all had theirs."""
        for is_ipv6, turn in self._turns.items():
            if not turn:
                turn += [key for key in applied if (":" in key.address) == is_ipv6]

    def _in_turn(self) -> Iterator[list[VirtualServerKey]]:
        """The virtual servers whose turn it is, in small lists: first of IPv6, then three of IPv6 to one of IPv4."""
        ipv6, ipv4 = self._turns[True], self._turns[False]
        for turn in chain(repeat(ipv6, LEAST_OF_IPV6 // READ_TOGETHER), cycle((ipv6, ipv6, ipv6, ipv4))):
            if turn:
                keys = turn[-READ_TOGETHER:]
                del turn[-READ_TOGETHER:]  # not after `yield`: a caller that has enough never comes back to there
                yield keys
            elif not (ipv6 or ipv4):
                return


async def _differs(
    before: Outlines,
    now: Outlines,
    written: Set[VirtualServerKey],
    ours: Set[VirtualServerKey],
    applied: Applied,
    draining: Draining,
) -> bool:
    """Whether the outlines of `ours` are others than before or, of those that kroute has `written`, than that.

    Foreign ones may have a protocol that no plan knows.
    """
    listed, own = now.parsed(), {outline_key(key): key for key in written if ":" not in key.address}
    others = {parse_outline_key(key) for key, _ in listed.items() ^ before.parsed().items() if key not in own}
    if not others.isdisjoint(ours):
        return True
    async for part in sliced(own.items()):
        for outline, key in part:
            if key in ours and not _is_as_written(listed.get(outline), applied.get(key), draining(key)):
                return True
    return False


def _is_as_written(outline: bytes | None, server: VirtualServer | None, draining: Collection[RealServerKey]) -> bool:
    """Whether the kernel's outline is that of what kroute has written."""
    if outline is None or server is None:
        return outline is None and server is None
    return parse_outline(outline) == (options_of(server), len(server.real_servers) + len(draining))
