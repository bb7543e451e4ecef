"""Make whole weights of exact ones: the kernel takes integers, and its schedulers prefer small ones.

`wrr` gives a server of weight 60,000 some 60,000 connections one after another before one of weight 1 gets its own; so
whole weights are as small as the ratios allow. Two schedulers keep a table, and weights must fit into it:
`net/netfilter/ipvs/ip_vs_sh.c` has 2^IP_VS_SH_TAB_BITS entries (256), and gives each server in turn as many as its
weight, till there are no more; `ip_vs_mh.c` shifts the weights, divided by what all have in common, into
IP_VS_MH_TAB_BITS bits (12 of which half count: 6).
"""

from collections.abc import Mapping, Sequence
from math import gcd

import msgspec

from kroute.model.steps import Steps, parts
from kroute.planning.weight_facts import MAX_WEIGHT

ACCURACY = 100
"""The ratio of two whole weights may be off by one part in so many, where the numbers reach."""

FINEST = 50
"""The smallest weight above 0 that is tried: rounding changes 50 by one percent at most."""

MOST_TRIED = 64
"""Different weights up to which smaller numbers are looked for. With more, the smallest becomes FINEST."""

Exact = tuple[int, int]
"""A weight as a fraction in lowest terms: numerator and denominator. Python's own fractions cost ten times as much."""


class Bounds(msgspec.Struct, frozen=True):
    """The greatest weight, and the greatest sum of all; `is_reduced`: after a division by the common divisor."""

    greatest: int = MAX_WEIGHT
    total: int | None = None
    is_reduced: bool = False


_BOUNDS = {"sh": Bounds(total=256), "mh": Bounds(greatest=63, is_reduced=True)}
_ANY = Bounds()

Counts = Mapping[Exact, int]
"""Exact weights above 0, and how many real servers have each of them."""


def exactly(numerator: int, denominator: int) -> Exact:
    """The fraction in lowest terms."""
    divisor = gcd(numerator, denominator)
    return numerator // divisor, denominator // divisor


def whole(counts: Counts, total: Exact, scheduler: str) -> Steps[dict[Exact, int]]:
    """The whole weight for each exact one; `total` is the sum over all real servers.

    They stay as they are if they are whole and the scheduler takes them. Otherwise all are scaled together, to the
    smallest numbers whose ratios are right within ACCURACY, or else as near as the bounds allow. None becomes 0.
    """
    bounds = _BOUNDS.get(scheduler, _ANY)
    yield 2 * len(counts)
    if all(denominator == 1 for _, denominator in counts):
        numbers = [number for number, _ in counts]
        common = gcd(*numbers)
        for divisor in (1, common) if max(numbers) <= MAX_WEIGHT else (common,):
            reduced = [number // divisor for number in numbers]
            if _fits(reduced, counts, bounds):
                return dict(zip(counts, reduced, strict=True))
    return (yield from _scaled(counts, total, bounds))


def _fits(weights: Sequence[int], counts: Counts, bounds: Bounds) -> bool:
    divisor = gcd(*weights) if bounds.is_reduced else 1
    if max(weights) // divisor > bounds.greatest:
        return False
    return bounds.total is None or sum(map(int.__mul__, weights, counts.values())) <= bounds.total


def _scaled(counts: Counts, total: Exact, bounds: Bounds) -> Steps[dict[Exact, int]]:
    smallest = greatest = next(iter(counts))
    ratios: list[Exact] = []
    for part in parts(counts):
        for exact in part:
            smallest = exact if exact[0] * smallest[1] < smallest[0] * exact[1] else smallest
            greatest = exact if exact[0] * greatest[1] > greatest[0] * exact[1] else greatest
        yield len(part)
    for part in parts(counts):
        ratios += [_ratio(exact, smallest) for exact in part]
        yield len(part)
    scales = range(1, FINEST + 1) if len(counts) <= MOST_TRIED else (FINEST,)
    for scale in scales:
        weights = yield from _rounded(ratios, (scale, 1))
        if not _fits(weights, counts, bounds):
            break
        if all(
            ACCURACY * abs(weight * divisor - ratio * scale) <= ratio * scale
            for weight, (ratio, divisor) in zip(weights, ratios, strict=True)
        ):
            return dict(zip(counts, weights, strict=True))
    largest = _largest_scale(sum(counts.values()), _ratio(greatest, smallest), _ratio(total, smallest), bounds)
    return dict(zip(counts, (yield from _rounded(ratios, largest)), strict=True))


def _ratio(one: Exact, other: Exact) -> Exact:
    """How many times the other the one is; not in lowest terms."""
    return one[0] * other[1], one[1] * other[0]


def _largest_scale(servers: int, greatest: Exact, total: Exact, bounds: Bounds) -> Exact:
    """How large the numbers may be made: as the greatest, and as their sum, may be, but not beyond FINEST."""
    scales = [(FINEST, 1), (bounds.greatest * greatest[1], greatest[0])]
    if bounds.total is not None:
        # Rounding adds half of one to each server at most, and one to those that are raised to 1.
        scales.append((max(bounds.total - servers, 1) * total[1], total[0]))
    smallest, *others = scales
    for scale in others:
        smallest = scale if scale[0] * smallest[1] < smallest[0] * scale[1] else smallest
    return smallest


def _rounded(ratios: Sequence[Exact], scale: Exact) -> Steps[list[int]]:
    """The ratios times `scale` as whole numbers, none of them 0; halves become even."""
    numerator, denominator = scale
    weights: list[int] = []
    for part in parts(ratios):
        for ratio, divisor in part:
            number, rest = divmod(ratio * numerator, divisor := divisor * denominator)
            weights.append(max(1, number + (2 * rest > divisor or (2 * rest == divisor and number & 1))))
        yield len(part)
    return weights
