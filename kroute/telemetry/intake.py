"""What passes from the watchers to the catalog, as far as operators want to know of it."""

import time
from collections import Counter
from collections.abc import Sequence

from kroute.model.objects import Applied, Change, Deleted, Node, ObjectKey

REMOVAL_TAINT = "ToBeDeletedByClusterAutoscaler"
"""The cluster autoscaler's mark on a node that it is about to remove (its utils/taints package)."""


class Intake:
    """Counts changes by kind, and keeps in mind whether this node is to stay."""

    def __init__(self, node_name: str) -> None:
        self.changes: Counter[str] = Counter()
        self.last_change = 0.0
        self._node = ObjectKey("", node_name)
        self._ineligible: str | None = None

    def take(self, changes: Sequence[Change]) -> None:
        """Look at changes on their way."""
        self.last_change = time.time()
        for change in changes:
            match change:
                case Applied(item):
                    self.changes[type(item).__name__] += 1
                    if isinstance(item, Node) and item.key == self._node:
                        self._ineligible = _why_ineligible(item)
                case Deleted(kind, key):
                    self.changes[kind.__name__] += 1
                    if kind is Node and key == self._node:
                        self._ineligible = f"the Node {key} does not exist any more"
                case _:
                    pass

    def ineligible(self) -> str | None:
        """Why load balancers should send nothing new to this node; None if they may (also while nothing is known).

        The rule is kube-proxy's (proxy_health.go, SyncNode): a Node that is being deleted, or has REMOVAL_TAINT.
        """
        return self._ineligible


def _why_ineligible(node: Node) -> str | None:
    if node.metadata.deletion_timestamp is not None:
        return f"the Node {node.key} is being deleted"
    if any(taint.key == REMOVAL_TAINT for taint in node.spec.taints or ()):
        return f"the Node {node.key} has the taint {REMOVAL_TAINT}: the cluster autoscaler removes it"
    return None
