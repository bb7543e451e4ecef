"""The measurements, phase by phase. Each returns numbers under names that bench/report.py knows."""

import asyncio
import contextlib
import time
from datetime import datetime
from typing import Any, NamedTuple

from bench.batch_tools import expected_content
from bench.session import Cost, Session, percentile
from bench.workload import PORT, TARGET_PORT

Figures = dict[str, Any]

NEVER = "24h"
"""The resync period while single changes are measured, so that no resync happens."""
USUAL_SECONDS = 30
USUAL = f"{USUAL_SECONDS}s"
"""The default resync period, so that resyncs happen as on every node."""


class Lengths(NamedTuple):
    """The size of each phase: single changes, Services added, seconds of storm and of idling, resyncs.

    The node's use of the processor at rest is measured for `calm` seconds: several of the kernel's two-second rounds of
    IPVS estimation.
    """

    changes: int
    services: int
    storm: float
    idle: float
    resyncs: int
    calm: float


FULL = Lengths(changes=200, services=20, storm=60.0, idle=60.0, resyncs=1, calm=6.0)
QUICK = Lengths(changes=60, services=8, storm=15.0, idle=15.0, resyncs=1, calm=4.0)

STORM_RATE = 100
"""Changes per second."""
_CHANGE_SPACING = 0.08
_SERVICE_SPACING = 0.4
_CALM_WITHIN = 120.0
_RESYNC_WITHIN = 300.0


class BenchError(Exception):
    """The state after a measurement is wrong, so its figures would be meaningless."""


async def start(session: Session, resync_period: str, *, profile: bool = False) -> Figures:
    """Start the agent. Returns the seconds from each step of its start to the next, and the costs."""
    cpu = session.node.cpu()
    started = await session.start_agent(resync_period, profile=profile)
    cpu = session.node.cpu() - cpu
    cost = await session.cost_since_start(started)
    steps = await _steps(session, started, cost)
    settled = await _settled_memory(session)
    await _check(session, expected_content(session.workload))
    assert cost.end is not None
    ipvs = cost.end.sockets["ipvs"]
    return {
        **_figures(cost),
        **steps,
        "cpu": cpu - session.baseline * steps["start_to_ready"],
        "ipvs": ipvs.last - ipvs.first,
        "ipvs_in_kernel": ipvs.seconds,
        "rss_peak": settled["peak"],
        "rss_settled": settled["now"],
    }


async def _steps(session: Session, started: float, cost: Cost) -> dict[str, float]:
    """The seconds between the steps of a start. `list_to_ready` begins with the agent's first list request."""
    log = await session.node.ask("log")
    times: dict[str, float] = {}
    for line in log:
        at = datetime.fromisoformat(line["timestamp"]).timestamp() - session.clock_ahead
        times[line["event"]] = at  # the last event of its kind counts
    listed = session.first_list
    statistics = cost.end
    assert statistics is not None
    steps = {
        "start_to_list": listed - started,
        "list_to_listed": times["list.complete"] - listed,
        "listed_to_published": times["plans.first_published"] - times["list.complete"],
        "published_to_ready": times["kroute.ready"] - times["plans.first_published"],
        "list_to_ready": times["kroute.ready"] - listed,
        "start_to_ready": times["kroute.ready"] - started,
    }
    if first_server := statistics.sockets["ipvs"].first:
        steps["list_to_first_server"] = first_server + session.epoch_of(statistics) - listed
    return steps


async def _settled_memory(session: Session) -> dict[str, int]:
    await asyncio.sleep(2)
    memory: dict[str, int] = await session.node.ask("memory")
    return memory


async def _check(session: Session, expected: dict[str, int]) -> None:
    found = await session.node.ask("content")
    if found != expected:
        raise BenchError(f"the kernel has {found} instead of {expected}")


