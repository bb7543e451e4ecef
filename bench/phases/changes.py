"""Single changes of endpoints, Services and weights, each alone, while the agent has its default settings."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from bench.phases.cost import percentile
from bench.phases.lengths import Figures, Lengths
from bench.phases.session import Session
from bench.workload import Object

_CHANGE_SPACING = 0.08
_SERVICE_SPACING = 0.4
_COUNTED = 5
"""Changes of a weight whose messages are counted one by one."""


async def updates(session: Session, lengths: Lengths) -> Figures:
    """Replace one endpoint of one Service after the other."""
    step = max(1, session.workload.services // lengths.changes)

    def changed(number: int) -> Object:
        return session.next_slice(number * step % session.workload.services)

    return await _single(session, lengths.changes, changed)


async def weights(session: Session, lengths: Lengths) -> Figures:
    """Change the weight of one real server, by the annotation of a Service whose endpoints are on ten nodes."""
    number = 2 * session.workload.services
    session.apply(session.workload.spread_service(number, 1))
    session.apply(session.workload.spread_slice(number))
    await asyncio.sleep(1)
    await session.calm()

    def changed(turn: int) -> Object:
        return session.workload.spread_service(number, turn % 7 + 2)

    messages = []
    for turn in range(_COUNTED):
        before = await session.statistics()
        session.apply(changed(turn))
        await asyncio.sleep(_SERVICE_SPACING)
        await session.calm()
        after = await session.statistics()
        messages.append(after.sockets["ipvs"].messages - before.sockets["ipvs"].messages)
    await asyncio.sleep(_SERVICE_SPACING)
    figures = await _single(session, lengths.weights, lambda turn: changed(turn + _COUNTED))
    session.delete_service(number)
    await asyncio.sleep(1)
    await session.calm()
    return {**figures, "messages_each": median(messages)}


async def _single(session: Session, count: int, changed: Callable[[int], Object]) -> Figures:
    """Make so many changes, one after the other. Times are from the API server, which has an object as it is to be, to
    the changed kernel.
    """
    await session.compare_clocks()
    sent = []
    async with session.measured() as cost:
        for number in range(count):
            item = changed(number)
            sent.append(time.time())
            session.apply(item)
            await asyncio.sleep(_CHANGE_SPACING)
    taken = sorted(time_taken(sent, await session.completions()))
    return {
        **cost.figures(),
        "measured": len(taken),
        "p50": percentile(taken, 50),
        "p99": percentile(taken, 99),
        "max": percentile(taken, 100),
        "p50_from_watcher": percentile(cost.latencies, 50),
        "cpu_per_change": cost.cpu / count,
        "rss": (await session.memory())["now"],
        "latencies": [round(it, 6) for it in taken],
    }


def time_taken(sent: Sequence[float], completions: Sequence[float]) -> list[float]:
    """The time from each moment to its completion: each in turn if there are as many, however late they came.

    Else some were completed at once.
    """
    completed = [it for it in completions if it >= sent[0]]
    if len(completed) == len(sent):
        return [end - begin for begin, end in zip(sent, completed, strict=True)]
    return delays(sent, completed)


def delays(sent: Sequence[float], completed: Sequence[float]) -> list[float]:
    """The time from each moment to the last completion before the next moment. `completed` is sorted."""
    taken = []
    for begin, end in pairwise([*sent, float("inf")]):
        last = bisect_left(completed, end) - 1
        if last >= 0 and completed[last] >= begin:
            taken.append(completed[last] - begin)
    return taken


async def additions_and_deletions(session: Session, lengths: Lengths) -> dict[str, Figures]:
    """Add Services, then delete them, each alone. The time is from the API's change to the kernel's last change."""
    first = session.workload.services
    numbers = range(first, first + lengths.services)
    results = {}
    for name, change in (("add", session.add_service), ("delete", session.delete_service)):
        sent = []
        async with session.measured() as cost:
            for number in numbers:
                sent.append(time.time())
                change(number)
                await asyncio.sleep(_SERVICE_SPACING)
        taken = sorted(delays(sent, _logged(await session.node.ask("log"), session.clock_ahead)))
        results[name] = {
            **cost.figures(),
            "measured": len(taken),
            "p50": percentile(taken, 50),
            "max": percentile(taken, 100),
            "cpu_per_change": cost.cpu / len(numbers),
        }
    return results


def _logged(log: list[dict[str, Any]], clock_ahead: float) -> list[float]:
    """When each line was logged."""
    return sorted(datetime.fromisoformat(line["timestamp"]).timestamp() - clock_ahead for line in log)
