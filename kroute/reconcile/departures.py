"""The objects that are in the kernel and that nobody wants, and which plan was the last to drop each of them."""

from collections import Counter
from typing import Generic, TypeVar

from kroute.model.objects import ObjectKey
from kroute.reconcile.stage_gate import EARLIER_RUN, Revision

K = TypeVar("K")


class Departures(Generic[K]):
    """The objects that leave, in `unwanted`. All but those that no plan of this run has wanted have a plan.

    `departing` is how many of them an owner was the last to drop. Who dropped none of them is not in it.
    """

    def __init__(self) -> None:
        self.unwanted: dict[K, None] = {}
        self.departing: Counter[ObjectKey] = Counter()
        self._departed: dict[K, Revision] = {}

    def put(self, key: K, revision: Revision) -> None:
        """The object leaves: this plan was the last to drop it."""
        self._forget(key)
        self.unwanted[key] = None
        self._departed[key] = revision
        self.departing[revision.key] += 1

    def put_rest(self, revision: Revision) -> None:
        """Everything that leaves and has no plan leaves with this one."""
        for key in [key for key in self.unwanted if key not in self._departed]:
            self.put(key, revision)

    def remove(self, key: K) -> None:
        """The object was deleted, or has an owner again."""
        if key in self.unwanted:
            del self.unwanted[key]
            self._forget(key)

    def dropped_by(self, key: K) -> Revision:
        """The plan that was the last to drop the object; EARLIER_RUN if no plan of this run has wanted it."""
        return self._departed.get(key, EARLIER_RUN)

    def _forget(self, key: K) -> None:
        revision = self._departed.pop(key, None)
        if revision is not None:
            self.departing[revision.key] -= 1
            if not self.departing[revision.key]:
                del self.departing[revision.key]
