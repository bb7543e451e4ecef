"""Claims: what Services want, what the kernel has, and the difference."""

from kroute.controllers.claims import Claims, Difference
from kroute.planning.objects import ObjectKey

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


def test_a_first_reading_that_agrees_with_the_claims_leaves_nothing_to_do() -> None:
    claims: Claims[str, int] = Claims()
    claims.replace_applied({"x": 1, "y": 2})
    claims.claim(A, {"x": 1, "y": 2})
    assert list(claims.differences()) == []


def test_a_reading_tells_what_has_drifted_and_only_that() -> None:
    claims: Claims[str, int] = Claims()
    claims.claim(A, {"x": 1, "y": 2, "z": 3})
    for key, value in {"x": 1, "y": 2, "z": 3}.items():
        claims.note(key, value)
    claims.claim(B, {"new": 9})
    drift = claims.replace_applied({"x": 1, "y": 5, "stray": 7})
    assert sorted(drift) == [Difference("stray", 7, None), Difference("y", 5, 2), Difference("z", None, 3)]
    assert sorted(claims.differences(), key=str) == sorted([*drift, Difference("new", None, 9)], key=str)


def test_agreement_is_the_owners_matter() -> None:
    claims: Claims[str, int] = Claims(lambda applied, wanted: applied >= wanted)
    claims.claim(A, {"x": 1})
    claims.note("x", 5)
    assert claims.is_right("x")


def test_what_is_there_and_nobody_claims_is_known() -> None:
    claims: Claims[str, int] = Claims()
    claims.replace_applied({"x": 1, "y": 2})
    claims.claim(A, {"x": 1})
    assert claims.unclaimed() == ["y"]
