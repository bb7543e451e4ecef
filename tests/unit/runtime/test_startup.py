"""Which modules an agent loads before it serves, and how it keeps garbage collections short."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from kroute.runtime import memory
from kroute.runtime.memory import GcTuning

UNUSED = (
    *("typing_extensions", "hashlib", "email", "multiprocessing", "attr", "encodings.idna", "unicodedata"),
    *("rich", "pygments"),
    *("kroute.migration.cleanup", "kroute.director", "kroute.telemetry.metrics_port", "kroute.telemetry.status_page"),
    *("kroute.firewall.iptables.firewall", "kroute.firewall.nftables.firewall", "kroute.kernel.iptables.xtables"),
    *("kroute.inspect.explain", "kroute.inspect.dry_run", "kroute.telemetry.answers", "kroute.inspect.status"),
    *("kroute.telemetry.agent_status", "kroute.telemetry.kernel_reader", "kroute.watchers.manifests"),
    *("kroute.migration.flags", "kroute.migration.kube_proxy_configuration"),
    *("kroute.http.probes", "kroute.model.probes", "kroute.controllers.ipvs.confirmations"),
    *("kroute.controllers.network_policy", "kroute.planning.policies", "kroute.firewall.nftables.policy_tables"),
    *("kroute.model.policy_plan", "kroute.checks.policy_enforcers"),
    *("kroute.kernel.packet_log", "kroute.inspect.refusals", "kroute.telemetry.policy_log"),
    *("kroute.controllers.direct_return", "kroute.kernel.pods", "kroute.kernel.net.steering"),
    *("kroute.controllers.announcing", "kroute.kernel.bird", "kroute.model.speaker", "kroute.planning.bgp"),
    *("kroute.agent.allocator", "kroute.planning.address_allocation"),
)
"""Some that an agent may come to use, and some that it never does."""
OF_KUBECONFIGS = ("yaml", "kroute.watchers.kubernetes.authentication.kubeconfig", "kroute.watchers.yaml_text")
"""What only a kubeconfig needs."""
BEFORE_THE_LISTS = "from kroute.cli import main, run\nfrom kroute.watchers.kubernetes import api, watcher"
AGENT = f"{BEFORE_THE_LISTS}\nfrom kroute.agent import wiring\nfrom kroute.watchers.kubernetes import api_facts"
"""Programs that import what `kroute run` does."""
BEFORE_THE_LISTS_AT_MOST = 310
OF_A_STEP = 20
"""The most modules of a step of `kroute.agent.start`: the event loop waits for so long."""
OF_AN_AGENT = 490
"""The most modules that `kroute run` imports before it looks for its API server: each costs some 0.4 ms, and 1 ms in
the lab's machine. There were 700."""
OF_A_COMMAND = 150
"""The same for a command that shows a version."""


@cache
def imported(program: str) -> frozenset[str]:
    """The names of all modules that a new process has imported after the program."""
    program = f"{program}\nimport sys\nprint(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return frozenset(shown.stdout.splitlines()[-1].split())


def test_an_agent_does_not_load_what_it_does_not_use_at_once() -> None:
    assert imported(AGENT) & {*UNUSED} == set()


def test_what_an_agent_of_kroute_does_not_load_exists() -> None:
    assert [name for name in UNUSED if name.startswith("kroute.") and find_spec(name) is None] == []


def test_the_lists_are_requested_before_most_of_an_agent_is_loaded() -> None:
    names = imported(BEFORE_THE_LISTS)
    assert len(names) < BEFORE_THE_LISTS_AT_MOST
    rooms = {".".join(it.split(".")[:2]) for it in names}
    later = {"checks", "controllers", "firewall", "http", "inspect", "planning"}
    assert rooms & {f"kroute.{room}" for room in later} == set()
    assert names & {"kroute.agent.wiring", "kroute.reconcile.comparison"} == set()


def test_the_steps_in_which_the_others_are_loaded_are_short() -> None:
    program = f"""
{BEFORE_THE_LISTS}
import importlib, sys
from kroute.agent import start
for name in start.STEPS:
    before = len(sys.modules)
    importlib.import_module(name)
    print(len(sys.modules) - before, name)
    if name == start.STEPS[-1]:
        print("after:", *{{*sys.modules}})
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *steps, after = shown.stdout.splitlines()
    lengths = {name: int(number) for number, name in map(str.split, steps)}
    assert {name for name, length in lengths.items() if not 0 < length <= OF_A_STEP} == set()
    agent = imported(f"{BEFORE_THE_LISTS}\nfrom kroute.agent import wiring")
    assert {*after.split()[1:]} - agent <= {"kroute.agent.start"}


def test_an_agent_in_a_pod_loads_nothing_that_reads_kubeconfigs(tmp_path: Path) -> None:
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("something")
    program = f"""
