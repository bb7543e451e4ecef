"""Write a batch of changes, then log, count and note as applied each accepted change, and retry each refused one.

A log has one line for each change, unless a batch has very many.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Generic, TypeVar

from structlog.typing import FilteringBoundLogger

from kroute.base.logs import written_together
from kroute.kernel.errors import Failure
from kroute.model.objects import ObjectKey
from kroute.reconcile.pass_status import PassStatus

C = TypeVar("C")
K = TypeVar("K", bound=Hashable)

MANY = 64
"""A batch of more changes than this gets one line for each kind of change; each change is logged at level debug."""


class BatchWriter(Generic[C, K]):
    """Writes changes of one kind (C), each of which concerns one object (K), and does what follows.

    `key_of` returns a change's object: an object that is refused is tried again later, alone. `tell` logs the changes
    that the kernel has accepted, before `note` notes each as applied (None: the caller does that). `owners_of` returns
    the Services that need an object.
    """

    def __init__(
        self,
        status: PassStatus,
        key_of: Callable[[C], K],
        tell: Callable[[Sequence[C]], None],
        note: Callable[[C], None] | None,
        owners_of: Callable[[K], Iterable[ObjectKey]],
    ) -> None:
        self._status = status
        self._key_of = key_of
        self._tell = tell
        self._note = note
        self._owners_of = owners_of

    async def write(
        self,
        changes: Sequence[C],
        send: Callable[[Sequence[C]], Awaitable[Sequence[Failure[C]]]],
        harmless: Container[int] = (),
    ) -> list[C]:
        """Send the changes, and conclude; returns those that the kernel has accepted.

        A change that is refused with an errno in `harmless` counts as accepted: the kernel was already as desired.
        """
        failures = await send(changes)
        return self.conclude(
            changes,
            {self._key_of(failure.change): str(failure) for failure in failures if failure.errno not in harmless},
        )

    def conclude(self, changes: Sequence[C], refusals: Mapping[K, str]) -> list[C]:
        """Do what follows a write; returns the changes that the kernel has accepted.

        `refusals` are the refused objects, each with a sentence that says why.
        """
        done = [change for change in changes if self._key_of(change) not in refusals] if refusals else list(changes)
        self._tell(done)
        if self._note is not None:
            for change in done:
                self._note(change)
        self._status.wrote(len(done))
        self._status.refused(refusals, (owner for key in refusals for owner in self._owners_of(key)))
        return done


def log_changes(
    log: FilteringBoundLogger,
    changes: Sequence[C],
    event: Callable[[C], str],
    fields: Callable[[C], Mapping[str, object]],
) -> None:
    """Log a batch: the start with thousands of Services in a few lines, a small edit in full.

    `event` returns a name such as `vip.bound`. `fields` is called only for changes that get a line.
    """
    if len(changes) <= MANY:
        with written_together() if len(changes) > 1 else nullcontext():
            for change in changes:
                log.info(event(change), **fields(change))
        return
    for name, count in Counter(map(event, changes)).items():
        log.info(name, count=count)
    if log.is_enabled_for(logging.DEBUG):
        for change in changes:
            log.debug(event(change), **fields(change))
