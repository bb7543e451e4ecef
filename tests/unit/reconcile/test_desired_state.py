"""Desired state: what Services want, what the kernel has, and the deltas."""

import asyncio

from kroute.model.objects import ObjectKey
from kroute.reconcile.batches import BATCH
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.stage_gate import EARLIER_RUN
from tests.builders import plan

A, B = plan("a"), plan("b")


async def test_what_is_wanted_and_not_there_is_a_difference() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1})
    assert await state.all_pending() == [Delta("x", None, 1)]


async def test_what_was_wanted_first_is_written_first() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, dict.fromkeys("qzamx", 1))
    state.want(B, dict.fromkeys("ck", 1))
    assert [delta.key for delta in await state.all_pending()] == list("qzamxck")


async def test_what_was_written_is_no_difference_any_more() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1})
    state.note_applied("x", 1)
    assert await state.all_pending() == []
    assert state.is_settled(A.key)


async def test_a_changed_value_is_a_difference() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1})
    state.note_applied("x", 1)
    state.want(A, {"x": 2})
    assert await state.all_pending() == [Delta("x", 1, 2)]
    assert not state.is_settled(A.key)


async def test_of_many_objects_only_those_in_doubt_are_compared_again() -> None:
    compared: list[int] = []
    state: DesiredState[str, int] = DesiredState(agree=lambda one, other: compared.append(one) is None and one == other)
    state.want(A, {str(number): number for number in range(1000)} | {"x": -1, "y": -2})
    for number in range(1000):
        state.note_applied(str(number), number)
    state.want(B, {"b": 1})
    compared.clear()
    assert list(state.unsettled_of(A.key)) == ["x", "y"]
    assert not state.is_settled(A.key)
    state.note_applied("x", -1)
    state.note_applied("y", -2)
    assert state.is_settled(A.key)
    assert not state.is_settled(B.key)
    assert len(compared) == 2


async def test_an_object_stays_until_its_last_owner_lets_go() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1})
    state.want(B, {"x": 1})
    state.note_applied("x", 1)
    state.want(A, {})
    assert not state.is_leaving("x")
    assert await state.all_pending() == []
    state.want(B, {})
    assert state.is_leaving("x")
    assert await state.all_pending() == [Delta("x", 1, None)]


async def test_what_was_never_applied_is_not_released() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1})
    state.want(A, {})
    assert not state.is_leaving("x")
    assert await state.all_pending() == []


async def test_of_two_owners_the_newest_counts_and_the_older_one_is_back_when_it_goes() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1})
    state.want(B, {"x": 2})
    assert state.desired("x") == 2
    assert state.owners("x") == (A.key, B.key)
    state.note_applied("x", 2)
    state.want(B, {})
    assert await state.all_pending() == [Delta("x", 2, 1)]


async def test_an_object_that_failed_stays_a_difference_until_it_is_right() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1})
    assert await state.all_pending() == await state.all_pending() != []


async def read(state: DesiredState[str, int], found: dict[str, int]) -> list[Delta[str, int]]:
    resync = state.resync()
    for key, value in found.items():
        resync.found(key, value)
    return await resync.complete()


async def test_a_first_resync_that_agrees_with_what_is_desired_leaves_nothing_to_do() -> None:
    state: DesiredState[str, int] = DesiredState()
    await read(state, {"x": 1, "y": 2})
    state.want(A, {"x": 1, "y": 2})
    assert await state.all_pending() == []


async def test_a_resync_tells_what_has_drifted_and_only_that() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1, "y": 2, "z": 3})
    for key, value in {"x": 1, "y": 2, "z": 3}.items():
        state.note_applied(key, value)
    state.want(B, {"new": 9})
    drift = await read(state, {"x": 1, "y": 5, "stray": 7})
    assert sorted(drift) == [Delta("stray", 7, None), Delta("y", 5, 2), Delta("z", None, 3)]
    assert sorted(await state.all_pending(), key=str) == sorted([*drift, Delta("new", None, 9)], key=str)


def test_agreement_is_the_owners_matter() -> None:
    state: DesiredState[str, int] = DesiredState(lambda applied, desired: applied >= desired)
    state.want(A, {"x": 1})
    state.note_applied("x", 5)
    assert state.is_right("x")


def test_the_owner_of_an_object_that_is_compared_again_is_touched() -> None:
    tolerance, touched = 0, set[ObjectKey]()
    state = DesiredState[str, int](lambda applied, desired: abs(applied - desired) <= tolerance)
    state.want(A, {"x": 1})
    state.note_applied("x", 2)
    state.touch = touched.update
    tolerance = 1
    state.recheck("x")
    assert state.is_settled(A.key)
    assert touched == {A.key}


