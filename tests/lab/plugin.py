"""The pytest plugin of the lab: tests that need a real kernel run where there is one.

Everything under tests/kernel, tests/scenarios and tests/conformance is marked `lab`. In a lab on this host
(`KROUTE_LAB=host`) these tests are like any other. Else (`vm`) this pytest collects all tests, runs those that need no
lab itself, and has the others run by a pytest in each of the lab's machines, while it shows their results as its own:
one progress, one summary, and options such as -k, -x and --durations work as ever.
"""

import itertools
import os
import time
from typing import Any

import pytest

from tests.lab.machine import PROJECT, MachineError
from tests.lab.mode import lab_mode
from tests.lab.remote_run import RemoteRun
from tests.lab.schedule import Durations, shares

LAB_DIRECTORIES = ("kernel", "scenarios", "conformance")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a lab, by where they are."""
    directories = tuple(PROJECT / "tests" / name for name in LAB_DIRECTORIES)
    for item in items:
        if any(item.path.is_relative_to(directory) for directory in directories):
            item.add_marker("lab")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run everything, if some of it has to run in machines; else leave it to pytest."""
    in_lab = [item for item in session.items if item.get_closest_marker("lab")]
    if not in_lab or session.config.option.collectonly or lab_mode() == "host":
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        return None  # pytest's own loop says what there is to say
    here = [item for item in session.items if not item.get_closest_marker("lab")]
    durations = Durations.read()
    count = int(os.environ.get("KROUTE_LAB_MACHINES", os.cpu_count() or 1))
    runs = [RemoteRun(number, share) for number, share in enumerate(shares(in_lab, count, durations), 1)]
    try:
        for run in runs:
            run.start(session.config)
        _run_here(session, here)
        _follow(session, runs, durations)
    finally:
        for run in runs:
            run.machine.close()
    durations.write()
    return True


def _run_here(session: pytest.Session, items: list[pytest.Item]) -> None:
    for item, following in itertools.zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        _stop_if_asked(session)


def _follow(session: pytest.Session, runs: list[RemoteRun], durations: Durations) -> None:
    """Show what happens in the machines until every test has ended."""
    while any(run.waiting for run in runs):
        for run in runs:
            try:
                for event in run.events():
                    _show(session, run, event, durations)
                    _stop_if_asked(session)
            except MachineError as failure:
                _fail_waiting(session, run, str(failure))
        time.sleep(0.05)


def _show(session: pytest.Session, run: RemoteRun, event: dict[str, Any], durations: Durations) -> None:
    hook = session.config.hook
    match event:
        case {"event": "start", "nodeid": nodeid, "location": location}:
            hook.pytest_runtest_logstart(nodeid=nodeid, location=tuple(location))
        case {"event": "report", "report": serialized}:
            report = hook.pytest_report_from_serializable(config=session.config, data=serialized)
            durations.add(report.nodeid, report.duration)
            hook.pytest_runtest_logreport(report=report)
        case {"event": "finish", "nodeid": nodeid, "location": location}:
            run.waiting.pop(nodeid, None)
            hook.pytest_runtest_logfinish(nodeid=nodeid, location=tuple(location))


def _fail_waiting(session: pytest.Session, run: RemoteRun, reason: str) -> None:
    """Fail each test that the machine still owed: none is ever left out in silence."""
    for item in run.waiting.values():
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={"lab": 1},
            outcome="failed",
            longrepr=reason,
            when="call",
        )
        session.config.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        session.config.hook.pytest_runtest_logreport(report=report)
        session.config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        _stop_if_asked(session)
    run.waiting.clear()


def _stop_if_asked(session: pytest.Session) -> None:
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
