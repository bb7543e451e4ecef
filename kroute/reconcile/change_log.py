"""Log changes: one line for each, unless a batch has very many."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

T = TypeVar("T")

MANY = 64
"""A batch of more changes than this gets one line for each kind of change; each change is logged at level debug."""


def log_changes(
    log: FilteringBoundLogger,
    changes: Sequence[T],
    event: Callable[[T], str],
    fields: Callable[[T], Mapping[str, object]],
) -> None:
    """Log a batch: the start with thousands of Services in a few lines, a small edit in full.

    `event` returns a name such as `vip.bound`. `fields` is called only for changes that get a line.
    """
    if len(changes) <= MANY:
        for change in changes:
            log.info(event(change), **fields(change))
        return
    for name, count in Counter(map(event, changes)).items():
        log.info(name, count=count)
    if log.is_enabled_for(logging.DEBUG):
        for change in changes:
            log.debug(event(change), **fields(change))
