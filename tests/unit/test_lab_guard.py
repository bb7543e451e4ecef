"""When the shared cluster is compared (tests/lab/fixtures.py), and what is said of it (tests/lab/guard.py)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab import fixtures
from tests.lab.guard import LINES, difference


class Calls:
    """Stands for the guard: notes what it is asked."""

    def __init__(self) -> None:
        self.made: list[tuple[str, object]] = []

    def note(self, file: str) -> None:
        self.made.append(("note", file))

    def compare(self, *, agents_go_on: bool) -> None:
        self.made.append(("compare", agents_go_on))


def item(file: str, *fixture_names: str, stash: dict[Any, Any] | None = None) -> Any:
    session = SimpleNamespace(stash={} if stash is None else stash)
    return SimpleNamespace(nodeid=f"{file}::test", path=Path(file), fixturenames=fixture_names, session=session)


def calls(file: str, following: str | None, *fixture_names: str, fails: bool = False) -> list[tuple[str, object]]:
    """What the guard is asked at the end of a test of `file`, if the next is one of `following`."""
    guard = Calls()
    torn_down = item(file, *fixture_names, stash={fixtures._GUARD: guard})
    teardown = fixtures.pytest_runtest_teardown(torn_down, following and item(following))  # type: ignore[arg-type]
    next(teardown)
    with pytest.raises(OSError if fails else StopIteration):
        teardown.throw(OSError()) if fails else next(teardown)
    return guard.made


def test_it_is_compared_at_the_end_of_a_file_and_not_between_its_tests() -> None:
    assert calls("a/one.py", "a/one.py", "world") == [("note", "a/one.py")]
    assert calls("a/one.py", "a/one.py") == []
    assert calls("a/one.py", "b/two.py", "world") == [("note", "a/one.py"), ("compare", False)]
    assert calls("a/one.py", "b/two.py") == [("compare", False)]


def test_agents_go_on_to_the_next_file_of_the_same_folder_alone() -> None:
    assert calls("a/one.py", "a/two.py", "world") == [("note", "a/one.py"), ("compare", True)]


def test_it_is_compared_when_a_fixture_has_failed_to_clean_up() -> None:
    assert calls("a/one.py", "b/two.py", "world", fails=True) == [("note", "a/one.py"), ("compare", False)]


def test_after_the_last_file_the_fixture_compares_it_before_it_is_closed() -> None:
    assert calls("a/one.py", None, "world") == [("note", "a/one.py")]


def test_without_a_shared_cluster_there_is_nothing_to_compare() -> None:
    teardown = fixtures.pytest_runtest_teardown(item("a/one.py", "cluster"), item("a/two.py"))
    next(teardown)
    with pytest.raises(StopIteration):
        next(teardown)


def test_what_came_and_went_is_said_for_each_host_that_was_compared() -> None:
    before = {"web": {"sockets": ["sctp 9090", "tcp 80"], "links": []}, "node": {"files": []}, "busy": {"files": []}}
    after = {"web": {"sockets": ["tcp 80", "tcp 81"], "links": []}, "node": {"files": []}}
    assert difference(before, after) == {"web": ["sockets: + tcp 81", "sockets: - sctp 9090"]}
    assert difference(before, before) == {}


def test_a_sysctl_that_came_with_its_module_is_no_change() -> None:
    before, after = {"node": {"sysctls": ["a = 1"]}}, {"node": {"sysctls": ["a = 2", "b = 1"]}}
    assert difference(before, after) == {"node": ["sysctls: + a = 2", "sysctls: - a = 1"]}


def test_a_long_difference_is_cut() -> None:
    many = {"node": {"files": [f"{number:02}" for number in range(LINES + 3)]}}
    said = difference({"node": {"files": []}}, many)["node"]
    assert (len(said), said[-1]) == (LINES + 1, "files: and 3 more")
