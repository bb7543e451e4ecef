"""What a controller's parts account for: writes, repairs, refusals, and when to try again."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

import msgspec
import structlog

from kroute.controllers.retries import Retries
from kroute.planning.objects import ObjectKey

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)

NAMED_SERVICES = 5
"""How many Services a line about many of them names."""


class ControllerStatistics(msgspec.Struct):
    """Counters of one controller since its start; `waiting` is how many objects failed and wait for another attempt.

    `last_audit` is the Unix time of the last complete reading of the kernel, 0 for none.
    """

    writes: int = 0
    repairs: int = 0
    failures: int = 0
    waiting: int = 0
    last_audit: float = 0.0


class Account:
    """One controller's counters and retries. `clock` gives seconds and never goes back."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.retries: Retries[Hashable] = Retries()
        self.counters = ControllerStatistics()
        self._name = name

    def is_waiting(self, key: Hashable) -> bool:
        """Whether this has failed, and is not to be tried yet."""
        return key in self.retries and self.retries.is_waiting(key, self.clock())

    def wrote(self, changes: int) -> None:
        """Count changes that the kernel has accepted."""
        self.counters.writes += changes

    def repaired(self, drift: Iterable[str]) -> None:
        """Count and log what somebody else has changed and is being put right."""
        for what in drift:
            self.counters.repairs += 1
            log.warning("repair", controller=self._name, what=what)

    def refused(self, refusals: Mapping[K, str], owners: Iterable[ObjectKey]) -> None:
        """Count what cannot be done now, by key with a sentence each; each will be tried again later, alone.

        One line says it, when it is new; `owners` are the Services that lack it.
        """
        if not refusals:
            return
        self.counters.failures += len(refusals)
        now = self.clock()
        new = [sentence for key, sentence in refusals.items() if self.retries.failed(key, now)]
        if new:
            services = names_of(owners)
            log.warning(
                "write.refused",
                controller=self._name,
                error=new[0],
                more_errors=len(new) - 1,
                services=services[:NAMED_SERVICES],
                more_services=max(0, len(services) - NAMED_SERVICES),
                next_step="trying again, later and later",
            )

    def failed(self, error: Exception) -> None:
        """Count and log a whole pass that failed."""
        self.counters.failures += 1
        log.error("controller.failed", controller=self._name, error=str(error), next_step="trying again")


def names_of(keys: Iterable[ObjectKey]) -> list[str]:
    """Services as log lines name them, each once."""
    return sorted({str(key) for key in keys})
