"""Nothing to do: what an agent costs while nothing changes."""

import asyncio
import time
from collections.abc import Mapping

from bench.phases.lengths import Figures, Lengths
from bench.phases.session import Session
from kroute.reconcile.pass_status import ControllerStatistics

Controllers = Mapping[str, ControllerStatistics]


async def idle(session: Session, lengths: Lengths) -> Figures:
    """What the node uses while nothing changes, with the default settings, beyond the session's baseline.

    `looks_share` is the share of a processor in that time, `resyncs_share` what resyncs and digests that are due less
    often than that take on average; `cpu_share` is both.
    """
    before = await session.statistics()
    figures = await at_rest(session, lengths.idle)
    looks = figures["node_share"] - session.baseline
    rare = rare_resyncs(before.controllers, (await session.statistics()).controllers)
    return {**figures, "cpu_share": looks + rare, "looks_share": looks, "resyncs_share": rare}


async def at_rest(session: Session, seconds: float) -> Figures:
    """What the node uses for so many seconds in which nothing changes.

    `node_share` is the share of a processor, with what the node uses without an agent; `agent_share` is the agent's
    own count of its processor time.
    """
    before = await session.statistics()
    began, cpu = time.monotonic(), session.node.cpu()
    await asyncio.sleep(seconds)
    node_share = (session.node.cpu() - cpu) / (time.monotonic() - began)
    rounds = [it.seconds for it in (await session.newest()).rounds if it.end > before.now]
    after = await session.statistics()
    return {
        "node_share": node_share,
        "agent_share": (after.cpu - before.cpu) / (after.now - before.now),
        "looks": _total("looks", after.controllers) - _total("looks", before.controllers),
        "resyncs": _total("resyncs", after.controllers) - _total("resyncs", before.controllers),
        "longest_round": max(rounds, default=0.0),
        "rss": (await session.memory())["now"],
    }


def rare_resyncs(before: Controllers, after: Controllers) -> float:
    """The share of a processor that the resyncs and digests take of controllers that had none between two moments."""
    share = 0.0
    for name, it in after.items():
        if it.resyncs == before[name].resyncs and it.resync_pause:
            share += it.resync_cost / it.resync_pause
        if it.digests == before[name].digests and it.digest_pause:
            share += it.digest_cost / it.digest_pause
    return share


def _total(counter: str, controllers: Controllers) -> int:
    return sum(getattr(it, counter) for it in controllers.values())
