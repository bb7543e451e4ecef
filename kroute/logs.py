"""Logs are events: one line for each change, JSON in a pod, colours on a terminal.

structlog loads rich where it is installed, 0.07 s and 5 MB, to draw tracebacks that plain text shows as well. For an
agent to go without it, structlog has to be imported here first.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kroute.recent_events import RecentEvents


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Let a package seem not to be installed, unless it is there already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]  # which is how an import is told that there is none
    try:
        yield
    finally:
        del sys.modules[package]


with _without("rich"):
    import structlog


RECENT = RecentEvents(200)
"""What this process has logged lately: like structlog's own configuration, there is one of it."""


def configure(log_format: str, level: str) -> None:
    """Send every event of at least `level` to standard error, as `json` or for a `console`."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        RECENT,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
        if log_format == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
