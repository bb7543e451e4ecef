"""How long each phase is, and what all phases share."""

from typing import Any, NamedTuple

Figures = dict[str, Any]

RESYNC_SECONDS = 30
"""kroute's default resync period."""


class Lengths(NamedTuple):
    """The size of each phase: single changes, Services added, changed weights, seconds of storm, of hurricane
    and of idling.

    The node's use of the processor at rest is measured for `calm` seconds, which are several of the kernel's two-second
    rounds of IPVS estimation, and for `rest` seconds where an idle agent is compared with it: one round of 10,000
    Services more or less is 10 ms, 0.07 % of a processor in 15 s.
    """

    changes: int
    services: int
    weights: int
    storm: float
    hurricane: float
    idle: float
    calm: float
    rest: float


FULL = Lengths(
    changes=100, services=10, weights=50, storm=20.0, hurricane=60.0, idle=4.0 * RESYNC_SECONDS, calm=6.0, rest=60.0
)
QUICK = Lengths(
    changes=40, services=5, weights=20, storm=5.0, hurricane=5.0, idle=1.0 * RESYNC_SECONDS, calm=4.0, rest=8.0
)


class BenchError(Exception):
    """The state after a measurement is wrong, so its figures would be meaningless."""
