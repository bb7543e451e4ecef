"""What `make demo` prints, and what makes it fail."""

import pytest

from tests.demo import __main__ as story
from tests.demo import rolling_update
from tests.demo.screen import WIDTH, fitted
from tests.demo.terminal import readable
from tests.lab.kernel_state import Snapshot
from tests.lab.load import Load, Way


def load(answered: dict[str, int], *failures: str) -> Load:
    made = Load()
    made.answered.update(answered)
    made.calls[Way(None, "10.0.0.1", 80)] = sum(answered.values())
    made.failures += failures
    return made


def test_one_failed_call_makes_the_demo_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert rolling_update.verdict(load({"web-v1-1": 900, "web-v2-1": 100}), 10.0)
    assert not rolling_update.verdict(load({"web-v1-1": 999}, "a pod asked 10.0.0.1 80: timed out"), 10.0)
    assert not rolling_update.verdict(load({}), 10.0)
    shown = capsys.readouterr().out
    assert "1000 calls in 10.0 s (100 a second), 0 failed." in shown
    assert "failed: a pod asked 10.0.0.1 80: timed out" in shown


@pytest.mark.parametrize("good", [True, False])
def test_the_exit_code_says_whether_all_was_well(good: bool) -> None:
    assert story.ended(good, 12.0) == (0 if good else 1)


def test_versions_are_told_apart() -> None:
    assert rolling_update.by_version(load({"web-v1-1": 2, "web-v1-2": 3, "web-v2-1": 4})) == {"v1": 5, "v2": 4}


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("default/web  10.254.0.10:80  a sentence that is long " + "word " * 20, 29),
        ("word " * 40, 2),
        ("x" * 200, 2),
        ("", 0),
        ("y" * WIDTH, 0),
    ],
)
def test_no_line_is_longer_than_the_screen(line: str, column: int) -> None:
    parts = fitted(line.rstrip())
    assert all(len(part) <= WIDTH for part in parts)
    assert all(part.startswith(" " * column) for part in parts[1:])
    assert "".join("".join(parts).split()) == "".join(line.split())


def test_of_a_live_table_the_last_is_read_and_no_control_sequence() -> None:
    again = "\r\x1b[2K\x1b[1A\x1b[2K"
    assert readable(f"\x1b[?25l\x1b[1mService\x1b[0m\r\nweb 1{again}Service\r\nweb 2{again}") == "Service\nweb 2"
    assert readable("one\r\ntwo\r\n") == "one\ntwo\n"
    assert readable("") == ""


def test_pods_that_came_and_went_are_no_difference_but_what_kroute_left_is() -> None:
    before = Snapshot({"ip -o link show": ["1: lo", "7: veth2@if5"]})
    after = Snapshot({"ip -o link show": ["1: lo", "9: veth4@if5"]})
    left = Snapshot({"ip -o link show": ["1: lo", "9: kube-ipvs0"]})
    assert story.without_pods(before).diff(story.without_pods(after)) == ""
    assert "kube-ipvs0" in story.without_pods(before).diff(story.without_pods(left))
