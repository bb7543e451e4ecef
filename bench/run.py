"""One run of the bench: every size and phase in sequence, and the figures as plain data."""

import itertools
import os
import platform
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Set
from typing import Any

from bench import phases
from bench.node import NodeUnderTest, node_under_test
from bench.phases import Lengths
from bench.session import Session
from bench.workload import Workload
from tests.lab.mode import lab_mode
from tests.lab.places import PROJECT

PHASES = ("tools", "cold", "update", "services", "idle", "warm", "storm", "resync")
FIREWALLS = ("nftables", "iptables")
"""The backends, the preferred one first."""
_WITH_RESYNCS = {"warm", "storm", "resync"}

Say = Callable[[str], None]


async def run(
    sizes: Iterable[int],
    endpoints: int,
    lengths: Lengths,
    wanted: Set[str],
    say: Say,
    *,
    firewalls: Sequence[str] = FIREWALLS[:1],
    profile: bool = False,
) -> AsyncIterator[dict[str, Any]]:
    """Measure every size with every firewall backend, each on its own node.

    Yields the result so far after each node. `say` is called with the progress.
    """
    result: dict[str, Any] = {**_circumstances(), **lengths._asdict(), "runs": []}
    for services, firewall in itertools.product(sizes, firewalls):
        async with node_under_test() as node:
            workload = Workload(services, endpoints)
            result["runs"].append(await _measure(node, workload, firewall, lengths, wanted, say, profile))
        result["load_after"] = os.getloadavg()[0]
        yield result


async def _measure(
    node: NodeUnderTest,
    workload: Workload,
    firewall: str,
    lengths: Lengths,
    wanted: Set[str],
    say: Say,
    profile: bool,
) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "services": workload.services,
        "endpoints": workload.endpoints,
        "firewall": firewall,
    }
    began = time.monotonic()

    def done(**named: Any) -> None:
        figures.update(named)
        for name, value in named.items():
            short = {key: it for key, it in value.items() if key not in {"series", "latencies"}}
            say(f"{workload.services} Services, {firewall}, {time.monotonic() - began:.0f} s: {name} {_rounded(short)}")

    async with Session.open(node, workload, firewall) as session:
        if "tools" in wanted:
            cpu = node.cpu()
            done(tools=await node.ask("batch_tools", services=workload.services, endpoints=workload.endpoints))
            done(tools_cpu={"seconds": node.cpu() - cpu})
        await session.compare_clocks()
        await session.calibrate(lengths.calm)
        empty = session.baseline
        done(cold=await phases.start(session, phases.NEVER, profile=profile))
        await session.calibrate(lengths.calm)
        if "update" in wanted:
            done(update=await phases.updates(session, lengths))
        if "services" in wanted:
            done(**await phases.additions_and_deletions(session, lengths))
        share = await phases.idle(session, lengths) if "idle" in wanted else None
        await _stop(session, say, profile=profile)
        await session.calibrate(lengths.calm)
        done(kernel={"cpu_share": session.baseline - empty})
        if share is not None:
            done(idle={"cpu_share": share - session.baseline})
        if wanted & _WITH_RESYNCS:
            done(warm=await phases.start(session, phases.USUAL, profile=profile))
            await _measure_with_resyncs(session, lengths, wanted, done)
            await _stop(session, say, profile=profile)
    return figures


async def _measure_with_resyncs(
    session: Session, lengths: Lengths, wanted: Set[str], done: Callable[..., None]
) -> None:
    """Run the phases of a second agent, started on the kernel state that the first has left."""
    if "storm" in wanted:
        done(storm=await phases.storm(session, lengths))
    if "resync" in wanted:
        done(resync=await phases.resync(session, lengths))


async def _stop(session: Session, say: Say, *, profile: bool) -> None:
    """Stop the agent, and print the profile if it was sampled."""
    await session.node.ask("stop")
    if profile:
        say((session.node.shared / "profile").read_text())


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(it) for key, it in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _circumstances() -> dict[str, Any]:
    """The time, the versions and the machine of the run."""
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=PROJECT, capture_output=True, text=True, check=False)
    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit.stdout.strip(),
        "lab": lab_mode(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
    }
