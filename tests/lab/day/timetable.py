"""When what happens in a day: the same for the same seed and length."""

import os
import random
from typing import NamedTuple, Self

PER_HOUR = {
    "kill": 1000,
    "edit": 10_000,
    "outage": 20,
    "link": 240,
    "address": 480,
    "stranger": 1000,
    "disk": 60,
    "clock": 60,
    "attack": 120,
}
"""How often each kind of event happens in an hour; a shorter day has as many a minute."""
LEAST = {"outage": 3, "link": 3, "disk": 3, "clock": 3, "attack": 24}
"""The fewest of a kind, however short the day is, so that each of its variants comes, and each attack twice."""
SECONDS, SEED = "KROUTE_LAB_DAY", "KROUTE_LAB_SEED"
"""The variables for the length of the day, in seconds, and for its seed."""
USUAL_SECONDS, USUAL_SEED = 200, 27


class Event(NamedTuple):
    """One event: so many seconds after the day began. `number` counts those of its kind; `seed` is for its choices."""

    at: float
    kind: str
    number: int
    seed: int


class Day(NamedTuple):
    """A day of so many seconds."""

    seconds: int
    seed: int

    @classmethod
    def wanted(cls) -> Self:
        """The day that the environment asks for."""
        return cls(
            int(os.environ.get(SECONDS) or USUAL_SECONDS),
            int(os.environ.get(SEED) or USUAL_SEED),
        )

    def events(self) -> dict[str, list[Event]]:
        """The events of each kind, in order."""
        return {kind: list(self._events_of(kind)) for kind in PER_HOUR}

    def _events_of(self, kind: str) -> list[Event]:
        dice = random.Random(f"{self.seed} {kind}")
        count = max(LEAST.get(kind, 1), round(PER_HOUR[kind] * self.seconds / 3600))
        moments = sorted(dice.uniform(0, self.seconds) for _ in range(count))
        return [Event(at, kind, number, dice.getrandbits(32)) for number, at in enumerate(moments)]
