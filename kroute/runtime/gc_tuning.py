"""Keep the garbage collector's work small while kroute holds many live objects.

Nearly everything that kroute holds (objects of the API, plans, what was applied) is in no cycle and is freed by its
reference count the moment it is replaced; cycles come from failures, a few each. Yet a full collection visits
everything: with 100,000 endpoints that holds the event loop for a quarter of a second and more.

So there is no full collection while the initial sync is on its way into the kernel, and what is there then is put aside
(`gc.freeze`): no later collection visits it. From then on a full collection that was slow is the sign to put aside what
has outlived it. What is put aside is freed as before when nobody refers to it. Only what becomes a cycle of garbage
after that stays for good: of what is there for long, that is nothing; a watch that ends and begins anew leaves none.

The collector starts when there are so many objects more than the last time. Where plans replace plans there are not,
and the new ones would pile up until some collection met all of them. So it is started after so many plans, too.
"""

import gc
import time
from typing import Self

SLOW = 0.004
"""Seconds that a full collection may take before what it has left is put aside."""

PLANS = 256
"""Plans made between two full collections."""

_YOUNG = (1_000, 5)
"""Objects made (less those freed) before the youngest generation is collected, and how many such collections before the
middle one is."""
_NEVER = 1_000_000


class GcTuning:
    """The agent's settings of Python's garbage collector, in force inside a `with` block."""

    def __init__(self) -> None:
        self._has_loaded = False
        self._plans = 0
        self._started = 0.0
        self._usual = gc.get_threshold()

    def __enter__(self) -> Self:
        """Put aside what was imported. Until `loaded`, only what is young is looked at."""
        self._usual = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(*_YOUNG, _NEVER)
        return self

    def __exit__(self, *_exc: object) -> None:
        gc.set_threshold(*self._usual)  # what was put aside stays so, and the end of the process need not visit it
        if self._has_loaded:
            gc.callbacks.remove(self._watch)

    def loaded(self) -> None:
        """What there is to hold is there: put it aside, and look at everything that comes."""
        gc.freeze()
        gc.set_threshold(*_YOUNG, 1)
        gc.callbacks.append(self._watch)
        self._has_loaded = True
        self._plans = 0

    def made(self, plans: int) -> None:
        """So many plans have been made."""
        self._plans += plans
        if self._has_loaded and self._plans >= PLANS:
            self._plans = 0
            gc.collect()

    def _watch(self, phase: str, collection: dict[str, int]) -> None:
        """Called by the collector at the beginning and the end of every collection."""
        if collection["generation"] < 2:
            return
        if phase == "start":
            self._started = time.perf_counter()
        elif time.perf_counter() - self._started > SLOW:
            gc.freeze()
