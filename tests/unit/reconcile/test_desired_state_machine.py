"""Desired state, with plans, writes, departures, events and a running resync in any order.

The model knows the kernel's real state. Another program may change it without an event: the next resync that begins
after the change finds it, unless an event reports it earlier.
"""

import asyncio
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kroute.model.objects import ObjectKey
from kroute.reconcile.desired_state import Delta, DesiredState, Resync
from kroute.reconcile.stage_gate import EARLIER_RUN, Revision
from tests.builders import plan
from tests.examples import examples

Value = tuple[int]
NOTHING: Value = (0,)
"""A desired value that is satisfied when the kernel has no such object."""

KEYS = ("k", "l", "m", "n")
OWNERS = ("a", "b", "c")

keys = st.sampled_from(KEYS)
numbers = st.integers(0, 2)
kernels = st.dictionaries(keys, st.integers(1, 2))


class Following(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()
        self.state: DesiredState[str, Value] = DesiredState(
            is_nothing=lambda desired: desired == NOTHING, count=lambda key, change: self.counted.update({key: change})
        )
        self.touched: set[ObjectKey] = set()
        self.true_of = {(EARLIER_RUN.key, self.state.is_settled), (EARLIER_RUN.key, self.state.has_departed)}
        self.state.touch = self.touched.update
        self.kernel: dict[str, Value] = {}
        self.unknown: set[str] = set(KEYS)
        self.desired: dict[ObjectKey, dict[str, Value]] = {}
        self.order: dict[str, list[ObjectKey]] = {key: [] for key in KEYS}
        self.let_go: dict[str, Revision] = {}
        self.generation = 0
        self.resync: Resync[str, Value] | None = None

    @initialize(kernel=kernels)
    def an_earlier_run_left(self, kernel: dict[str, int]) -> None:
        self.kernel = {key: (number,) for key, number in kernel.items()}

    @rule(name=st.sampled_from(OWNERS), objects=st.dictionaries(keys, numbers))
    def want(self, name: str, objects: dict[str, int]) -> None:
        self.generation += 1
        revision = plan(name, generation=self.generation)
        before = self.desired.get(revision.key, {})
        desired = {key: (number,) for key, number in objects.items()}
        desired |= {key: before[key] for key in desired if desired[key] == before.get(key)}  # as the catalog does
        for key in before.keys() - desired.keys():
            self.order[key].remove(revision.key)
            if not self.order[key] and key in self.state.applied:
                self.let_go[key] = revision
        for key in [key for key, value in desired.items() if before.get(key) != value]:
            self.order[key] = [owner for owner in self.order[key] if owner != revision.key] + [revision.key]
            self.let_go.pop(key, None)
        self.desired[revision.key] = desired
        self.state.want(revision, desired)

    @rule(refused=st.sets(keys))
    def write(self, refused: set[str]) -> None:
        for delta in asyncio.run(self.state.all_pending()):
            if delta.key not in refused:
                self._set(delta.key, None if delta.desired == NOTHING else delta.desired)
                self._tell(delta.key)
        if not refused | self.unknown:
            assert self.kernel == {key: value for key in KEYS if (value := self._desired(key)) not in {None, NOTHING}}
            assert all(self.state.is_settled(owner) and self.state.has_departed(owner) for owner in self.desired)
            assert self.state.has_departed(EARLIER_RUN.key)

    @rule(key=keys, number=st.none() | st.integers(1, 2))
    def somebody_else_changes(self, key: str, number: int | None) -> None:
        self._set(key, None if number is None else (number,))
        self.unknown.add(key)
        if self.resync is not None:
            self.changed_since.add(key)

    @rule(key=keys)
    def an_event_tells_of(self, key: str) -> None:
        self._tell(key)

    @rule(key=keys)
    def what_makes_it_right_has_changed(self, key: str) -> None:
        self.state.recheck(key)
        if self.resync is not None:
            self.changed_since.add(key)

    @precondition(lambda self: self.resync is None)
    @rule(data=st.data())
    def a_resync_begins(self, data: st.DataObject) -> None:
        self.resync = self.state.resync()
        self.reading = data.draw(st.permutations(sorted(self.kernel.items())))
        self.unknown_before, self.changed_since = set(self.unknown), set[str]()

    @precondition(lambda self: self.resync is not None)
    @rule()
    def the_resync_finds(self) -> None:
        if self.reading:
            assert self.resync is not None
            key, (number,) = self.reading.pop()
            self.resync.found(key, (number,))

    @precondition(lambda self: self.resync is not None)
    @rule()
    def the_resync_ends(self) -> None:
        while self.reading:
            self.the_resync_finds()
        assert self.resync is not None
        drift: list[Delta[str, Value]] = asyncio.run(self.resync.complete())
        self.resync = None
        assert {delta.key for delta in drift} <= self.unknown_before
        self.unknown &= self.changed_since

    @invariant()
    def what_is_desired_is_the_newest_wish(self) -> None:
        for key in KEYS:
            assert self.state.owners(key) == tuple(self.order[key])
            assert self.state.desired(key) == self._desired(key)

    @invariant()
    def what_may_be_known_is_known(self) -> None:
        for key in set(KEYS) - self.unknown:
            assert self.state.applied.get(key) == self.kernel.get(key)

    @invariant()
    def what_is_applied_was_counted_once(self) -> None:
        assert self.counted == Counter(self.state.applied.keys())

    @invariant()
    def what_is_wrong_is_in_doubt(self) -> None:
        assert all(self.state.is_right(key) or key in self.state.unsettled for key in KEYS)

    @invariant()
    def what_is_there_as_desired_is_the_plans_own_object(self) -> None:
        for key, value in self.state.applied.items():
            if value == self._desired(key) and key not in self.state.unsettled:
                assert value is self._desired(key)

    @invariant()
    def what_leaves_was_let_go_by_the_last_who_wanted_it(self) -> None:
        unwanted = [key for key in self.state.applied if not self.order[key]]
        self.let_go = {key: self.let_go.get(key, EARLIER_RUN) for key in unwanted}
        for key in KEYS:
            assert self.state.is_leaving(key) == (key in self.state.applied and not self.order[key])
            assert self.state.dropped_by(key) is self.let_go.get(key, EARLIER_RUN)
        left = {revision.key for revision in self.let_go.values()}
        for owner in (*self.desired, EARLIER_RUN.key):
            assert self.state.has_departed(owner) == (owner not in left)

    @invariant()
    def an_owner_that_becomes_settled_or_departed_was_touched(self) -> None:
        owners = (*self.desired, EARLIER_RUN.key)
        true_of = {
            (owner, is_so)
            for is_so in (self.state.is_settled, self.state.has_departed)
            for owner in owners
            if is_so(owner)
        }
        assert {owner for owner, _ in true_of - self.true_of} <= self.touched
        self.true_of = true_of
        self.touched.clear()

    def _desired(self, key: str) -> Value | None:
        return self.desired[self.order[key][-1]][key] if self.order[key] else None

    def _set(self, key: str, value: Value | None) -> None:
        if value is None:
            self.kernel.pop(key, None)
        else:
            self.kernel[key] = value

    def _tell(self, key: str) -> None:
        """Tell the desired state what the kernel has, as after a write or an event."""
        self.state.note_applied(key, self.kernel.get(key))
        self.unknown.discard(key)
        if self.resync is not None:
            self.changed_since.discard(key)


TestFollowing = Following.TestCase
TestFollowing.settings = examples(100, stateful_step_count=40)
