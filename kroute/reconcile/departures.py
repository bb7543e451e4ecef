"""Objects that nobody claims any more, and the plans that let them go."""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from kroute.model.objects import ObjectKey
from kroute.model.plan import Plan
from kroute.reconcile.stages import PREDECESSOR

K = TypeVar("K", bound=Hashable)


class Departures(Generic[K]):
    """Remembers, until an object has gone, which Service's plan let it go last."""

    def __init__(self) -> None:
        self._plans: dict[K, Plan] = {}
        self._left: Counter[ObjectKey] = Counter()

    def add(self, plan: Plan, keys: Iterable[K]) -> None:
        """This plan was the last to let these objects go."""
        for key in keys:
            self.over(key)
            self._plans[key] = plan
            self._left[plan.key] += 1

    def over(self, key: K) -> None:
        """The object has gone, or is wanted again."""
        plan = self._plans.pop(key, None)
        if plan is not None:
            self._left[plan.key] -= 1
            if not self._left[plan.key]:
                del self._left[plan.key]

    def plan_of(self, key: K) -> Plan:
        """The plan that let the object go; an earlier run's, if no plan of this run ever named it."""
        return self._plans.get(key, PREDECESSOR)

    def is_over(self, key: ObjectKey) -> bool:
        """Whether everything that this Service let go has gone."""
        return not self._left[key]
