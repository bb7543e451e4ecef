"""The pytest plugin of the lab: tests that need a real kernel run where there is one.

Everything under tests/kernel, tests/scenarios and tests/conformance is marked `lab`. In a lab on this host
(`KROUTE_LAB=host`), these tests run like any other. Otherwise (`vm`), this pytest collects all tests and runs those
that need no lab. A pytest in each of the lab's machines runs the others, and this one shows their results as its own:
there is one progress and one summary, and options such as -k, -x and --durations work as usual.

If several kernels are available, the first runs all tests. Some run on others, too, where `@` and the kernel's name
end the test's name: those marked `each_firewall`, the field scenarios in which the firewall decides, on a kernel on
which kroute uses another backend; those marked `every_kernel`, the tests of the kernel's behaviour and the field
scenarios that rest on it, on another release of the kernel. In a thorough run that is every field scenario, S1 to S18.
A run that is not thorough draws by a seed which of these tests run once more, but for the contracts and the scenarios
of another kernel, and which ones of those marked `drawn` run at all (`tests/lab/draws.py`).

Tests marked `legacy` need the legacy tables of iptables, or ipset; tests marked `nftables` need nf_tables, of which
Debian's User Mode Linux has that for bridges alone. They run on the kernels that have it. Where no such kernel is to be
used, they are deselected.

Tests that have objects applied get them as manifests or from an API server, as `KROUTE_FEED` says. If it says nothing,
those get them as manifests, with two exceptions. The tests marked `each_feed`, those of EACH_FEED, have an API server,
and `@api` in their names; in a thorough run they run with manifests, too. The field scenarios that run on two kernels
get them by one way on the first and by the other on the second: the API server feeds S4, S10, S14 … on the first
kernel, and S1, S3, S5 … on the second.
"""

import functools
import itertools
import os
import re
from pathlib import Path

import pytest

from tests.lab import firewall, kubernetes
from tests.lab.draws import Draw, file_of, group_of
from tests.lab.mode import lab_mode
from tests.lab.places import PROJECT
from tests.lab.thoroughness import is_thorough
from tests.lab.vm import kernels
from tests.lab.vm.durations import Durations
from tests.lab.vm.fleet import Fleet, kernels_used, stop_if_asked
from tests.lab.vm.work import matrix, needs

LAB_DIRECTORIES = ("tests/kernel/", "tests/scenarios/", "tests/conformance/")
FIELD_SCENARIO = re.compile(r"tests/scenarios/test_s(0\d|1[0-8])_")
EACH_FIREWALL = re.compile(r"tests/scenarios/test_s(03|07|10|11|13|14|16|17)_")
"""The files of the field scenarios in which kroute's firewall decides what a packet meets, or is what drifts."""
EVERY_KERNEL = re.compile(
    r"tests/kernel/(?!test_(kill_between_writes|lab|shared_world)\.)|tests/scenarios/test_s(01|04|05|18)_"
)
"""The files of the tests that rest on the kernel's release: its interfaces, source addresses, schedulers, persistence,
and what becomes of connections. A ledger's file and the lab's own parts are the same on all."""
EVERY_KERNEL_THOROUGHLY = re.compile(r"tests/kernel/(?!test_kill_between_writes\.)|tests/scenarios/test_s(0\d|1[0-8])_")
"""The files of those that do so in a thorough run."""
WHOLE_ON_EVERY_KERNEL = re.compile(r"tests/kernel/test_contracts\.|tests/scenarios/")
"""The files of those that do so in every run, all of them: what the fakes promise, too, and what packets meet."""
FIREWALL_SHARE, KERNEL_SHARE = 2, 3
"""A run has one of so many tests of each other file once more: with another firewall, on another release."""
EITHER_FAMILY = re.compile(r"tests/scenarios/(?!test_s(0\d|1[0-8])_)")
"""The files of the tests that a run has for one of the families at least, and a thorough run for both."""
EACH_FEED = re.compile(r"tests/conformance/")
"""The files of the tests that run with an API server, and in a thorough run by each feed."""
FED = frozenset({"deployment", "deployment_in_strict", "running", "feed"})
"""The fixtures of tests that have objects applied."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a lab, by their paths, and deselect those for which there is no kernel, or no time."""
    for item in items:
        path = _in_project(item.path)
        if path.startswith(LAB_DIRECTORIES):
            item.add_marker("lab")
        if EACH_FEED.match(path) and FED.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("each_feed")
        if scenario := FIELD_SCENARIO.match(path):
            item.add_marker(pytest.mark.feed_in_turn(int(scenario[1]) + 1))
        if EITHER_FAMILY.match(path) and "family" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.drawn(2), append=True)
    left_out = {
        item
        for item in items
        if ((needed := needs(item)) and not _exist(needed))
        or (item.get_closest_marker("thorough") and not is_thorough())
    }
    draw = Draw.of(config)
    left_out |= _not_drawn(draw, [item for item in items if item not in left_out])
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    _mark_what_runs_once_more(draw, items)


