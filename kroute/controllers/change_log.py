"""Log what was changed: one line a change, unless there are very many at once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

MANY = 64
"""More changes than this in one batch are one line each kind; the single ones are there at level debug."""


class Change(NamedTuple):
    """An event such as `vip.bound`, and its fields."""

    event: str
    fields: Mapping[str, object]


def log_changes(log: structlog.typing.FilteringBoundLogger, changes: Sequence[Change]) -> None:
    """Log a batch. A start with thousands of Services is told in a few lines, an edit in full."""
    emit = log.info if len(changes) <= MANY else log.debug
    for change in changes:
        emit(change.event, **change.fields)
    if len(changes) > MANY:
        for event, count in Counter(change.event for change in changes).items():
            log.info(event, count=count)
