"""Which modules an agent loads before it serves, and how it keeps garbage collections short."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kroute.runtime import gc_tuning
from kroute.runtime.gc_tuning import GcTuning

LARGE = ("rich", "pygments", "urllib3.connectionpool", "kubernetes_asyncio.client.models.v1_pod", "iptc", "aiohttp.web")


def test_an_agent_does_not_load_what_it_does_not_use_at_once() -> None:
    program = f"""
import sys
from kroute.cli import run
from kroute.watchers.kubernetes import api
print([name for name in {LARGE} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_what_was_kept_from_loading_can_still_be_loaded() -> None:
    program = """
from kroute import logs
from kroute.watchers.kubernetes import api
import rich, kubernetes_asyncio.client.configuration as configuration
print(configuration.Configuration(username="a", password="b").get_basic_auth_token())
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "Basic YTpi"


@pytest.fixture
def _unfrozen() -> Iterator[None]:
    """Unfreeze all objects for the tests that follow."""
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
                kept = [[number] for number in range(100_000)]
                assert set(visited) == {0, 1}
                before = gc.get_freeze_count()
                collector.loaded()
                assert gc.get_freeze_count() >= before + len(kept)
        finally:
            gc.callbacks.pop()

    def test_what_outlives_a_slow_collection_is_put_aside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with GcTuning() as collector:
            collector.loaded()
            monkeypatch.setattr(gc_tuning, "SLOW", 0.0)
            before, kept = gc.get_freeze_count(), [[number] for number in range(1000)]
            gc.collect()
            assert gc.get_freeze_count() >= before + len(kept)

    def test_what_outlives_a_quick_one_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with GcTuning() as collector:
            collector.loaded()
            monkeypatch.setattr(gc_tuning, "SLOW", 60.0)
            before, kept = gc.get_freeze_count(), [[number] for number in range(1000)]
            gc.collect()
            gc.collect(0)
            assert gc.get_freeze_count() == before
        assert len(kept) == 1000

    def test_a_collection_is_started_after_so_many_plans(self) -> None:
        with GcTuning() as collector:
            gone: list[str] = []
            collector.made(10 * gc_tuning.PLANS)  # none yet: the initial sync is not over
            collector.loaded()
            gc.disable()
            try:
                make_cycle(gone)
                collector.made(gc_tuning.PLANS - 1)
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