def _not_drawn(draw: Draw, items: list[pytest.Item]) -> set[pytest.Item]:
    """The tests marked `drawn` that this run does not have."""
    shares = {item: marker.args[0] for item in items if (marker := item.get_closest_marker("drawn"))}
    left_out = set(shares)
    for share in sorted(set(shares.values())):
        group = [item for item in items if shares.get(item) == share]
        left_out -= set(draw.part(group, share, "tests that repeat others", group_of))
    return left_out


def _mark_what_runs_once_more(draw: Draw, items: list[pytest.Item]) -> None:
    """Mark the tests that run with another firewall, or on another release of the kernel, too."""
    every_kernel = EVERY_KERNEL_THOROUGHLY if is_thorough() else EVERY_KERNEL
    of_kernel = [item for item in items if every_kernel.match(_in_project(item.path))]
    whole = [item for item in of_kernel if WHOLE_ON_EVERY_KERNEL.match(_in_project(item.path))]
    others = [item for item in of_kernel if item not in whole]
    for item in (*whole, *draw.part(others, KERNEL_SHARE, "tests for another kernel", file_of)):
        item.add_marker("every_kernel")
    of_firewall = [item for item in items if EACH_FIREWALL.match(_in_project(item.path))]
    for item in draw.part(of_firewall, FIREWALL_SHARE, "tests for another firewall", file_of):
        item.add_marker("each_firewall")


@functools.cache
def _in_project(path: Path) -> str:
    """The path in the project; "" for a file elsewhere."""
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else ""


@functools.cache
def _exist(needed: frozenset[str]) -> bool:
    """Whether some kernel has what a test needs."""
    if lab_mode() == "host":
        return "legacy" not in needed or firewall.has_legacy()
    return any(kernel.can(needed) for kernel in kernels.usable())


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run all tests if some must run in machines. Otherwise leave them to pytest."""
    in_lab = [item for item in session.items if item.get_closest_marker("lab")]
    if in_lab and not session.config.option.collectonly:
        for program in ("kube-proxy", "kube-router", "kube-apiserver", "etcd"):
            kubernetes.unpack(program)
    if in_lab and lab_mode() == "host":
        os.environ.setdefault("KROUTE_FIREWALL", firewall.of_this_kernel())
    if not in_lab or session.config.option.collectonly or lab_mode() == "host":
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        return None  # pytest's own loop reports collection errors
    here = [item for item in session.items if not item.get_closest_marker("lab")]
    durations = Durations.read()
    with Fleet(session, matrix(in_lab, kernels.usable(), durations), durations) as fleet:
        _run_here(session, here, fleet)
        if here:
            fleet.reinforce()
        fleet.follow()
    durations.write()
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print which kernels the tests ran on, and what tests have measured (`record_property("measured", …)`)."""
    for line in filter(None, (*kernels_used(config), Draw.of(config).said())):
        terminalreporter.line(f"lab: {line}")
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            if name == "measured" and report.when == "call":
                terminalreporter.line(f"measured: {value}")


def _run_here(session: pytest.Session, items: list[pytest.Item], fleet: Fleet) -> None:
    for item, following in itertools.zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        stop_if_asked(session)
        fleet.look()
