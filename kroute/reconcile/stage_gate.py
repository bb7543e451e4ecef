"""How the controllers wait for each other, so that a VIP goes live last and is withdrawn first.

A controller says that a plan has passed a stage; other controllers ask whether it has. No controller blocks: each works
on the plans that are ready, and is woken when another plan passes a stage that it waits for.

The four stages of going live cannot wait for each other in a circle. The additions of three stages (SERVED,
ROUTES_PREPARED, ENTRIES_PREPARED) come before any address, and wait for no removal. Removals (WITHDRAWN) wait only for
the additions of their own plan, where new real servers replace old ones on an address that is live, and only for a
limited time.

A stage can be taken back (`revoke`): when the address of a VIP is deleted, its route goes too. A revocation wakes the
controller that says the stage, or another one that has joined to act on it (`acts_on_revoked`). That controller
prepares the plan again, so a repair keeps the order of a first start.

A new controller that others are to wait for declares its own stage in its own module: `ANNOUNCED = Stage("announced")`.
The controller names the stage when it joins the gate; nothing in this module has to know the stage.

Every method runs in the event loop's thread. All but `advance` await nothing, so each call is atomic.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NewType, Protocol

from kroute.model.addresses import Family
from kroute.model.objects import ObjectKey
from kroute.reconcile.batches import cut

Stage = NewType("Stage", str)
"""A point that a plan passes on its way into the kernel. Exactly one controller says which plans have passed it."""

ENTRIES_PREPARED = Stage("entries-prepared")
"""masquerade: the plan's set entries are in place, and the rules were checked and, if necessary, attempted once."""
SERVED = Stage("served")
"""service_proxy: the plan's set entries and virtual servers are in the kernel, or were waited for long enough."""
ROUTES_PREPARED = Stage("routes-prepared")
"""route_fix: the plan's source routes are in place."""
WITHDRAWN = Stage("withdrawn")
"""service_proxy: the addresses, virtual servers and real servers that the plan no longer names are deleted, or take no
new connections, and the plan's own virtual servers are in the kernel, or were waited for long enough. So a port leaves
a set after IPVS has changed: what masquerades or refuses its packets stays as long as IPVS serves as before."""

ENFORCED: Mapping[Family, Stage] = {family: Stage(f"enforced-{family.value.lower()}") for family in Family}
"""masquerade: the ports of this family that the plan restricts are in the set RESTRICTED, and the rules that look up
that set exist. It is said only of plans that restrict ports, of newer plans of their Services, and of deleted Services.
masquerade revokes it, and service_proxy acts on the revocation."""

UNANNOUNCED = Stage("unannounced")
"""announcing: routers do not learn any more the addresses that the plan no longer has announced, or these were waited
for long enough. So an address is withdrawn before service_proxy unbinds it. Nobody says it where nothing is
announced."""

GOING_LIVE = (ENTRIES_PREPARED, SERVED, ROUTES_PREPARED, WITHDRAWN)
"""When a plan has passed these, what it replaced is withdrawn, and all that it wants is in the kernel, except addresses
that are not bound yet: the next pass of service_proxy binds these."""


class Revision(Protocol):
    """One generation of what an owner wants of the kernel: a plan, or EARLIER_RUN."""

    @property
    def key(self) -> ObjectKey:
        """The owner."""

    @property
    def generation(self) -> int:
        """A number that grows with each revision of the same owner."""

    @property
    def is_empty(self) -> bool:
        """Whether it wants nothing, because its owner was deleted."""


class _EarlierRun:
    """The owner of objects that no plan of this run has named: an earlier run or another program made them."""

    key = ObjectKey("", "what an earlier run left")
    generation = 0
    is_empty = False


EARLIER_RUN: Revision = _EarlierRun()
"""The revision that drops what an earlier run left. The first write of service_proxy deletes its addresses and virtual
servers. It passes WITHDRAWN once no Service waits to go live; then its routes and set entries go, except for those of
the set VIP, which go at once."""

HasPassed = Callable[[Revision], bool]

Follower = Callable[[Stage, Sequence[Revision]], None]
"""Called with each stage and the plans that pass it. It must return soon, and change nothing."""


