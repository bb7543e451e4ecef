"""Counts a controller's writes, repairs, refusals and failures, and says when to try again."""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from errno import EACCES, EPERM
from typing import TypeVar

import msgspec
import structlog

from kroute.base.backoff import Retries, exhaustion
from kroute.base.histogram import Histogram
from kroute.kernel.errors import KernelError
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)

DENIALS = frozenset({EPERM, EACCES})
"""The error numbers with which the kernel denies a call because a privilege is missing."""

PASS_BOUNDS = tuple(0.001 * 2**exponent for exponent in range(15))
"""Bounds in seconds, the same as those of kube-proxy's sync histogram (pkg/proxy/metrics/metrics.go)."""

_NONE: frozenset[Hashable] = frozenset()

NAMED_SERVICES = 5
"""How many Services a log line about many Services names."""

Report = Callable[[ObjectKey, Problem], None]
"""Called with a Service and a problem of it that only an attempt to write to the kernel shows."""


class ControllerStatistics(msgspec.Struct):
    """Counters of one controller since its start.

    `waiting` is how many objects failed and wait for another attempt. `denied` counts failures because of a missing
    privilege. `resyncs` counts complete scans of the kernel, `looks` those looks that found no reason for a resync. The
    last resync took `resync_cost` seconds of processor time; unless there is a reason for one earlier, the next comes
    `resync_pause` seconds after it. `digests`, `digest_cost` and `digest_pause` are the same for the digests that looks
    and resyncs take. `last_resync` is the Unix time of the last scan, `last_look` that of the last look or scan,
    `last_success` that of the last pass that did not fail as a whole; 0 for none. `failing_for` is for how many seconds
    every pass has failed, the last one with `last_error`. `busy_for` is for how many seconds the current pass has been
    running.
    """

    writes: int = 0
    repairs: int = 0
    failures: int = 0
    denied: int = 0
    waiting: int = 0
    resyncs: int = 0
    looks: int = 0
    resync_cost: float = 0.0
    resync_pause: float = 0.0
    digests: int = 0
    digest_cost: float = 0.0
    digest_pause: float = 0.0
    last_resync: float = 0.0
    last_look: float = 0.0
    last_success: float = 0.0
    failing_for: float = 0.0
    busy_for: float = 0.0
    last_error: str = ""


class PassStatus:
    """The counters and retries of one controller. `clock` returns seconds and never goes back."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.retries: Retries[Hashable] = Retries()
        self.counters = ControllerStatistics()
        self._name = name
        self._failing_since: float | None = None
        self._hindered_since: float | None = None
        self._hindrance = ""
        self._busy_since: float | None = None
        self._done_before = (0, 0.0)
        self.passes = Histogram(PASS_BOUNDS)

    def statistics(self) -> ControllerStatistics:
        """The counters as they are now."""
        return msgspec.structs.replace(
            self.counters,
            waiting=len(self.retries),
            failing_for=max(self._since(self._failing_since), self._since(self._hindered_since)),
            last_error=self.counters.last_error or self._hindrance,
            busy_for=self._since(self._busy_since),
        )

    def waiting(self) -> Set[Hashable]:
        """The keys of what has failed and is not due for its next attempt yet."""
        return self.retries.waiting(self.clock()) if self.retries else _NONE

    def wrote(self, changes: int) -> None:
        """Count changes that the kernel has accepted."""
        self.counters.writes += changes

    def repaired(self, drift: Iterable[str]) -> None:
        """Count and log each repair of what another program has changed."""
        for what in drift:
            self.counters.repairs += 1
            log.warning("repair", controller=self._name, what=what)

    def refused(self, refusals: Mapping[K, str], owners: Iterable[ObjectKey]) -> None:
        """Count refused writes, given as a sentence for each key. Each is tried again later, alone.

        New refusals are logged once, in one line, with `owners`: the Services that need the objects.
        """
        if not refusals:
            return
        self.counters.failures += len(refusals)
        now = self.clock()
        new = [sentence for key, sentence in refusals.items() if self.retries.failed(key, now)]
        if new:
            log.warning(
                "write.refused",
                controller=self._name,
                error=new[0],
                more_errors=len(new) - 1,
                **some_of(owners),
                next_step="trying again, later and later",
            )

    def begins(self, now: float) -> None:
        """A whole pass begins."""
        self._busy_since = now
        self._done_before = self._done

    def ends(self) -> None:
        """A whole pass ends, after `failed` or `succeeded`. Its duration is observed unless it had nothing to do."""
        if self._done != self._done_before:
            self.passes.observe(self._since(self._busy_since))
        self._busy_since = None

    def succeeded(self) -> None:
        """Note that a whole pass went through, though single writes may have been refused."""
        self._failing_since = None
        self.counters.last_success = time.time()
        self.counters.last_error = ""

    def hindered(self, by: str) -> None:
        """Note what prevents a write that concerns all Services, though passes succeed; "" if nothing prevents it."""
        self._hindrance = by
        if not by:
            self._hindered_since = None
        elif self._hindered_since is None:
            self._hindered_since = self.clock()

    def failed(self, error: Exception) -> None:
        """Count and log a whole pass that failed."""
        if self._failing_since is None:
            self._failing_since = self.clock()
        self.counters.failures += 1
        self.counters.denied += isinstance(error, KernelError) and error.errno in DENIALS
        if str(error) == self.counters.last_error:
            return  # said already
        self.counters.last_error = str(error)
        what_to_do = exhaustion(error)
        next_step = f"{what_to_do}; trying again" if what_to_do else "trying again"
        log.error("controller.failed", controller=self._name, error=str(error), next_step=next_step)

    @property
    def _done(self) -> tuple[int, float]:
        return self.counters.writes + self.counters.failures, self.counters.last_resync

    def _since(self, moment: float | None) -> float:
        return 0.0 if moment is None else self.clock() - moment


def names_of(keys: Iterable[ObjectKey]) -> list[str]:
    """The names of Services for a log line: sorted, each once."""
    return sorted({str(key) for key in keys})


def some_of(keys: Iterable[ObjectKey]) -> dict[str, object]:
    """The fields of a log line about many Services: the names of the first, and how many more there are."""
    services = names_of(keys)
    return {"services": services[:NAMED_SERVICES], "more_services": max(0, len(services) - NAMED_SERVICES)}
