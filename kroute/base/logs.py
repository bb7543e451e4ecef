"""Logs are events: one line for each change, JSON in a pod, colours on a terminal."""

from kroute.base import lean_imports  # noqa: F401  before structlog and msgspec

# isort: split

import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
import structlog

from kroute.base import standard_error
from kroute.base.printable import printable

LONGEST_FIELD = 2000
"""The most characters of a field, and the most elements of a list in one; the rest is left out."""

LONGEST_DETAILS = 500
_APART = frozenset({"event", "level", "timestamp"})
"""Fields that are not among the details."""


class RecentEvent(msgspec.Struct, frozen=True):
    """A line of the log: its Unix time, level, event name, and fields as text."""

    time: float
    level: str
    event: str
    details: str


class RecentEvents:
    """The last `count` events of the log, as text: a field may hold a list of many long values."""

    def __init__(self, count: int) -> None:
        self._events: deque[RecentEvent] = deque(maxlen=count)

    @property
    def newest_first(self) -> Collection[RecentEvent]:
        return list(reversed(self._events))

    def remember(self, event: Mapping[str, Any], now: float) -> None:
        """Remember an event that was logged at the Unix time `now`."""
        details = " ".join([f"{name}={value}" for name, value in event.items() if name not in _APART])
        self._events.append(
            RecentEvent(now, str(event.get("level", "")), str(event["event"]), details[:LONGEST_DETAILS])
        )


FREQUENT = frozenset({"policy.refused"})
"""Events that would fill RECENT within seconds."""
RECENT = RecentEvents(200)
"""What this process has logged lately, for the status page. It is global because structlog's configuration is."""


def bounded(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Shorten and escape each field, which may come from objects or servers: none is long or moves a cursor.

    This is a structlog processor.
    """
    return {
        name: value
        if type(value) is int or (type(value) is str and len(value) <= LONGEST_FIELD and value.isprintable())
        else _bounded(value)
        for name, value in event.items()
    }


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        left_out = len(value) - LONGEST_FIELD
        return printable(value if left_out <= 0 else f"{value[:LONGEST_FIELD]}… ({left_out:,} more)")
    if isinstance(value, list | tuple):
        return [_bounded(element) for element in value[:LONGEST_FIELD]]
    return value


def stamped(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Remember the event in RECENT, and add the time to it: a structlog processor that reads the clock once.

    The lines of a block of `written_together` have the time of its beginning.
    """
    now = time.time() if _Lines.held is None else _Lines.since
    if event["event"] not in FREQUENT:
        RECENT.remember(event, now)
    event["timestamp"] = datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z")
    return event


_ENCODER = json.JSONEncoder(default=str)
"""`json.dumps` makes a new one for each line."""


def _as_json(_logger: object, _method: str, event: structlog.typing.EventDict) -> str:
    return _ENCODER.encode(event)


class _Lines:
    """Standard error for structlog. A line that cannot be written (the disk is full, the reader is gone) is lost.

    It must not end kroute; the status page has the newest lines all the same. It must not stop it either, where the
    reader takes no more: see `never_wait`.
    """

    held: ClassVar[list[str] | None] = None
    """The lines of a block of `written_together`; None outside of one."""
    since: ClassVar[float]
    """When that block began, as Unix time."""

    def __init__(self, *_names: object) -> None:
        pass

    def msg(self, line: str) -> None:
        if self.held is None:
            _write(f"{line}\n")
        else:
            self.held.append(f"{line}\n")

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg


def _write(lines: str) -> None:
    with suppress(OSError):
        sys.stderr.write(lines)
        sys.stderr.flush()


@contextmanager
def written_together() -> Iterator[None]:
    """Have the lines of a `with` block, in which nothing is awaited, written at once: each write is a system call."""
    lines: list[str] = []
    _Lines.held, _Lines.since = lines, time.time()
    try:
        yield
    finally:
        _Lines.held = None
        if lines:
            _write("".join(lines))


def configure(log_format: str, level: str) -> None:
    """Send every event of at least `level` to standard error, as `json` or for a `console`."""
    rendering: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, _as_json]
        if log_format == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))]
    )
    structlog.configure(
        processors=[structlog.processors.add_log_level, bounded, stamped, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )


def never_wait() -> None:
    """Let no line wait for its reader from now on. For programs that serve; a command's output may wait for a pager."""
    standard_error.never_wait(_tell_of_dropped)


def _tell_of_dropped(lines: int) -> None:
    structlog.get_logger(__name__).warning(
        "log.lines_dropped",
        lines=lines,
        reason="nobody read standard error, and no more could be kept",
        next_step="look at the container runtime or the journal: it stood still",
    )