Needs = Callable[[Iterable[Revision]], bool]
"""Whether a controller must be woken because these revisions have passed a stage."""


class _Passage:
    """The state of one stage.

    `has_passed` is asked for each candidate. `is_busy` says whether the controller that says the stage is in a pass.
    `passed` has the newest generation of each owner that has passed the stage, `candidates` the revisions that have yet
    to pass it, `revoked` the owners that have lost it since the last `take_revoked`. `reviser` wakes the controller
    that calls `take_revoked`.

    The controller that says the stage does not receive revisions that have nothing new for it. `renewed` has, for each
    owner with such revisions that have yet to pass the stage, the newest of them and the generation since which they
    are the same. `had_passed` has, for each owner that has lost the stage, the newest generation that had passed it.
    """

    def __init__(self, waker: asyncio.Event, has_passed: HasPassed, is_busy: Callable[[], bool]) -> None:
        self.reviser = waker
        self.has_passed = has_passed
        self.is_busy = is_busy
        self.passed: dict[ObjectKey, int] = {}
        self.candidates: dict[ObjectKey, Revision] = {}
        self.revoked: set[ObjectKey] = set()
        self.had_passed: dict[ObjectKey, int] = {}
        self.renewed: dict[ObjectKey, tuple[int, Revision]] = {}

    def as_renewed(self, revision: Revision) -> Revision:
        """The newest revision that is the same as this one for the controller that says the stage."""
        since, newest = self.renewed.get(revision.key, (0, revision))
        if max(revision.generation, self.had_passed.get(revision.key, 0)) < since:
            return revision
        self.renewed.pop(revision.key, None)
        return newest if newest.generation > revision.generation else revision


