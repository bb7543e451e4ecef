"""A start, on an empty kernel or on one that holds everything: from the start of the process to the last object."""

import asyncio
from datetime import datetime
from itertools import pairwise
from typing import Any

from bench.phases.cost import IPVS, Cost
from bench.phases.lengths import BenchError, Figures
from bench.phases.session import Session
from bench.place.batch_tools import expected_content

_SETTLES_WITHIN = 2.0
_STEPS = (
    ("start_to_list", "first list"),
    ("list_to_listed", "list.complete"),
    ("listed_to_published", "plans.first_published"),
    ("published_to_ready", "kroute.ready"),
)
"""The steps of a start, each with the event that ends it, in the log or at the API server."""


async def start(session: Session, *, profile: bool = False) -> Figures:
    """Start the agent. Returns the seconds from each step of its start to the next, and the costs.

    `cpu` is what the node used from the start of the process until it was ready, `agent_cpu` the process by its own
    count. Raises BenchError if the kernel does not hold everything.
    """
    await session.compare_clocks()
    cpu = session.node.cpu()
    started = await session.start_agent(profile=profile)
    cpu = session.node.cpu() - cpu
    cost = await session.cost_since_start(started)
    if await _went_live_unprepared(session):
        await session.complete()
        cost = await session.cost_since_start(started)
    steps = await _steps(session, started, cost)
    await asyncio.sleep(_SETTLES_WITHIN)
    memory = await session.memory()
    found, expected = await session.node.ask("content"), expected_content(session.workload)
    if found != expected:
        raise BenchError(f"the kernel has {found} instead of {expected}")
    assert cost.end is not None
    ipvs = cost.end.sockets[IPVS]
    return {
        **cost.figures(),
        **steps,
        "cpu": cpu - session.baseline * steps["start_to_ready"],
        "agent_cpu": cost.end.cpu,
        "ipvs": ipvs.last - ipvs.first,
        "ipvs_in_kernel": ipvs.seconds,
        "rss_peak": memory["peak"],
        "rss_settled": memory["now"],
    }


async def _went_live_unprepared(session: Session) -> bool:
    """Whether a VIP has waited for long enough: on a slow machine what it waited for comes when the agent is ready."""
    return any(line["event"] == "service.unprepared" for line in await session.node.ask("log"))


async def _steps(session: Session, started: float, cost: Cost) -> dict[str, float]:
    """The seconds between the steps of a start. `list_to_ready` begins with the agent's first list request."""
    times = {event: at - session.clock_ahead for event, at in moments(await session.node.ask("log")).items()}
    times["first list"] = session.first_list
    reached = [("start", started), *((name, times[event]) for name, event in _STEPS if event in times)]
    steps = {name: at - before for (_, before), (name, at) in pairwise(reached)}
    steps["list_to_ready"] = times["kroute.ready"] - session.first_list
    steps["start_to_ready"] = times["kroute.ready"] - started
    assert cost.end is not None
    if first_server := cost.end.sockets[IPVS].first:
        steps["list_to_first_server"] = first_server + session.epoch_of(cost.end) - session.first_list
    return steps


def moments(log: list[dict[str, Any]]) -> dict[str, float]:
    """The Unix time at which each event was logged until the agent was ready; of several of one kind the last."""
    times: dict[str, float] = {}
    for line in log:
        times[line["event"]] = datetime.fromisoformat(line["timestamp"]).timestamp()
        if line["event"] == "kroute.ready":
            break
    return times
