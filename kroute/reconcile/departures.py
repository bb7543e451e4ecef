"""Which plan was the last to drop an object that is still in the kernel."""

from collections import Counter
from typing import Generic, TypeVar

from kroute.model.objects import ObjectKey
from kroute.reconcile.stage_gate import EARLIER_RUN, Revision

K = TypeVar("K")


class Departures(Generic[K]):
    """The objects that leave, each with the plan that dropped it."""

    def __init__(self) -> None:
        self._departed: dict[K, Revision] = {}
        self._departing: Counter[ObjectKey] = Counter()

    def __contains__(self, key: K) -> bool:
        return key in self._departed

    def put(self, key: K, revision: Revision) -> None:
        """The object leaves: this plan was the last to drop it."""
        self.forget(key)
        self._departed[key] = revision
        self._departing[revision.key] += 1

    def forget(self, key: K) -> None:
        """The object was deleted, or has an owner again."""
        revision = self._departed.pop(key, None)
        if revision is not None:
            self._departing[revision.key] -= 1
            if not self._departing[revision.key]:
                del self._departing[revision.key]

    def dropped_by(self, key: K) -> Revision:
        """The plan that was the last to drop the object; EARLIER_RUN if no plan of this run has wanted it."""
        return self._departed.get(key, EARLIER_RUN)

    def has_none(self, owner: ObjectKey) -> bool:
        """Whether no object leaves that this owner was the last to drop."""
        return not self._departing[owner]
