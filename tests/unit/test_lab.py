"""What of the lab can be said without a kernel."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lab import machine
from tests.lab.machine import Machine, MachineError
from tests.lab.mode import lab_mode
from tests.lab.schedule import Durations, shares


def items(*nodeids: str) -> list[pytest.Item]:
    return [SimpleNamespace(nodeid=nodeid) for nodeid in nodeids]  # type: ignore[misc]


def test_files_stay_whole_and_the_longest_is_alone() -> None:
    tests = items("a.py::1", "a.py::2", "b.py::1", "c.py::1")
    divided = shares(tests, 2, Durations({"a.py::1": 1, "a.py::2": 1, "b.py::1": 9, "c.py::1": 1}, {}))
    assert [[item.nodeid for item in share] for share in divided] == [["b.py::1"], ["a.py::1", "a.py::2", "c.py::1"]]


def test_there_are_no_more_machines_than_files() -> None:
    assert len(shares(items("a.py::1", "a.py::2"), 4, Durations({}, {}))) == 1


def test_what_has_never_run_here_takes_what_its_file_usually_does() -> None:
    durations = Durations({"a.py::1": 5, "a.py::2": 3}, {"a.py": 9, "b.py": 7})
    assert [durations.of(nodeid) for nodeid in ("a.py::1", "a.py::3", "b.py::1", "c.py::1")] == [5, 9, 7, 2]
    assert durations.by_file() == {"a.py": 4}


def test_durations_are_remembered_with_those_of_tests_that_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KROUTE_CACHE", str(tmp_path))
    machine.cache().mkdir()
    first = Durations.read()
    first.add("a", 1.0)
    first.add("a", 0.5)
    first.write()
    second = Durations.read()
    second.add("b", 2.0)
    second.write()
    assert (Durations.read().of("a"), Durations.read().of("b")) == (1.5, 2.0)


@pytest.mark.parametrize("wish", ["vm", "host"])
def test_the_environment_chooses_where_the_lab_runs(monkeypatch: pytest.MonkeyPatch, wish: str) -> None:
    monkeypatch.setenv("KROUTE_LAB", wish)
    assert lab_mode() == wish


def test_a_wrong_choice_names_the_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KROUTE_LAB", "docker")
    with pytest.raises(ValueError, match="use vm, host or auto"):
        lab_mode()


def test_a_machine_without_its_kernel_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KROUTE_CACHE", str(tmp_path))
    with Machine("test") as made, pytest.raises(MachineError, match="run scripts/setup lab"):
        made.start(["true"], environment={})
    assert not made.shared.exists()
