"""Whole weights keep the ratios of the exact ones, in numbers that the scheduler takes."""

from fractions import Fraction
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.base.schedulers import SCHEDULERS
from kroute.planning.features.weights.whole import ACCURACY, MOST_TRIED, whole
from tests.builders import finish


def wholes(counts: dict[Fraction, int], scheduler: str) -> dict[Fraction, int]:
    total = sum(it * count for it, count in counts.items())
    exact = {it.as_integer_ratio(): count for it, count in counts.items()}
    found = finish(whole(exact, total.as_integer_ratio(), scheduler))
    return {Fraction(*it): weight for it, weight in found.items()}


def weights(*exact: Fraction | int | str, scheduler: str = "wrr") -> list[int]:
    fractions = [Fraction(it) for it in exact]
    found = wholes({it: fractions.count(it) for it in fractions}, scheduler)
    return [found[it] for it in fractions]


def test_whole_weights_stay_as_they_are() -> None:
    assert weights(65535, 1, 6, 12) == [65535, 1, 6, 12]


def test_fractions_become_the_smallest_numbers_of_the_same_ratio() -> None:
    assert weights("4/5", "1/10", "1/10") == [8, 1, 1]
    assert weights("2/3", "1/6", "1/6") == [4, 1, 1]


def test_a_ratio_that_needs_large_numbers_is_kept_within_one_percent() -> None:
    large, small = weights("0.7071", "0.2929")
    assert abs(Fraction(large, small) / Fraction("0.7071") * Fraction("0.2929") - 1) <= Fraction(2, ACCURACY)
    assert large < 60


def test_a_product_beyond_the_kernels_bound_is_scaled() -> None:
    assert weights(65535 * 4, 65535) == [4, 1]


def test_a_ratio_beyond_the_kernels_bound_leaves_one() -> None:
    assert weights(10**10, 1) == [65535, 1]


def test_sh_has_256_places() -> None:
    assert weights(100, 100, 56, scheduler="sh") == [100, 100, 56], "they fit"
    assert weights(300, 100, scheduler="sh") == [3, 1], "the second one would get no place"
    large, small = weights(251, 99, scheduler="sh")
    assert large + small <= 256
    assert abs(Fraction(large, small) / Fraction(251, 99) - 1) <= Fraction(2, ACCURACY)


def test_mh_counts_in_six_bits() -> None:
    assert weights(100, 300, scheduler="mh") == [100, 300], "the kernel divides by 100 itself"
    large, small = weights(127, 3, scheduler="mh")
    assert (large <= 63, abs(large / small / 127 * 3 - 1) < 0.02) == (True, True)


EXACT = st.fractions(Fraction(1, 10**6), 10**9) | st.integers(1, 70000).map(Fraction)


@given(st.dictionaries(EXACT, st.integers(1, 3), min_size=1, max_size=MOST_TRIED + 10), st.sampled_from(SCHEDULERS))
def test_all_are_within_bounds_in_the_same_order_and_none_becomes_0(
    counts: dict[Fraction, int], scheduler: str
) -> None:
    found = wholes(counts, scheduler)
    assert found.keys() == counts.keys()
    assert all(1 <= it <= 65535 for it in found.values())
    in_order = [found[it] for it in sorted(counts)]
    assert in_order == sorted(in_order)
    if scheduler == "sh":
        assert sum(found[it] * count for it, count in counts.items()) <= max(256, sum(counts.values()))
    if scheduler == "mh":
        assert max(found.values()) // gcd(*found.values()) <= 63


@given(st.lists(EXACT, min_size=1, max_size=8))
def test_the_ratios_are_kept_where_the_numbers_reach(exact: list[Fraction]) -> None:
    found = wholes(dict.fromkeys(exact, 1), "wlc")
    if max(exact) / min(exact) > 65535 / 50:
        return
    for one in exact:
        assert abs(Fraction(found[one], found[min(exact)]) / (one / min(exact)) - 1) <= Fraction(2, ACCURACY)


@pytest.mark.parametrize("scheduler", ["wrr", "sh", "mh"])
def test_many_different_weights_cost_little(scheduler: str) -> None:
    found = wholes({Fraction(number, 7): 1 for number in range(1, 5_000)}, scheduler)
    assert min(found.values()) == 1 if scheduler != "wrr" else max(found.values()) <= 65535
