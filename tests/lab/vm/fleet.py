"""All machines of one test run: enough to keep the host's processors busy."""

import os
import time
from typing import Any, ClassVar, Self

import pytest

from tests.lab.feeds import wanted
from tests.lab.firewall import backend
from tests.lab.mode import lab_mode
from tests.lab.vm.durations import Durations
from tests.lab.vm.machine import MachineError
from tests.lab.vm.remote_run import RemoteRun
from tests.lab.vm.work import Work

MACHINES_PER_CPU = 2
"""More than one, since tests wait for periods of the kernel and the specification. docs/lab.md has figures."""
WORTH_A_BOOT = 120.0
"""Seconds of waiting tests for which one more machine is started."""
_POLL = 0.2


class Fleet:
    """Runs `works` in machines, and shows their results as those of `session`, for the length of a `with`."""

    USED: ClassVar = pytest.StashKey[list[str]]()
    """The stash key, in pytest's configuration, for a line about each kernel's machines."""

    def __init__(self, session: pytest.Session, works: list[Work], durations: Durations) -> None:
        self._session = session
        self._works = works
        self._durations = durations
        self._runs: list[RemoteRun] = []
        self._started = 0
        in_lab = sum(1 for item in session.items if item.get_closest_marker("lab"))
        session.testscollected += sum(len(work) for work in works) - in_lab

    def __enter__(self) -> Self:
        """Start the machines."""
        count = int(os.environ.get("KROUTE_LAB_MACHINES") or MACHINES_PER_CPU * len(os.sched_getaffinity(0)))
        for _ in range(count):
            self._start_machine()
        self._session.config.stash[self.USED] = [
            f"{work.kernel.title}, {os.environ.get('KROUTE_FIREWALL') or work.kernel.firewall}, "
            f"fed by {work.feed}: {len(work)} tests"
            for work in self._works
        ] + [f"{len(self._runs)} machines at once on {len(os.sched_getaffinity(0))} processors"]
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the machines that still run."""
        for run in self._runs:
            run.machine.close()

    def reinforce(self) -> None:
        """Start one more machine: the session's own tests are over, and their part of the processors is free."""
        if "KROUTE_LAB_MACHINES" not in os.environ and sum(it.seconds_waiting for it in self._works) > WORTH_A_BOOT:
            self._start_machine()

    def follow(self) -> None:
        """Show the events of the machines until every test has ended."""
        while self._runs:
            self.look()
            time.sleep(_POLL)

    def look(self) -> None:
        """Show the new events of the machines, and give each of them work."""
        for run in tuple(self._runs):
            try:
                for event in run.events():
                    self._show(run.work, event)
                    stop_if_asked(self._session)
            except MachineError as failure:
                lost = run.lost()
                self._replace(run)
                self._fail(run.work, lost, str(failure))
            else:
                if run.is_over:
                    self._replace(run)

    def _start_machine(self) -> None:
        """Start a machine for the work with the longest waiting time per machine, if any work waits."""
        waiting = [work for work in self._works if work]
        if not waiting:
            return
        busy = [run.work for run in self._runs]
        work = max(waiting, key=lambda it: it.seconds_waiting / (1 + busy.count(it)))
        self._started += 1
        place = free_place([run.place for run in self._runs])
        try:
            self._runs.append(RemoteRun(self._started, work, self._session.config, place))
        except MachineError as failure:
            if not self._runs:  # else the running machines do the work: this host has no room for more
                for each in waiting:
                    self._fail(each, each.take_all(), str(failure))

    def _replace(self, run: RemoteRun) -> None:
        """Remove a machine that has ended, and start another if there is work."""
        self._runs.remove(run)
        run.machine.close()
        self._start_machine()

    def _show(self, work: Work, event: dict[str, Any]) -> None:
        hook = self._session.config.hook
        match event:
            case {"event": "start", "nodeid": nodeid, "location": location}:
                hook.pytest_runtest_logstart(nodeid=nodeid + work.suffix, location=tuple(location))
            case {"event": "report", "report": serialized}:
                report = hook.pytest_report_from_serializable(config=self._session.config, data=serialized)
                report.nodeid += work.suffix
                if report.skipped and isinstance(report.longrepr, list):  # JSON has no tuples
                    report.longrepr = tuple(report.longrepr)
                self._durations.add(report.nodeid, report.duration)
                hook.pytest_runtest_logreport(report=report)
            case {"event": "finish", "nodeid": nodeid, "location": location}:
                hook.pytest_runtest_logfinish(nodeid=nodeid + work.suffix, location=tuple(location))

    def _fail(self, work: Work, lost: list[pytest.Item], reason: str) -> None:
        """Fail the tests that were lost with a machine, so that none is skipped silently."""
        hook = self._session.config.hook
        for item in lost:
            nodeid = item.nodeid + work.suffix
            report = pytest.TestReport(
                nodeid=nodeid,
                location=item.location,
                keywords={"lab": 1},
                outcome="failed",
                longrepr=reason,
                when="call",
            )
            hook.pytest_runtest_logstart(nodeid=nodeid, location=item.location)
            hook.pytest_runtest_logreport(report=report)
            hook.pytest_runtest_logfinish(nodeid=nodeid, location=item.location)
            stop_if_asked(self._session)


def free_place(taken: list[int]) -> int:
    """The lowest place that no machine has: so all processors have as many machines, whichever ended."""
    return min({*range(len(taken) + 1)} - {*taken})


def kernels_used(config: pytest.Config) -> list[str]:
    """The kernels of this run, each with kroute's firewall on it, what fed its tests, and how many there were."""
    if lab_mode() == "host" and "KROUTE_LAB_EVENTS" not in os.environ:
        return [f"Linux {os.uname().release} (this host's own), {backend()}, fed by {wanted()[0]}"]
    return config.stash.get(Fleet.USED, [])


def stop_if_asked(session: pytest.Session) -> None:
    """End the run if pytest requires it: -x, --maxfail, an interrupt."""
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
