"""Everything that one scrape of the metrics reads, and the rows of which the tables of metrics consist."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from kroute.firewall.sets import SetFill
from kroute.inspect.peers import PeerView
from kroute.inspect.policies import PolicyFigures
from kroute.model.addresses import family_of
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, NodePlan, Plan, ServicePlan
from kroute.reconcile.batches import sliced
from kroute.telemetry.agent_parts import AgentParts
from kroute.telemetry.changes import FAMILIES
from kroute.telemetry.health import Health
from kroute.telemetry.kernel_reader import KernelSummary
from kroute.telemetry.metrics.exposition import Metric, Samples, Value
from kroute.telemetry.statistics import Statistics

POLICIES = ("internal", "external")
"""The values of the label `traffic_policy`."""


class PlanSurvey(NamedTuple):
    """How many Services have no endpoint here because of policy Local, and all problems.

    `without_local_endpoint` is by policy ("internal" or "external") and family. `problems` are counted by reason.
    `troubled` has Services with problems, up to the limit, each with its problems by reason.
    """

    without_local_endpoint: Mapping[tuple[str, str], int]
    problems: Mapping[str, int]
    troubled: Mapping[ObjectKey, Mapping[str, int]]


class Scrape(NamedTuple):
    """The values at the moment of a scrape. `kernel` is None if the kernel cannot be read. `sets`: the firewall's.

    `policies` is None if no network policies are enforced, or the kernel cannot be read. `peers` are the BGP sessions
    at the last look.
    """

    parts: AgentParts
    health: Health
    statistics: Statistics
    plans: PlanSurvey
    kernel: KernelSummary | None
    sets: Sequence[SetFill]
    policies: PolicyFigures | None
    peers: Sequence[PeerView]


class Series(NamedTuple):
    """The labels of a family, and what gives the series of a scrape."""

    labels: tuple[str, ...]
    samples: Callable[[Scrape], Samples]


Row = tuple[Metric, Callable[[Scrape], Samples]]


def gauge(name: str, text: str, series: Series) -> Row:
    return Metric(name, "gauge", text, series.labels), series.samples


def counter(name: str, text: str, series: Series) -> Row:
    return Metric(name, "counter", text, series.labels), series.samples


def histogram(name: str, text: str, series: Series) -> Row:
    return Metric(name, "histogram", text, series.labels), series.samples


def one(value: Callable[[Scrape], Value]) -> Series:
    """A single series without labels."""
    return Series((), lambda now: [((), value(now))])


def fields_of(field: str, things: Mapping[str, object]) -> Iterable[tuple[str, Value]]:
    """One field of each of these, by their names."""
    return ((name, getattr(thing, field)) for name, thing in things.items())


def by(label: str, values: Callable[[Scrape], Iterable[tuple[str, Value]]]) -> Series:
    """A series for each value of a label."""
    return Series((label,), lambda now: [((word,), value) for word, value in values(now)])


async def survey(plans: Collection[Plan], limit: int) -> PlanSurvey:
    """Count what the metrics need from all plans. Other tasks run in between."""
    without_local: Counter[tuple[str, str]] = Counter(dict.fromkeys(product(POLICIES, FAMILIES), 0))
    problems: Counter[str] = Counter()
    troubled: dict[ObjectKey, Mapping[str, int]] = {}
    async for batch in sliced(plans):
        for plan in batch:
            reasons = [problem.reason for problem in plan.problems]
            problems.update(reasons)
            if isinstance(plan, NodePlan):
                continue
            without_local.update(_without_local(plan))
            if reasons and len(troubled) < limit:
                troubled[plan.key] = Counter(reasons)
    return PlanSurvey(without_local, problems, troubled)


def _without_local(plan: ServicePlan) -> set[tuple[str, str]]:
    outside = {family_of(str(entry.element[0])) for entry in plan.set_entries if entry.set is AddressSet.NO_LOCAL}
    pairs = {("internal", family) for family in plan.no_local_inside} | {("external", family) for family in outside}
    return {(policy, str(family)) for policy, family in pairs}
