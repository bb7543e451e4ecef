"""Logs the packets that network policies refuse, with the names of pods and policies: `--policy-log`.

The firewall logs some packets of each group, and counts all (`PolicyFirewall`). Of those that it logs, up to
LINES_A_SECOND get a line. How many others there were, the counters say some seconds later.
"""

import asyncio
import errno
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from typing import Protocol

import msgspec
import structlog

from kroute.base.backoff import Backoff
from kroute.inspect.policies import Enforced
from kroute.inspect.refusals import Refusals, RefusedPacket
from kroute.kernel.errors import KernelError
from kroute.kernel.packet_log import LoggedPacket
from kroute.model.policy_plan import GroupKey
from kroute.planning.policies.verdicts import first_of

log = structlog.get_logger(__name__)

LINES_A_SECOND = 10
COUNTED_AFTER = 10.0
"""Seconds from the first packet to a look at the counters, and between such looks until one finds nothing new."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts to read packets."""
_NEXT_STEPS = {
    errno.EPERM: "set --policy-log-group to a number that no other program has",
    errno.EINVAL: "load the module nfnetlink_log",
}
"""By the errno with which the kernel refuses to send packets."""
_PROTOCOLS = {1: "ICMP", 6: "TCP", 17: "UDP", 33: "DCCP", 58: "ICMPv6", 132: "SCTP", 136: "UDP-Lite"}
_APART = frozenset({"number", "time"})
"""Of a packet, what its line in the log has of its own."""


class Packets(Protocol):
    """Where logged packets come from (`kroute.kernel.packet_log.PacketLog`)."""

    async def next(self) -> list[LoggedPacket]: ...


class PolicyLog:
    """Logs what these policies refuse, and keeps it in `refusals`. `open_packets` asks the kernel for packets."""

    def __init__(
        self,
        policies: Enforced,
        refusals: Refusals,
        open_packets: Callable[[], AbstractAsyncContextManager[Packets]],
    ) -> None:
        self._policies = policies
        self._refusals = refusals
        self._open_packets = open_packets
        self._groups: Mapping[str, GroupKey] = {}
        """Groups by their names."""
        self._counts: Mapping[str, int] = {}
        """What each group had refused when the counters were last read."""
        self._lines = 0
        """How many packets have got a line since then."""
        self._due: float | None = None
        """When the counters are read again, on the loop's clock."""
        self._second = (0.0, 0)
        """When the last second with lines began, and how many it has."""

    async def run(self) -> None:
        """Log until cancelled. The firewall has written its rules: what it has refused before is not said."""
        backoff, said = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), ""
        while True:
            try:
                async with self._open_packets() as packets:
                    self._counts, self._lines, self._due = await self._policies.firewall.refused(), 0, None
                    log.info("policy_log.opened")
                    backoff.reset()
                    said = ""
                    await self._follow(packets)
            except KernelError as error:
                if str(error) != said:
                    next_step = _NEXT_STEPS.get(error.errno or 0, "trying again")
                    log.warning("policy_log.unavailable", error=str(error), next_step=next_step)
                said = str(error)
            await asyncio.sleep(backoff.delay())

    async def _follow(self, packets: Packets) -> None:
        """Log packets as they come. Raises KernelError."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._due):
                    self._take(await packets.next(), loop.time())
            if self._due is not None and loop.time() >= self._due:
                is_quiet = not await self._count_others()
                self._due = None if is_quiet else loop.time() + COUNTED_AFTER
            await asyncio.sleep(0)

    def _take(self, packets: Iterable[LoggedPacket], now: float) -> None:
        for packet in packets:
            if self._due is None:
                self._due = now + COUNTED_AFTER
            began, lines = self._second
            if now - began >= 1:
                began, lines = now, 0
            elif lines == LINES_A_SECOND:
                return
            self._second = began, lines + 1
            if (refused := self._described(packet)) is not None:
                self._lines += 1
                self._refusals.add(refused)
                fields = msgspec.structs.asdict(refused).items()
                log.info("policy.refused", **{k: v for k, v in fields if k not in _APART and v not in (None, "")})

    async def _count_others(self) -> bool:
        """Say how many packets were refused that got no line. Returns whether there may be more of these.

        A group whose rules were written anew counts from 0.
        """
        try:
            counts = await self._policies.firewall.refused()
        except KernelError:
            return True
        known = ((count, self._counts.get(group, 0)) for group, count in counts.items())
        others = sum(count - before if count >= before else count for count, before in known) - self._lines
        self._counts, self._lines = counts, max(-others, 0)  # packets that have a line before they are counted
        if others > 0:
            self._refusals.leave_out(others)
            log.info("policy.more_refused", packets=others)
        return others > 0

    def _described(self, packet: LoggedPacket) -> RefusedPacket | None:
        """The packet with names; None if no group has its prefix: it has gone, or another program has logged it."""
        catalog, firewall = self._policies.catalog, self._policies.firewall
        if packet.prefix not in self._groups:
            self._groups = {firewall.group_name(key): key for key, _ in catalog.groups()}
        key = self._groups.get(packet.prefix)
        if key is None:
            return None
        return RefusedPacket(
            time=datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            direction=key.direction,
            protocol=_PROTOCOLS.get(packet.protocol, str(packet.protocol)),
            source=packet.source,
            source_port=packet.source_port,
            source_pod=str(catalog.pod_at(packet.source) or ""),
            destination=packet.destination,
            destination_port=packet.destination_port,
            destination_pod=str(catalog.pod_at(packet.destination) or ""),
            namespace=key.namespace,
            policies=first_of(policy.name for policy in key.policies),
            policies_total=len(key.policies),
            group=packet.prefix,
        )
