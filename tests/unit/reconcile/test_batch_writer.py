"""Changes are logged with one line each, unless very many come at once."""

import logging

import structlog
from structlog.testing import CapturingLogger

from kroute.reconcile.batch_writer import MANY, log_changes


def logged(count: int, level: int) -> list[tuple[str, dict[str, object]]]:
    capturing = CapturingLogger()
    log = structlog.wrap_logger(
        capturing, processors=[], wrapper_class=structlog.make_filtering_bound_logger(level)
    ).bind()
    log_changes(log, range(count), lambda _: "vip.bound", lambda number: {"vip": number})
    return [(call.method_name, dict(call.kwargs)) for call in capturing.calls]


def test_few_changes_are_a_line_each() -> None:
    assert logged(2, logging.INFO) == [
        ("info", {"event": "vip.bound", "vip": 0}),
        ("info", {"event": "vip.bound", "vip": 1}),
    ]


def test_very_many_are_one_line() -> None:
    assert logged(MANY + 1, logging.INFO) == [("info", {"event": "vip.bound", "count": MANY + 1})]


def test_at_level_debug_each_of_very_many_is_there_too() -> None:
    assert len(logged(MANY + 1, logging.DEBUG)) == 1 + MANY + 1


def test_no_change_is_no_line() -> None:
    assert logged(0, logging.DEBUG) == []
