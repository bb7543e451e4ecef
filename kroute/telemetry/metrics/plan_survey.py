"""Count what the metrics need from all plans."""

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import product
from typing import NamedTuple

from kroute.model.addresses import family_of
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, NodePlan, Plan
from kroute.reconcile.batches import sliced
from kroute.telemetry.changes import FAMILIES

POLICIES = ("internal", "external")
"""The values of the label `traffic_policy`."""


class PlanSurvey(NamedTuple):
    """How many Services there are, how many of them policy Local leaves without an endpoint here, and all problems.

    `without_local_endpoint` is by policy ("internal" or "external") and family. `problems` are counted by reason.
    `troubled` has Services with problems, up to the limit, each with its problems by reason.
    """

    services: int
    without_local_endpoint: Mapping[tuple[str, str], int]
    problems: Mapping[str, int]
    troubled: Mapping[ObjectKey, Mapping[str, int]]


async def survey(plans: Collection[Plan], limit: int) -> PlanSurvey:
    """Examine all plans. Other tasks run in between."""
    services = 0
    without_local: Counter[tuple[str, str]] = Counter(dict.fromkeys(product(POLICIES, FAMILIES), 0))
    problems: Counter[str] = Counter()
    troubled: dict[ObjectKey, Mapping[str, int]] = {}
    async for batch in sliced(plans):
        for plan in batch:
            services += not isinstance(plan, NodePlan)
            without_local.update(_without_local(plan))
            if plan.problems:
                reasons = Counter(problem.reason for problem in plan.problems)
                problems += reasons
                if not isinstance(plan, NodePlan) and len(troubled) < limit:
                    troubled[plan.key] = reasons
    return PlanSurvey(services, without_local, problems, troubled)


def _without_local(plan: Plan) -> set[tuple[str, str]]:
    if isinstance(plan, NodePlan):
        return set()
    outside = {family_of(str(it.element[0])) for it in plan.set_entries if it.set is AddressSet.NO_LOCAL}
    pairs = {("internal", family) for family in plan.no_local_inside} | {("external", family) for family in outside}
    return {(policy, str(family)) for policy, family in pairs}
