"""Everything that one scrape of the metrics reads."""

from collections.abc import Mapping
from typing import NamedTuple

from kroute.histogram import Durations
from kroute.telemetry.health import Health
from kroute.telemetry.intake import Intake
from kroute.telemetry.kernel_reading import KernelSummary
from kroute.telemetry.metrics.plan_survey import PlanSurvey
from kroute.telemetry.metrics.process import ProcessFigures
from kroute.telemetry.statistics import Statistics


class Scrape(NamedTuple):
    """What is known at the moment of a scrape. `kernel` is None when the kernel cannot be read.

    `passes` are by controller, `programming` is from the changes of pods to the kernel.
    """

    statistics: Statistics
    plans: PlanSurvey
    passes: Mapping[str, Durations]
    programming: Durations
    health: Health
    intake: Intake
    process: ProcessFigures
    kernel: KernelSummary | None
