"""What an agent has done between two moments."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.phases.lengths import Figures
from kroute.telemetry.statistics import Statistics

IPVS = "ipvs"
"""The name of the IPVS socket among an agent's sockets."""


@dataclass
class Cost:
    """What an agent has done between two moments. Times in seconds, sizes in bytes.

    `cpu` is what the node used beyond the session's baseline; `writes` counts changes that the controllers made
    and chunks that were sent to the kernel; `rounds` are the long rounds of the event loop.
    """

    wall: float = 0.0
    cpu: float = 0.0
    writes: int = 0
    messages: int = 0
    ipvs_messages: int = 0
    bytes: int = 0
    busy: float = 0.0
    longest_round: float = 0.0
    rounds_over_20_ms: int = 0
    rounds_over_200_ms: int = 0
    latencies: list[float] = field(default_factory=list)
    end: Statistics | None = None

    def count(self, after: Statistics, before: Statistics | None) -> None:
        """Count what happened between two answers of the agent, or since its start."""

        def difference(count: Any) -> Any:
            return count(after) - (count(before) if before is not None else 0)

        self.end = after
        self.writes = difference(writes)
        self.messages = difference(lambda it: sum(socket.messages for socket in it.sockets.values()))
        self.ipvs_messages = difference(lambda it: it.sockets[IPVS].messages)
        self.bytes = difference(lambda it: sum(socket.bytes for socket in it.sockets.values()))
        self.busy = difference(lambda it: it.loop.rounds.sum)

    def count_rounds(self, rounds: Sequence[float]) -> None:
        """Count the rounds of the event loop that took so many seconds."""
        self.longest_round = max(rounds, default=0.0)
        self.rounds_over_20_ms = sum(seconds > 0.02 for seconds in rounds)
        self.rounds_over_200_ms = sum(seconds > 0.2 for seconds in rounds)

    def figures(self) -> Figures:
        """The figures that every phase has."""
        return {
            "wall": self.wall,
            "cpu": self.cpu,
            "writes": self.writes,
            "messages": self.messages,
            "ipvs_messages": self.ipvs_messages,
            "bytes": self.bytes,
            "busy": self.busy,
            "longest_round": self.longest_round,
            "rounds_over_20_ms": self.rounds_over_20_ms,
            "rounds_over_200_ms": self.rounds_over_200_ms,
        }


def writes(statistics: Statistics) -> int:
    """The number of an agent's writes: changes by the controllers, and chunks by the sockets."""
    return sum(it.writes for it in statistics.controllers.values()) + sum(
        it.transactions for it in statistics.sockets.values()
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least value that `percent` % of the sorted values do not exceed; NaN if there are no values."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan
