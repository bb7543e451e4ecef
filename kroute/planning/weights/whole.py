"""Make whole weights of exact ones: the kernel takes integers, and its schedulers prefer small ones.

`wrr` gives a server of weight 60,000 some 60,000 connections one after another before one of weight 1 gets its own; so
whole weights are as small as the ratios allow. Two schedulers keep a table, and weights must fit into it:
`net/netfilter/ipvs/ip_vs_sh.c` has 2^IP_VS_SH_TAB_BITS entries (256), and gives each server in turn as many as its
weight, till there are no more; `ip_vs_mh.c` shifts the weights, divided by what all have in common, into
IP_VS_MH_TAB_BITS bits (12 of which half count: 6).
"""

from collections.abc import Mapping
from fractions import Fraction
from math import gcd

import msgspec

from kroute.planning.weights.text import MAX_WEIGHT

ACCURACY = Fraction(1, 100)
"""How far the ratio of two whole weights may be off, where the numbers reach."""

FINEST = 50
"""The smallest weight above 0 that is tried: rounding changes 50 by one percent at most."""

MOST_TRIED = 64
"""Different weights up to which smaller numbers are looked for. With more, the smallest becomes FINEST."""


class Bounds(msgspec.Struct, frozen=True):
    """The greatest weight, and the greatest sum of all; `is_reduced`: after a division by the common divisor."""

    greatest: int = MAX_WEIGHT
    total: int | None = None
    is_reduced: bool = False


_BOUNDS = {"sh": Bounds(total=256), "mh": Bounds(greatest=63, is_reduced=True)}
_ANY = Bounds()

Counts = Mapping[Fraction, int]
"""Exact weights above 0, and how many real servers have each of them."""


def whole(counts: Counts, scheduler: str) -> dict[Fraction, int]:
    """The whole weight for each exact one.

    They stay as they are if they are whole and the scheduler takes them. Otherwise all are scaled together, to the
    smallest numbers whose ratios are right within ACCURACY, or else as near as the bounds allow. None becomes 0.
    """
    bounds = _BOUNDS.get(scheduler, _ANY)
    if all(it.denominator == 1 for it in counts):
        if max(counts) <= MAX_WEIGHT and _fits(counts, {it: int(it) for it in counts}, bounds):
            return {it: int(it) for it in counts}
        common = gcd(*(int(it) for it in counts))
        reduced = {it: int(it) // common for it in counts}
        if _fits(counts, reduced, bounds):
            return reduced
    return _scaled(counts, bounds)


def _fits(counts: Counts, weights: Mapping[Fraction, int], bounds: Bounds) -> bool:
    divisor = gcd(*weights.values()) if bounds.is_reduced else 1
    if max(weights.values()) // divisor > bounds.greatest:
        return False
    return bounds.total is None or sum(weights[it] * count for it, count in counts.items()) <= bounds.total


def _scaled(counts: Counts, bounds: Bounds) -> dict[Fraction, int]:
    smallest = min(counts)
    ratios = {it: it / smallest for it in counts}
    best = _rounded(ratios, _largest_scale(counts, ratios, bounds))
    for scale in range(1, FINEST + 1) if len(ratios) <= MOST_TRIED else (FINEST,):
        weights = _rounded(ratios, Fraction(scale))
        if not _fits(counts, weights, bounds):
            break
        if all(abs(weights[it] - ratio * scale) <= ACCURACY * ratio * scale for it, ratio in ratios.items()):
            return weights
    return best


def _largest_scale(counts: Counts, ratios: Mapping[Fraction, Fraction], bounds: Bounds) -> Fraction:
    """How large the numbers may be made: as the greatest, and as their sum, may be, but not beyond FINEST."""
    scales = [Fraction(FINEST), bounds.greatest / max(ratios.values())]
    if bounds.total is not None:
        # Rounding adds half of one to each server at most, and one to those that are raised to 1.
        servers = sum(counts.values())
        scales.append(
            max(Fraction(bounds.total - servers), Fraction(1)) / sum(ratios[it] * counts[it] for it in counts)
        )
    return min(scales)


def _rounded(ratios: Mapping[Fraction, Fraction], scale: Fraction) -> dict[Fraction, int]:
    return {it: max(1, round(ratio * scale)) for it, ratio in ratios.items()}
