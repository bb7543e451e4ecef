"""What `make test` leaves to a thorough run (`KROUTE_LAB_THOROUGH`, which `make nightly` sets), or does a part of.

Imports only the standard library: it is read before a lab exists.
"""

import os
import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def is_thorough() -> bool:
    """Whether this run does what `make test` leaves to `make nightly`."""
    return bool(os.environ.get("KROUTE_LAB_THOROUGH"))


def seed() -> int:
    """Return the seed that `KROUTE_LAB_SEED` names, or a new one. A test says which it had."""
    return int(os.environ.get("KROUTE_LAB_SEED") or random.SystemRandom().randrange(1_000_000))


def drawn(points: Iterable[T], *, one_of: int, by: int | str) -> list[T]:
    """Return a random part of the points, in their order: one of so many, by a seed."""
    all_points = list(points)
    chosen = random.Random(by).sample(range(len(all_points)), -(-len(all_points) // one_of))
    return [all_points[number] for number in sorted(chosen)]
