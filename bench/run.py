"""One run of the bench: every size several times, each time on a node of its own, and the figures as plain data."""

import itertools
import os
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, NamedTuple

from bench.phases.changes import additions_and_deletions, updates, weights
from bench.phases.lengths import BenchError, Lengths
from bench.phases.rest import at_rest, idle
from bench.phases.session import Session
from bench.phases.start import start
from bench.phases.storm import HURRICANE, STORM, storm
from bench.place.node import NodeUnderTest, RunnerError, node_under_test
from bench.workload import Workload
from tests.lab.mode import lab_mode
from tests.lab.namespaces import CommandError
from tests.lab.places import PROJECT
from tests.lab.vm.machine import MachineError

HEADLINE = ("cold", "update", "warm", "idle")
"""The phases of the table on top of docs/performance.md."""
PHASES = ("tools", *HEADLINE, "services", "weights", "storm", "hurricane")
FIREWALLS = ("nftables", "iptables")
"""The backends, the preferred one first."""
RUNS = 3
"""How often each size is measured: the least of which a median and a spread say anything."""
_OF_THE_SECOND_AGENT = {"warm", "idle", "storm", "hurricane"}
_UNSAID = {"series", "latencies"}

Say = Callable[[str], None]


class Plan(NamedTuple):
    """What is measured: `runs` times each of these sizes (Services) with each firewall backend, in turn.

    `wanted` are names of PHASES; `cold` is always made. Idling, which takes five minutes and hardly varies, is measured
    in the last of the runs only: two minutes after the cold start, and two after the warm restart.
    """

    sizes: Sequence[int]
    endpoints: int
    lengths: Lengths
    wanted: Set[str]
    runs: int = RUNS
    firewalls: Sequence[str] = FIREWALLS[:1]
    profile: bool = False


async def run(plan: Plan, say: Say) -> AsyncIterator[dict[str, Any]]:
    """Measure, and yield the result so far after each node. `say` is called with the progress.

    All sizes take turns, so that an hour in which the host is slow meets all of them.
    """
    result: dict[str, Any] = {**circumstances(), **plan.lengths._asdict(), "runs": []}
    for number, services, firewall in itertools.product(range(plan.runs), plan.sizes, plan.firewalls):
        async with node_under_test() as node:
            result["lab"], result["python"] = node.lab, node.python
            workload = Workload(services, plan.endpoints)
            seldom = set() if number == plan.runs - 1 else {"idle"}
            measurement = _Measurement(node, workload, firewall, plan._replace(wanted=plan.wanted - seldom), say)
            result["runs"].append({"number": number, **await measurement.figures()})
        result["load_after"] = os.getloadavg()[0]
        yield result


class _Measurement:
    """All phases of one size on one node."""

    def __init__(self, node: NodeUnderTest, workload: Workload, firewall: str, plan: Plan, say: Say) -> None:
        self._node = node
        self._workload = workload
        self._firewall = firewall
        self._plan = plan
        self._say = say
        self._began = time.monotonic()
        self._figures: dict[str, Any] = {
            "services": workload.services,
            "endpoints": workload.endpoints,
            "firewall": firewall,
        }

    async def figures(self) -> dict[str, Any]:
        """Measure all phases that are wanted."""
        async with Session.open(self._node, self._workload, self._firewall) as session:
            if self._wants("tools"):
                await self._batch_tools()
            self._done(pace={"seconds": await self._node.ask("pace")})
            await session.rehearse()
            await session.calibrate(self._plan.lengths.calm)
            empty = session.baseline
            self._done(cold=await start(session, profile=self._plan.profile))
            await self._changes(session, empty)
            if self._plan.wanted & _OF_THE_SECOND_AGENT:
                self._done(warm=await start(session, profile=self._plan.profile))
                if self._wants("idle"):
                    self._done(idle=await idle(session, self._plan.lengths))
                if self._wants("storm"):
                    self._done(storm=await storm(session, STORM, self._plan.lengths.storm))
                if self._wants("hurricane"):
                    self._done(hurricane=await storm(session, HURRICANE, self._plan.lengths.hurricane))
                await self._stop()
        return self._figures

    async def _batch_tools(self) -> None:
        cpu, content = self._node.cpu(), {"services": self._workload.services, "endpoints": self._workload.endpoints}
        self._done(tools=await self._node.ask("batch_tools", **content))
        self._done(tools_cpu={"seconds": self._node.cpu() - cpu})

    async def _changes(self, session: Session, empty: float) -> None:
        """Measure the changes of the first agent, and stop it. `empty` is what an empty node uses at rest."""
        lengths = self._plan.lengths
        settling = await at_rest(session, lengths.idle) if self._wants("idle") else {}
        await session.calibrate(lengths.calm)
        if self._wants("update"):
            self._done(update=await updates(session, lengths))
        if self._wants("services"):
            self._done(**await additions_and_deletions(session, lengths))
        if self._wants("weights"):
            self._done(weights=await weights(session, lengths))
        await session.complete()
        await self._stop()
        await session.calibrate(lengths.rest if self._wants("idle") else lengths.calm)
        self._done(kernel={"cpu_share": session.baseline - empty})
        if settling:
            self._done(settling={**settling, "cpu_share": settling["node_share"] - session.baseline})

    async def _stop(self) -> None:
        """Stop the agent, and print the profile if it was sampled."""
        await self._node.ask("stop")
        if self._plan.profile:
            self._say((self._node.shared / "profile").read_text())

    def _wants(self, phase: str) -> bool:
        return phase in self._plan.wanted

    def _done(self, **named: Any) -> None:
        self._figures.update(named)
        for name, value in named.items():
            short = {key: it for key, it in value.items() if key not in _UNSAID}
            seconds = time.monotonic() - self._began
            self._say(
                f"{self._workload.services} Services, {self._firewall}, {seconds:.0f} s: {name} {_rounded(short)}"
            )


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(it) for key, it in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


@contextmanager
def ending_in_a_line(program: str) -> Iterator[None]:
    """Have what keeps a bench from measuring end the program with one line."""
    try:
        yield
    except (BenchError, CommandError, MachineError, RunnerError, PermissionError) as error:
        sys.exit(f"{program}: {error}")


def circumstances() -> dict[str, Any]:
    """The time, the versions and the machine of the run. `lab` is known better once a node runs."""
    commit = _git("describe", "--always").stdout.strip()
    is_changed = _git("diff", "--quiet", "HEAD", "--", ".", ":!docs", ":!bench/results").returncode == 1
    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": f"{commit}-dirty" if is_changed else commit,
        "lab": lab_mode(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
    }


def _git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
