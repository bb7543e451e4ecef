"""Log what was changed: one line a change, unless there are very many at once."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

T = TypeVar("T")

MANY = 64
"""More changes than this in one batch are one line each kind; the single ones are there at level debug."""


def log_changes(
    log: FilteringBoundLogger,
    changes: Sequence[T],
    event: Callable[[T], str],
    fields: Callable[[T], Mapping[str, object]],
) -> None:
    """Log a batch. A start with thousands of Services is summed up in a few lines; an edit is logged in full.

    `event` gives a name such as `vip.bound`; `fields` is only asked where its answer is logged.
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
