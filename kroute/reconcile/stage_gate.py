"""How the controllers wait for each other, so that a VIP goes live last and goes away first.

A controller says which stage of a plan has been passed; another asks whether it has been. Nobody blocks: a controller
goes on with what is ready, and is woken when a stage that it waits for is passed by some plan. The four stages of going
live do not depend on each other in a circle: additions of all three (SERVED, ROUTES_PREPARED, ENTRIES_PREPARED) come
before any address and wait for no removal; removals (WITHDRAWN) wait at most for the additions of their own plan, where
new real servers replace old ones on an address that is live, and for those only so long.

A stage can be lost again: with the address of a VIP goes its route. Who notices takes the stage back (`retract`), which
wakes the controller that says it, to pass it anew: so a repair keeps the order of a first start.

Who adds a controller that others are to wait for gives it a stage of its own, beside its code: `ANNOUNCED =
Stage("announced")`. It says that stage when it joins the gate; nothing here has to know of it.

Everything but `advance` runs in the event loop's thread and awaits nothing, so each call is atomic.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NewType, Protocol

from kroute.model.objects import ObjectKey
from kroute.reconcile.batches import sliced

Stage = NewType("Stage", str)
"""A point that a plan passes on its way into the kernel. One controller says that it has been passed."""

ENTRIES_PREPARED = Stage("entries-prepared")
"""masquerade: the plan's set entries are in place."""
SERVED = Stage("served")
"""service_proxy: the plan's virtual servers are there, behind its set entries, or were waited for long enough."""
ROUTES_PREPARED = Stage("routes-prepared")
"""route_fix: the plan's source routes are in place."""
WITHDRAWN = Stage("withdrawn")
"""service_proxy: the addresses, virtual servers and real servers that the plan no longer names are gone, or take no
new connections."""

GOING_LIVE = (ENTRIES_PREPARED, SERVED, ROUTES_PREPARED, WITHDRAWN)
"""A plan that has passed these is in the kernel in full, and what it replaced is gone."""


class Revision(Protocol):
    """One generation of what an owner wants of the kernel: a plan, or EARLIER_RUN.

    Generations of one owner grow. One that `is_empty` wants nothing: its owner has gone.
    """

    @property
    def key(self) -> ObjectKey:
        """The owner."""

    @property
    def generation(self) -> int:
        """How new it is."""

    @property
    def is_empty(self) -> bool:
        """Whether the owner has gone."""


class _EarlierRun:
    """The owner of what was there before this run, and that none of its plans has named so far."""

    key = ObjectKey("", "what an earlier run left")
    generation = 0
    is_empty = False


EARLIER_RUN: Revision = _EarlierRun()
"""What an earlier run wanted. It is withdrawn like what a plan lets go, so it goes in the same order as always."""

HasPassed = Callable[[Revision], bool]

Follower = Callable[[Stage, Sequence[Revision]], None]
"""Looks on while plans pass stages; must return soon, and change nothing."""


class _Passage:
    """What is known of one stage: who says it, who has passed it, who has yet to, and who has lost it."""

    def __init__(self, waker: asyncio.Event, has_passed: HasPassed) -> None:
        self.waker = waker
        self.has_passed = has_passed
        self.passed: dict[ObjectKey, int] = {}
        self.candidates: dict[ObjectKey, Revision] = {}
        self.retracted: set[ObjectKey] = set()


class StageGate:
    """The newest generation of each owner that has passed each stage, and those that have yet to pass it."""

    def __init__(self) -> None:
        self._passages: dict[Stage, _Passage] = {}
        self._waiting: dict[Stage, list[asyncio.Event]] = defaultdict(list)
        self._followers: list[Follower] = []
        self.progress = -math.inf

    def join(self, waker: asyncio.Event, *, says: Mapping[Stage, HasPassed], waits_for: Iterable[Stage] = ()) -> None:
        """Take a controller in, which `waker` wakes: when a stage that it waits for is passed, or one of its own lost.

        `says` has a question for each of its stages: whether a candidate has passed it. A stage is said by one
        controller only (ValueError).
        """
        for stage, has_passed in says.items():
            if stage in self._passages:
                raise ValueError(f"two controllers say the stage {stage}")
            self._passages[stage] = _Passage(waker, has_passed)
        for stage in waits_for:
            self._waiting[stage].append(waker)

    def follow(self, follower: Follower) -> None:
        """Call this with every stage and the plans that pass it."""
        self._followers.append(follower)

    def submit(self, revision: Revision, *stages: Stage) -> None:
        """This one is new, or has lost the stages; it takes the place of an older one of the same owner."""
        for stage in stages:
            self._passages[stage].candidates[revision.key] = revision

    def has_candidates(self, stage: Stage) -> bool:
        """Whether anybody has yet to pass the stage."""
        return bool(self._passages[stage].candidates)

    async def advance(self, stage: Stage) -> None:
        """Say which candidates have passed the stage by now; for the controller that says it. Others run meanwhile."""
        passage = self._passages[stage]
        async for candidates in sliced(list(passage.candidates.values())):
            arrived = [candidate for candidate in candidates if passage.has_passed(candidate)]
            for candidate in arrived:
                del passage.candidates[candidate.key]
            if arrived:
                self.say(stage, arrived)

    def say(self, stage: Stage, revisions: Iterable[Revision]) -> None:
        """Say that these have passed the stage. A gone owner is forgotten once it has passed every stage."""
        passed = self._passages[stage].passed
        revisions = tuple(revisions)
        for revision in revisions:
            passed[revision.key] = max(revision.generation, passed.get(revision.key, -1))
            if revision.is_empty:
                self._forget_when_over(revision)
        for waker in self._waiting[stage]:
            waker.set()
        for follower in self._followers:
            follower(stage, revisions)

    def has_passed(self, revision: Revision, *stages: Stage) -> bool:
        """Whether this one, or a newer one of the same owner, has passed all the stages. KeyError: nobody says one."""
        return all(self._passages[stage].passed.get(revision.key, -1) >= revision.generation for stage in stages)

    def proceed(self, now: float) -> None:
        """A controller has written something, and is not stuck: `progress` is when that was last so, in seconds."""
        self.progress = now

    def retract(self, stage: Stage, owners: Iterable[ObjectKey]) -> None:
        """Say that these have lost the stage, and ask its controller to pass it anew."""
        passage = self._passages[stage]
        for owner in owners:
            passage.passed.pop(owner, None)
            passage.retracted.add(owner)
        passage.waker.set()

    def take_retracted(self, stage: Stage) -> set[ObjectKey]:
        """Those that have lost the stage since the last call; for the controller that says it."""
        passage = self._passages[stage]
        taken, passage.retracted = passage.retracted, set()
        return taken

    def _forget_when_over(self, last: Revision) -> None:
        everywhere = [passage.passed for passage in self._passages.values()]
        if all(passed.get(last.key) == last.generation for passed in everywhere):
            for passed in everywhere:
                del passed[last.key]
