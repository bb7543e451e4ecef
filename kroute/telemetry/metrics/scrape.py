"""Everything that one scrape of the metrics reads."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kroute.checks.running_proxies import Sign
from kroute.firewall.sets import SetFill
from kroute.histogram import Histogram
from kroute.telemetry.changes import ChangeObserver
from kroute.telemetry.health import Health
from kroute.telemetry.kernel_reader import KernelSummary
from kroute.telemetry.metrics.plan_survey import PlanSurvey
from kroute.telemetry.metrics.process import ProcessFigures
from kroute.telemetry.statistics import Statistics


class Scrape(NamedTuple):
    """The values at the moment of a scrape. `kernel` is None if the kernel cannot be read.

    `passes` are the durations of passes by controller, `firewall` is the firewall's backend, `sets` are its sets.
    `ejections` counts real servers that were ejected, `refuted_ejections` those that were not because they accepted a
    connection. `waits_for` is the other service proxy for whose end kroute waits, `rival` one that is at work on a node
    that kroute serves.
    """

    statistics: Statistics
    plans: PlanSurvey
    passes: Mapping[str, Histogram]
    health: Health
    changes: ChangeObserver
    process: ProcessFigures
    kernel: KernelSummary | None
    firewall: str
    sets: Sequence[SetFill]
    ejections: int
    refuted_ejections: int
    waits_for: Sign | None
    rival: Sign | None