async def updates(session: Session, lengths: Lengths) -> Figures:
    """Replace one endpoint of one Service after the other, each alone."""
    count = lengths.changes
    step = max(1, session.workload.services // count)
    async with session.measured() as cost:
        for number in range(count):
            session.change_slice(session.next_slice(number * step % session.workload.services))
            await asyncio.sleep(_CHANGE_SPACING)
    return {
        **_figures(cost),
        "measured": len(cost.latencies),
        "p50": percentile(cost.latencies, 50),
        "p99": percentile(cost.latencies, 99),
        "max": percentile(cost.latencies, 100),
        "cpu_per_change": cost.cpu / count,
        "latencies": cost.latencies,
    }


async def additions_and_deletions(session: Session, lengths: Lengths) -> dict[str, Figures]:
    """Add Services, then delete them, each alone. The time is from the API's change to the kernel's last change."""
    first = session.workload.services
    numbers = range(first, first + lengths.services)
    results = {}
    for name, change in (("add", session.add_service), ("delete", session.delete_service)):
        moments = []
        async with session.measured() as cost:
            for number in numbers:
                moments.append(time.time())
                change(number)
                await asyncio.sleep(_SERVICE_SPACING)
        taken = sorted(_last_changes(await session.node.ask("log"), moments, session.clock_ahead))
        results[name] = {
            **_figures(cost),
            "measured": len(taken),
            "p50": percentile(taken, 50),
            "max": percentile(taken, 100),
            "cpu_per_change": cost.cpu / len(numbers),
        }
    return results


def _last_changes(log: list[dict[str, Any]], moments: list[float], clock_ahead: float) -> list[float]:
    """The time from each moment to the last line that was logged before the next moment."""
    times = [datetime.fromisoformat(line["timestamp"]).timestamp() - clock_ahead for line in log]
    taken = []
    for begin, end in zip(moments, [*moments[1:], moments[-1] + _SERVICE_SPACING], strict=True):
        within = [at for at in times if begin <= at < end]
        if within:
            taken.append(max(within) - begin)
    return taken


async def storm(session: Session, lengths: Lengths) -> Figures:
    """Replace endpoints at a constant rate, for the seconds in `lengths` or until a tenth of all endpoints is replaced.

    The longer of the two applies; with QUICK lengths only the seconds.
    """
    seconds = max(lengths.storm, session.workload.pods / 10 / STORM_RATE if lengths is FULL else 0)
    series: list[dict[str, float]] = []
    async with session.measured() as cost:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_watch_storm(session, began, series))
            await _blow(session, began, round(seconds * STORM_RATE))
            blown = time.monotonic() - began
            await _calm(session)
            watcher.cancel()
    expected = session.expected_table()
    lost = await session.node.ask("differences", expected=expected, port=PORT, target_port=TARGET_PORT)
    resident = [sample["rss"] for sample in series]
    half = max(1, len(resident) // 2)
    return {
        **_figures(cost),
        "changes": round(seconds * STORM_RATE),
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


async def _blow(session: Session, began: float, changes: int) -> None:
    for number in range(changes):
        session.change_slice(session.next_slice(number * 7 % session.workload.services))
        ahead = began + (number + 1) / STORM_RATE - time.monotonic()
        if ahead > 0:
            await asyncio.sleep(ahead)


async def _watch_storm(session: Session, began: float, series: list[dict[str, float]]) -> None:
    """Sample once a second how long the oldest pending change has waited, the memory, and the deepest queue."""
    while True:
        statistics = await session.statistics()
        now = time.monotonic()
        unread = session.unread_for(statistics.watches["EndpointSlice"].resource_version, now)
        series.append(
            {
                "at": now - began,
                "behind": unread + statistics.latency.oldest,
                "rss": statistics.memory.resident,
                "depth": max((it.depth for it in statistics.queues), default=0),
            }
        )
        await asyncio.sleep(1)


async def _calm(session: Session) -> None:
    """Wait until every change is in the kernel, for two minutes at most.

    Changes that are missing then count as lost.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CALM_WITHIN):
            while True:
                if await _is_calm(session):
                    return
                await asyncio.sleep(0.2)


async def _is_calm(session: Session) -> bool:
    statistics = await session.statistics()
    unread = session.unread_for(statistics.watches["EndpointSlice"].resource_version, time.monotonic())
    return unread <= 0 and not statistics.latency.waiting


async def idle(session: Session, lengths: Lengths) -> float:
    """The share of a processor that the whole node uses while nothing changes and no resync happens."""
    began, before = time.monotonic(), session.node.cpu()
    await asyncio.sleep(lengths.idle)
    return (session.node.cpu() - before) / (time.monotonic() - began)


async def resync(session: Session, lengths: Lengths) -> Figures:
    """Wait for resyncs of all controllers. The slowest counts."""
    costs = []
    for _ in range(lengths.resyncs):
        async with session.measured() as cost:
            await _resynced(session)
        costs.append(cost)
    slowest = max(costs, key=lambda it: it.busy)
    return {**_figures(slowest), "seconds": slowest.busy}


async def _resynced(session: Session) -> None:
    """Wait until every controller has resynced once more, and one second longer."""
    before = {name: it.last_resync for name, it in (await session.statistics()).controllers.items()}
    due = max(before.values()) + USUAL_SECONDS - session.clock_ahead - time.time()
    await asyncio.sleep(max(0.0, due))  # no questions meanwhile: their answers would count as part of the resync
    async with asyncio.timeout(_RESYNC_WITHIN):
        while True:
            await asyncio.sleep(1)
            now = (await session.statistics()).controllers
            if all(it.last_resync > before[name] for name, it in now.items()):
                break
    await asyncio.sleep(1)


def _figures(cost: Cost) -> Figures:
    return {
        "wall": cost.wall,
        "cpu": cost.cpu,
        "writes": cost.writes,
        "messages": cost.messages,
        "bytes": cost.bytes,
        "busy": cost.busy,
        "longest_round": cost.longest_round,
        "rounds_over_20_ms": cost.rounds_over_20_ms,
        "rounds_over_200_ms": cost.rounds_over_200_ms,
    }
