"""Count what the metrics need from all plans."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, NodePlan, Plan
from kroute.reconcile.batches import sliced


class PlanSurvey(NamedTuple):
    """How many Services there are, how many with policy Local have no endpoint here, and all problems.

    `problems` are counted by reason. `troubled` has Services with problems, up to the limit, each with its problems by
    reason.
    """

    services: int
    without_local_endpoint: int
    problems: Mapping[str, int]
    troubled: Mapping[ObjectKey, Mapping[str, int]]


async def survey(plans: Collection[Plan], limit: int) -> PlanSurvey:
    """Examine all plans. Other tasks run in between."""
    services = without_local_endpoint = 0
    problems: Counter[str] = Counter()
    troubled: dict[ObjectKey, Mapping[str, int]] = {}
    async for batch in sliced(plans):
        for plan in batch:
            services += not isinstance(plan, NodePlan)
            without_local_endpoint += any(entry.set is AddressSet.NO_LOCAL for entry in plan.set_entries)
            if plan.problems:
                reasons = Counter(problem.reason for problem in plan.problems)
                problems += reasons
                if not isinstance(plan, NodePlan) and len(troubled) < limit:
                    troubled[plan.key] = reasons
    return PlanSurvey(services, without_local_endpoint, problems, troubled)
