"""Claims: what Services want, what the kernel has, and the difference."""

import asyncio

from kroute.model.objects import ObjectKey
from kroute.reconcile.batches import BATCH
from kroute.reconcile.desired_state import Claims, Difference

A, B = ObjectKey("default", "a"), ObjectKey("default", "b")


def test_what_is_claimed_and_not_there_is_a_difference() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"x": 1})
    assert list(claims.differences()) == [Difference("x", None, 1)]


def test_what_was_written_is_no_difference_any_more() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"x": 1})
    claims.note("x", 1)
    assert list(claims.differences()) == []
    assert claims.is_settled(A)


def test_a_changed_value_is_a_difference() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"x": 1})
    claims.note("x", 1)
    claims.claim(A, {"x": 2})
    assert list(claims.differences()) == [Difference("x", 1, 2)]
    assert not claims.is_settled(A)


def test_an_object_stays_until_its_last_claimant_lets_go() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"x": 1})
    claims.claim(B, {"x": 1})
    claims.note("x", 1)
    assert claims.claim(A, {}) == []
    assert list(claims.differences()) == []
    assert claims.claim(B, {}) == ["x"]
    assert list(claims.differences()) == [Difference("x", 1, None)]


def test_what_was_never_applied_is_not_released() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"x": 1})
    assert claims.claim(A, {}) == []
    assert list(claims.differences()) == []


def test_of_two_claims_the_newest_counts_and_the_older_one_is_back_when_it_goes() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"x": 1})
    claims.claim(B, {"x": 2})
    assert claims.wanted("x") == 2
    assert claims.owners("x") == (A, B)
    claims.note("x", 2)
    claims.claim(B, {})
    assert list(claims.differences()) == [Difference("x", 2, 1)]


def test_an_object_that_failed_stays_a_difference_until_it_is_right() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"x": 1})
    assert list(claims.differences()) == list(claims.differences()) != []


async def read(claims: Claims[str, int], found: dict[str, int]) -> list[Difference[str, int]]:
    reading = claims.read_anew()
    for key, value in found.items():
        reading.found(key, value)
    return await reading.complete()


async def test_a_first_reading_that_agrees_with_the_claims_leaves_nothing_to_do() -> None:
    claims: Claims[str, int] = Claims()
    await read(claims, {"x": 1, "y": 2})
    claims.claim(A, {"x": 1, "y": 2})
    assert list(claims.differences()) == []


async def test_a_reading_tells_what_has_drifted_and_only_that() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"x": 1, "y": 2, "z": 3})
    for key, value in {"x": 1, "y": 2, "z": 3}.items():
        claims.note(key, value)
    claims.claim(B, {"new": 9})
    drift = await read(claims, {"x": 1, "y": 5, "stray": 7})
    assert sorted(drift) == [Difference("stray", 7, None), Difference("y", 5, 2), Difference("z", None, 3)]
    assert sorted(claims.differences(), key=str) == sorted([*drift, Difference("new", None, 9)], key=str)


def test_agreement_is_the_owners_matter() -> None:
    claims: Claims[str, int] = Claims(lambda applied, wanted: applied >= wanted)
    claims.claim(A, {"x": 1})
    claims.note("x", 5)
    assert claims.is_right("x")


async def test_what_is_there_and_nobody_claims_is_known() -> None:
    claims: Claims[str, int] = Claims()
    await read(claims, {"x": 1, "y": 2})
    claims.claim(A, {"x": 1})
    assert claims.unclaimed() == ["y"]


async def test_what_was_there_and_is_not_found_has_gone() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"x": 1})
    claims.note("x", 1)
    claims.note("stray", 2)
    assert await read(claims, {}) == [Difference("x", None, 1)]
    assert claims.applied == {}


async def test_what_equals_the_wanted_value_is_one_object_with_it() -> None:
    claims: Claims[str, tuple[int, ...]] = Claims()
    wanted, found = tuple(range(2)), tuple(range(2))
    reading = claims.read_anew()
    reading.found("x", found)
    await reading.complete()
    claims.claim(A, {"x": wanted})
    assert claims.differences() == []
    assert claims.applied["x"] is wanted
    reading = claims.read_anew()
    reading.found("x", found)
    assert await reading.complete() == []
    assert claims.applied["x"] is wanted


async def test_what_only_agrees_with_the_wanted_value_is_remembered_as_it_is() -> None:
    claims: Claims[str, int] = Claims(lambda applied, wanted: applied >= wanted)
    claims.claim(A, {"x": 1})
    claims.note("x", 5)
    claims.recheck("x")
    assert claims.differences() == []
    assert claims.applied["x"] == 5


async def test_all_differences_lets_others_run_between_slices() -> None:
    claims: Claims[int, int] = Claims()
    claims.claim(A, dict.fromkeys(range(3 * BATCH), 1))
    turns: list[int] = []

    async def count() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert len(await claims.all_differences()) == 3 * BATCH
    counting.cancel()
    assert len(turns) >= 2


async def test_the_key_of_a_reading_gives_way_to_that_of_the_plan() -> None:
    claims: Claims[tuple[int, ...], int] = Claims()
    found, named = tuple(range(2)), tuple(range(2))
    reading = claims.read_anew()
    reading.found(found, 1)
    await reading.complete()
    claims.claim(A, {named: 1})
    assert claims.differences() == []
    assert [key is named for key in claims.applied] == [True]


async def test_what_is_written_while_a_reading_goes_on_is_newer_than_what_it_finds() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"changed": 1, "gone": 1})
    for key in ("changed", "gone"):
        claims.note(key, 1)
    reading = claims.read_anew()
    claims.claim(A, {"changed": 2, "new": 2})
    for key, value in (("changed", 2), ("gone", None), ("new", 2)):
        claims.note(key, value)
    reading.found("changed", 1)
    reading.found("gone", 1)
    assert await reading.complete() == []
    assert claims.applied == {"changed": 2, "new": 2}
    assert claims.differences() == []
