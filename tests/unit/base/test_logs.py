"""No name of an object makes a log line too long, or moves a terminal's cursor."""

import json
import subprocess
import sys
from datetime import datetime

import pytest

from kroute.base.logs import LONGEST_FIELD, RECENT, RecentEvents, bounded, stamped, written_together


def logged(value: object) -> object:
    return bounded(None, "info", {"event": "x", "field": value})["field"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("default/web", "default/web"),
        ("Grüße, 世界 \N{NO-BREAK SPACE}", "Grüße, 世界 \N{NO-BREAK SPACE}"),
        ("a\x1b[2Jb\r\n\tc\x9bd\x7f", r"a\x1b[2Jb\x0d\x0a\x09c\x9bd\x7f"),
        ("\u202eabc\u2028", r"\u202eabc\u2028"),
        ("\ud800", r"\ud800"),
        (["a\0", 5], [r"a\x00", 5]),
        (5, 5),
        (None, None),
    ],
    ids=ascii,
)
def test_control_characters_are_escaped(value: object, written: object) -> None:
    assert logged(value) == written


def test_a_field_is_cut_where_it_is_too_long() -> None:
    assert logged("x" * (LONGEST_FIELD + 5)) == "x" * LONGEST_FIELD + "… (5 more)"
    assert len(logged(["x"] * (LONGEST_FIELD * 2))) == LONGEST_FIELD


def test_the_time_of_a_line_is_that_of_the_status_page() -> None:
    event = stamped(None, "info", {"event": "x", "level": "info", "port": 5})
    newest = next(iter(RECENT.newest_first))
    assert event["timestamp"].endswith("Z")
    assert datetime.fromisoformat(event["timestamp"]).timestamp() == pytest.approx(newest.time, abs=2e-6)
    assert newest.details == "port=5"


def test_refused_packets_do_not_fill_the_status_page() -> None:
    kept = RECENT.newest_first
    assert "timestamp" in stamped(None, "info", {"event": "policy.refused", "level": "info"})
    assert RECENT.newest_first == kept


def test_a_line_of_json_is_what_json_dumps_makes_of_its_fields_in_their_order() -> None:
    program = (
        "import pathlib, structlog; from kroute.base import logs; logs.configure('json', 'info');"
        "log = structlog.get_logger(__name__);"
        "log.debug('not.said'); log.info('some.thing', name='Grüße', ports=[1, 2], path=pathlib.Path('/x'), none=None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    [line] = done.stderr.splitlines()
    fields = json.loads(line)
    assert line == json.dumps(fields)
    assert list(fields) == ["name", "ports", "path", "none", "event", "level", "timestamp"]
    assert {**fields, "timestamp": ""} == {
        "name": "Grüße",
        "ports": [1, 2],
        "path": "/x",
        "none": None,
        "event": "some.thing",
        "level": "info",
        "timestamp": "",
    }


def test_lines_that_belong_together_are_written_at_once() -> None:
    program = (
        "import sys, structlog; from kroute.base import logs; written = [];"
        "sys.stderr = type('Stream', (), {'write': lambda _, text: written.append(text), 'flush': lambda _: None})();"
        "logs.configure('json', 'info'); log = structlog.get_logger(__name__)\n"
        "with logs.written_together():\n log.info('one'); log.info('two')\n"
        "with logs.written_together(): pass\n"
        "log.info('three')\n"
        "print([text.count(chr(10)) for text in written])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[2, 1]\n"


def test_lines_that_belong_together_have_the_time_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1.0, 2.0])
    monkeypatch.setattr("kroute.base.logs.time.time", lambda: next(moments))
    with written_together():
        together = [stamped(None, "info", {"event": "one"})["timestamp"] for _ in range(2)]
    alone = stamped(None, "info", {"event": "two"})["timestamp"]
    assert [*together, alone] == ["1970-01-01T00:00:01Z"] * 2 + ["1970-01-01T00:00:02Z"]


def test_a_remembered_event_keeps_none_of_its_fields() -> None:
    events, addresses = RecentEvents(1), ["192.0.2.1"]
    events.remember({"event": "vip.bound", "addresses": addresses}, 0.0)
    addresses.clear()
    assert [it.details for it in events.newest_first] == ["addresses=['192.0.2.1']"]
