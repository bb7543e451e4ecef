"""Storms of changes, at a constant rate: whether the agent keeps up, and loses none."""

import asyncio
import math
import time
from collections import deque

from bench.phases.cost import percentile
from bench.phases.lengths import Figures
from bench.phases.session import Session
from bench.workload import PORT, TARGET_PORT

STORM, HURRICANE = 100, 1000
"""Changes per second of the phases of these names."""
_KEPT_LOOKS = 5
"""For how many looks the API stand-in remembers what the agent has read: a watch may continue a second before that."""


async def storm(session: Session, rate: int, seconds: float) -> Figures:
    """Replace endpoints at a constant rate."""
    async with session.measured() as cost:
        began = time.monotonic()
        seen = _Seen(session, began)
        await seen.look()
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(seen.watch())
            blown = await _blow(session, rate, round(seconds * rate))
            await session.calm()
            watcher.cancel()
        await seen.look()
    latencies = sorted(seen.latencies)
    expected = session.expected_table()
    lost = await session.node.ask("differences", expected=expected, port=PORT, target_port=TARGET_PORT)
    resident = [sample["rss"] for sample in seen.series]
    half = max(1, len(resident) // 2)
    return {
        **cost.figures(),
        "changes": round(seconds * rate),
        "seconds": blown,
        "behind_max": max(sample["behind"] for sample in seen.series),
        "lost": lost,
        "plans": len(latencies),
        "p50": percentile(latencies, 50),
        "p99": percentile(latencies, 99),
        "cpu_share": cost.cpu / cost.wall,
        "rss_first_half": max(resident[:half]),
        "rss_second_half": max(resident[half:], default=resident[-1]),
        "series": seen.series,
    }


async def _blow(session: Session, rate: int, changes: int) -> float:
    """Make the changes. Returns the seconds that they took."""
    began = time.monotonic()
    for number in range(changes):
        session.apply(session.next_slice(number * 7 % session.workload.services))
        await asyncio.sleep(max(0.0, began + (number + 1) / rate - time.monotonic()))
    return time.monotonic() - began


class _Seen:
    """What was seen of an agent in a storm: a sample each second, and the latency of each plan."""

    def __init__(self, session: Session, began: float) -> None:
        self.series: list[dict[str, float]] = []
        self.latencies: list[float] = []
        self._session = session
        self._began = began
        self._newest = math.inf
        self._read: deque[int] = deque(maxlen=_KEPT_LOOKS)

    async def watch(self) -> None:
        """Look once a second."""
        while True:
            await asyncio.sleep(1)
            await self.look()

    async def look(self) -> None:
        """How long the oldest pending change has waited, the memory, the deepest queue, and what is complete.

        The API stand-in forgets what the agent has read for a while: all of a hurricane is more than a gigabyte.
        """
        statistics = await self._session.statistics()
        now = time.monotonic()
        self.series.append(
            {
                "at": now - self._began,
                "behind": self._session.unread_for(statistics, now) + statistics.latency.oldest,
                "rss": statistics.memory.resident,
                "depth": max((it.depth for it in statistics.queues), default=0),
            }
        )
        measurements = (await self._session.newest()).latencies
        self.latencies += [it.seconds for it in measurements if it.end > self._newest]
        self._newest = max((it.end for it in measurements), default=statistics.now)
        self._read.append(int(statistics.watches["EndpointSlice"].resource_version))
        self._session.api.compact(self._read[0])