import os
from pathlib import Path
{AGENT}
from kroute.watchers.kubernetes.authentication.service_account import InClusterCredentials
os.environ |= {{"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "6443"}}
print(InClusterCredentials(Path({str(tmp_path)!r})).configuration.host)
"""
    assert imported(program) & {*OF_KUBECONFIGS} == set()


def test_reading_a_kubeconfig_loads_no_other_client() -> None:
    names = imported(f"{AGENT}\nfrom kroute.watchers.kubernetes.authentication import kubeconfig")
    assert {*OF_KUBECONFIGS} <= names
    assert names & {"email", "http.client", "tempfile", "typing_extensions", "urllib.request"} == set()


def test_an_agent_loads_few_modules() -> None:
    names = imported("from kroute.cli import main, run\nfrom kroute.agent import wiring")
    assert len(names) < OF_AN_AGENT
    assert {name.partition(".")[0] for name in names} & {"yaml", "email", "urllib3"} == set()


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_a_command_that_speaks_to_nobody_loads_hardly_anything(argument: str) -> None:
    names = imported(f"from kroute.cli.main import cli\ncli(['{argument}'], standalone_mode=False)")
    assert len(names) < OF_A_COMMAND
    assert names & {"asyncio", "msgspec", "rich", "ssl", "structlog", "yaml"} == set()


def test_a_table_of_what_is_served_needs_no_controller() -> None:
    names = imported("from kroute.cli.main import load\nload('show')")
    rooms = {".".join(it.split(".")[:3]) for it in names}
    assert rooms & {"kroute.agent", "kroute.planning", "kroute.director", "kroute.controllers.service_proxy"} == set()
    assert {it.partition(".")[0] for it in names} & {"yaml", "email", "rich", "shutil"} == set()


def test_what_was_kept_from_loading_can_still_be_loaded() -> None:
    program = """
from kroute.base import logs
from kroute.watchers.kubernetes import api
import rich.text
print(rich.text.Text("still there"))
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "still there"


@pytest.fixture(scope="class")
def _freezer() -> Iterator[None]:
    """Afterwards all objects are frozen, as they are when the tests begin (tests/conftest.py)."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def _unfrozen(_freezer: None) -> Iterator[None]:
    """No object is frozen at first."""
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_unfrozen")
class TestGarbageCollection:
    """Collections stay short, however many objects there are."""

    def test_what_is_there_at_the_start_is_put_aside(self) -> None:
        with GcTuning():
            assert gc.get_freeze_count() > 10_000

    def test_what_comes_while_the_initial_sync_is_taken_in_is_never_visited_as_a_whole(self) -> None:
        visited = []
        gc.callbacks.append(lambda _, collection: visited.append(collection["generation"]))
        try:
            with GcTuning() as collector:
                kept = [[number] for number in range(150_000)]
                assert visited == [0, 0]  # the end of the one collection there is
                before = gc.get_freeze_count()
                collector.loaded()
                assert gc.get_freeze_count() >= before + len(kept)
        finally:
            gc.callbacks.pop()

    def test_imports_are_not_interrupted(self) -> None:
        program = """
import gc
visited = []
gc.callbacks.append(lambda phase, _: visited.append(phase))
from kroute.cli.main import load
before = len(visited)
load("run")
from kroute.runtime.memory import seldom
with seldom():
    from kroute.agent import wiring
print(gc.get_threshold() == (700, 10, 10), len(visited) - before)
"""
        shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert shown.stdout.split() == ["True", "0"]

    def test_what_outlives_a_slow_collection_is_put_aside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with GcTuning() as collector:
            collector.loaded()
            monkeypatch.setattr(memory, "SLOW", 0.0)
            before, kept = gc.get_freeze_count(), [[number] for number in range(1000)]
            gc.collect()
            assert gc.get_freeze_count() >= before + len(kept)

    def test_what_outlives_a_quick_one_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with GcTuning() as collector:
            collector.loaded()
            monkeypatch.setattr(memory, "SLOW", 60.0)
            before, kept = gc.get_freeze_count(), [[number] for number in range(1000)]
            gc.collect()
            gc.collect(0)
            assert gc.get_freeze_count() == before
        assert len(kept) == 1000

    def test_a_collection_is_started_after_so_many_plans(self) -> None:
        with GcTuning() as collector:
            gone: list[str] = []
            collector.made(10 * memory.PLANS)  # none yet: the initial sync is not over
            collector.loaded()
            gc.disable()
            try:
                make_cycle(gone)
                collector.made(memory.PLANS - 1)
                assert gone == []
                collector.made(1)
                assert gone == ["gone"]
            finally:
                gc.enable()

    def test_afterwards_the_collector_works_as_before(self) -> None:
        before = gc.get_threshold(), list(gc.callbacks)
        with GcTuning() as collector:
            collector.loaded()
        assert (gc.get_threshold(), list(gc.callbacks)) == before


class Node:
    """Records when it is collected."""

    def __init__(self, gone: list[str]) -> None:
        self.gone = gone
        self.itself: Node | None = None

    def __del__(self) -> None:
        self.gone.append("gone")


def make_cycle(gone: list[str]) -> None:
    cycle = Node(gone)
    cycle.itself = cycle
