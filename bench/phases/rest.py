"""Nothing to do: what an agent costs while nothing changes."""

import asyncio
import time

from bench.phases.lengths import Figures, Lengths
from bench.phases.session import Session


async def idle(session: Session, lengths: Lengths) -> Figures:
    """What the whole node uses while nothing changes, with the default settings: all resyncs are included.

    `node_share` is a share of a processor. It includes what the node uses without kroute.
    """
    before = await session.statistics()
    began, cpu = time.monotonic(), session.node.cpu()
    await asyncio.sleep(lengths.idle)
    share = (session.node.cpu() - cpu) / (time.monotonic() - began)
    rounds = [it.seconds for it in (await session.newest()).rounds if it.end > before.now]
    after = await session.statistics()
    return {
        "node_share": share,
        "agent_share": (after.cpu - before.cpu) / (after.now - before.now),
        "longest_round": max(rounds, default=0.0),
        "rss": (await session.memory())["now"],
    }