async def test_what_is_there_and_nobody_wants_is_known() -> None:
    state: DesiredState[str, int] = DesiredState()
    await read(state, {"x": 1, "y": 2})
    state.want(A, {"x": 1})
    assert state.unwanted() == ["y"]


async def test_what_was_there_and_is_not_found_has_gone() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1})
    state.note_applied("x", 1)
    state.note_applied("stray", 2)
    assert await read(state, {}) == [Delta("x", None, 1)]
    assert state.applied == {}


async def test_what_equals_the_wanted_value_is_one_object_with_it() -> None:
    state: DesiredState[str, tuple[int, ...]] = DesiredState()
    desired, found = tuple(range(2)), tuple(range(2))
    resync = state.resync()
    resync.found("x", found)
    await resync.complete()
    state.want(A, {"x": desired})
    assert await state.all_pending() == []
    assert state.applied["x"] is desired
    resync = state.resync()
    resync.found("x", found)
    assert await resync.complete() == []
    assert state.applied["x"] is desired


async def test_what_only_agrees_with_the_wanted_value_is_remembered_as_it_is() -> None:
    state: DesiredState[str, int] = DesiredState(lambda applied, desired: applied >= desired)
    state.want(A, {"x": 1})
    state.note_applied("x", 5)
    state.recheck("x")
    assert await state.all_pending() == []
    assert state.applied["x"] == 5


async def test_what_is_pending_lets_others_run_between_slices() -> None:
    state: DesiredState[int, int] = DesiredState()
    state.want(A, dict.fromkeys(range(3 * BATCH), 1))
    turns: list[int] = []

    async def count() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert len(await state.all_pending()) == 3 * BATCH
    counting.cancel()
    assert len(turns) >= 2


async def test_the_key_of_a_resync_gives_way_to_that_of_the_plan() -> None:
    state: DesiredState[tuple[int, ...], int] = DesiredState()
    found, named = tuple(range(2)), tuple(range(2))
    resync = state.resync()
    resync.found(found, 1)
    await resync.complete()
    state.want(A, {named: 1})
    assert await state.all_pending() == []
    assert [key is named for key in state.applied] == [True]


async def test_what_is_written_while_a_resync_goes_on_is_newer_than_what_it_finds() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"changed": 1, "gone": 1})
    for key in ("changed", "gone"):
        state.note_applied(key, 1)
    resync = state.resync()
    state.want(A, {"changed": 2, "new": 2})
    for key, value in (("changed", 2), ("gone", None), ("new", 2)):
        state.note_applied(key, value)
    resync.found("changed", 1)
    resync.found("gone", 1)
    assert await resync.complete() == []
    assert state.applied == {"changed": 2, "new": 2}
    assert await state.all_pending() == []


def test_what_leaves_is_let_go_by_the_plan_that_named_it_last() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.note_applied("x", 1)
    assert state.dropped_by("x") is EARLIER_RUN
    state.want(A, {"x": 1})
    gone = plan("a", generation=2)
    state.want(gone, {})
    assert state.dropped_by("x") is gone
    assert state.responsible("x") == (A.key,)
    assert not state.has_departed(A.key)
    state.note_applied("x", None)
    assert state.has_departed(A.key)


def test_what_is_wanted_again_leaves_no_more() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1})
    state.note_applied("x", 1)
    state.want(plan("a", generation=2), {})
    state.want(B, {"x": 1})
    assert state.has_departed(A.key)
    assert not state.is_leaving("x")
    assert state.responsible("x") == (B.key,)


async def test_what_a_resync_finds_gone_has_departed() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {"x": 1})
    state.note_applied("x", 1)
    state.want(plan("a", generation=2), {})
    assert await read(state, {}) == []
    assert state.has_departed(A.key)
    assert await state.all_pending() == []


def test_what_an_earlier_run_left_is_what_no_plan_ever_named() -> None:
    state: DesiredState[str, int] = DesiredState()
    for key in ("x", "y", "z"):
        state.note_applied(key, 1)
    state.want(A, {"x": 1, "y": 1})
    state.want(plan("a", generation=2), {"x": 1})
    assert not state.has_departed(EARLIER_RUN.key)
    state.note_applied("z", None)
    assert state.has_departed(EARLIER_RUN.key)
    assert not state.has_departed(A.key)


class Counted(str):
    """A key that counts how often keys are compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)  # type: ignore[no-any-return]

    __hash__ = str.__hash__


async def test_what_a_restart_finds_of_one_owner_costs_no_more_than_of_many() -> None:
    state: DesiredState[str, int] = DesiredState()
    state.want(A, {Counted(number): 1 for number in range(1000)})
    before = Counted.comparisons
    drift = await read(state, {Counted(number): 1 for number in range(1000)})
    assert (drift, set(state.unsettled)) == ([], set())
    assert Counted.comparisons - before < 20_000
