"""A storm of changes, at a constant rate: whether the agent keeps up, and loses none."""

import asyncio
import time

from bench.phases.cost import percentile
from bench.phases.lengths import Figures, Lengths
from bench.phases.session import Session
from bench.workload import PORT, TARGET_PORT

RATE = 100
"""Changes per second."""


async def storm(session: Session, lengths: Lengths) -> Figures:
    """Replace endpoints at a constant rate."""
    seconds = lengths.storm
    async with session.measured() as cost:
        began = time.monotonic()
        series = [await _sample(session, began)]
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_watch_storm(session, began, series))
            blown = await _blow(session, round(seconds * RATE))
            await session.calm()
            watcher.cancel()
    expected = session.expected_table()
    lost = await session.node.ask("differences", expected=expected, port=PORT, target_port=TARGET_PORT)
    resident = [sample["rss"] for sample in series]
    half = max(1, len(resident) // 2)
    return {
        **cost.figures(),
        "changes": round(seconds * RATE),
        "seconds": blown,
        "behind_max": max(sample["behind"] for sample in series),
        "lost": lost,
        "p50": percentile(cost.latencies, 50),
        "p99": percentile(cost.latencies, 99),
        "cpu_share": cost.cpu / cost.wall,
        "rss_first_half": max(resident[:half]),
        "rss_second_half": max(resident[half:], default=resident[-1]),
        "series": series,
    }


async def _blow(session: Session, changes: int) -> float:
    """Make the changes. Returns the seconds that they took."""
    began = time.monotonic()
    for number in range(changes):
        session.apply(session.next_slice(number * 7 % session.workload.services))
        ahead = began + (number + 1) / RATE - time.monotonic()
        if ahead > 0:
            await asyncio.sleep(ahead)
    return time.monotonic() - began


async def _watch_storm(session: Session, began: float, series: list[dict[str, float]]) -> None:
    """Add a sample once a second."""
    while True:
        await asyncio.sleep(1)
        series.append(await _sample(session, began))


async def _sample(session: Session, began: float) -> dict[str, float]:
    """How long the oldest pending change has waited, the memory, and the deepest queue."""
    statistics = await session.statistics()
    now = time.monotonic()
    return {
        "at": now - began,
        "behind": session.unread_for(statistics, now) + statistics.latency.oldest,
        "rss": statistics.memory.resident,
        "depth": max((it.depth for it in statistics.queues), default=0),
    }