class StageGate:
    """Knows for each stage the newest generation of each owner that has passed it, and which have yet to pass it.

    `times_passed` counts, for each stage, how often revisions have passed it. Waits that have a limit count from
    `waits_count_from` at the earliest.
    """

    def __init__(self) -> None:
        self._passages: dict[Stage, _Passage] = {}
        self._waiting: dict[Stage, list[tuple[asyncio.Event, Needs]]] = defaultdict(list)
        """The controllers that wait for each stage: what wakes them, and for which revisions."""
        self._followers: list[Follower] = []
        self.waits_count_from = -math.inf
        self.times_passed: Counter[Stage] = Counter()

    def join(
        self,
        waker: asyncio.Event,
        *,
        says: Mapping[Stage, HasPassed],
        waits_for: Iterable[Stage] = (),
        acts_on_revoked: Iterable[Stage] = (),
        needs: Needs = lambda _: True,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Add a controller. `waker` is set when a stage that it waits for is passed, or one that it says is revoked.

        `says` has a predicate for each stage that the controller says: whether a candidate has passed it. `needs`
        returns whether the controller must be woken when these revisions have passed a stage. `is_busy` returns whether
        the controller is in a pass now: while it is, other controllers continue to wait for it. `acts_on_revoked` are
        stages that other controllers say, and of which this controller takes the revocations instead; those controllers
        must have joined before. A controller may join again, for stages with another `needs`. Raises ValueError if
        another controller says the stage.
        """
        for stage, has_passed in says.items():
            if stage in self._passages:
                raise ValueError(f"two controllers say the stage {stage}")
            self._passages[stage] = _Passage(waker, has_passed, is_busy)
        for stage in waits_for:
            self._waiting[stage].append((waker, needs))
        for stage in acts_on_revoked:
            self._passages[stage].reviser = waker

    def follow(self, follower: Follower) -> None:
        """Call `follower` with every stage and the plans that pass it."""
        self._followers.append(follower)

    def submit(self, revision: Revision, *stages: Stage) -> None:
        """Make this revision a candidate for the stages. It replaces an older one of the same owner."""
        for stage in stages:
            self._passages[stage].candidates[revision.key] = revision

    def renew(self, stage: Stage, before: Revision, revision: Revision) -> None:
        """Let a revision pass the stage together with `before`, the revision before it, or at once if `before` has.

        Call this for a revision with nothing new for the controller that says the stage, which need not receive it.
        """
        passage, owner = self._passages[stage], revision.key
        if passage.passed.get(owner, -1) >= before.generation:
            self._wake(stage, self._note(stage, (revision,)))
            return
        since, newest = passage.renewed.get(owner, (before.generation, before))
        if newest.generation != before.generation:
            since = before.generation
        passage.renewed[owner] = (since, revision)

    def is_said(self, stage: Stage) -> bool:
        """Whether any controller says this stage."""
        return stage in self._passages

    def has_candidates(self, stage: Stage) -> bool:
        """Whether any revision has yet to pass the stage."""
        return bool(self._passages[stage].candidates)

    async def advance(self, stage: Stage, among: Iterable[ObjectKey] | None = None) -> None:
        """Find the candidates that have passed the stage by now, and say so. Other tasks run in between.

        `among` are the owners whose revisions may have passed it since the last call; None: all. The controllers that
        wait are woken once, after the last of them: each looks at all that waits. Only the controller that says the
        stage calls this.
        """
        passage, all_arrived = self._passages[stage], list[Revision]()
        if not passage.candidates:
            return
        owners = passage.candidates if among is None else [owner for owner in among if owner in passage.candidates]
        for number, candidates in enumerate(cut([passage.candidates[owner] for owner in owners])):
            if number:
                await asyncio.sleep(0)
            arrived = [candidate for candidate in candidates if passage.has_passed(candidate)]
            for candidate in arrived:
                del passage.candidates[candidate.key]
            if arrived:
                all_arrived += self._note(stage, arrived)
        if not passage.candidates:
            passage.candidates.clear()  # an emptied dict keeps its table
        if all_arrived:
            self._wake(stage, all_arrived)

    def _note(self, stage: Stage, revisions: Sequence[Revision]) -> Sequence[Revision]:
        """Remember and report what passes a stage; returns the revisions that do, which may be newer ones.

        A deleted owner that has passed all stages is forgotten.
        """
        self.times_passed[stage] += 1
        passage = self._passages[stage]
        if passage.renewed:
            revisions = [passage.as_renewed(revision) for revision in revisions]
        passed, had_passed = passage.passed, passage.had_passed
        for revision in revisions:
            generation = revision.generation
            if had_passed:
                generation = max(generation, had_passed.pop(revision.key, 0))
            if passed.get(revision.key, -1) < generation:
                passed[revision.key] = generation
            if revision.is_empty:
                self._forget_when_over(revision)
        for follower in self._followers:
            follower(stage, revisions)
        return revisions

    def _wake(self, stage: Stage, revisions: Sequence[Revision]) -> None:
        for waker, needs in self._waiting[stage]:
            if needs(revisions):
                waker.set()

    def has_passed(self, revision: Revision, *stages: Stage) -> bool:
        """Whether this revision, or a newer one of its owner, has passed all the stages.

        Raises KeyError for a stage that no controller says.
        """
        owner, generation = revision.key, revision.generation
        for stage in stages:  # noqa: SIM110  controllers ask this of every object, and a generator costs more than this
            if self._passages[stage].passed.get(owner, -1) < generation:
                return False
        return True

    @property
    def any_preparer_is_busy(self) -> bool:
        """Whether any controller that prepares plans is in a pass."""
        return any(passage.is_busy() for passage in self._passages.values())

    def restart_waits(self, now: float) -> None:
        """Count all waits from `now` on, in seconds: a controller has written something, or is still at work."""
        self.waits_count_from = now

    def revoke(self, stage: Stage, owners: Collection[ObjectKey]) -> None:
        """Say that these owners, if any, have lost the stage, and wake the controller that acts upon it."""
        if not owners:
            return
        passage = self._passages[stage]
        for owner in owners:
            if (generation := passage.passed.pop(owner, None)) is not None:
                passage.had_passed[owner] = generation
            passage.revoked.add(owner)
        passage.reviser.set()

    def take_revoked(self, stage: Stage) -> set[ObjectKey]:
        """The owners that have lost the stage since the last call. Only the controller that acts upon it calls this."""
        passage = self._passages[stage]
        taken, passage.revoked = passage.revoked, set()
        return taken

    def _forget_when_over(self, last: Revision) -> None:
        everywhere = [passage.passed for passage in self._passages.values()]
        if all(passed.get(last.key) == last.generation for passed in everywhere):
            for passed in everywhere:
                del passed[last.key]
