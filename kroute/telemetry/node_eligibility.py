"""Whether load balancers should send new connections to this node, by its Node object."""

from kroute.model.objects import Applied, Change, Deleted, Node, ObjectKey

REMOVAL_TAINT = "ToBeDeletedByClusterAutoscaler"
"""The cluster autoscaler's taint on a node that it is about to remove (its utils/taints package)."""


class NodeEligibility:
    """Ineligible is a Node that is being deleted, or has REMOVAL_TAINT.

    This is kube-proxy's rule (proxy_health.go, SyncNode).
    """

    def __init__(self, node_name: str) -> None:
        self.ineligible: str | None = None
        """Why no new connections should go to this node. None if they may, also before the Node object is known."""
        self._node = ObjectKey("", node_name)

    def read(self, change: Change) -> None:
        """Take the change into account if it is of this Node."""
        match change:
            case Applied(Node() as node) if node.key == self._node:
                self.ineligible = _why_ineligible(node)
            case Deleted(kind, key) if kind is Node and key == self._node:
                self.ineligible = f"the Node {key} no longer exists"
            case _:
                pass


def _why_ineligible(node: Node) -> str | None:
    if node.metadata.deletion_timestamp is not None:
        return f"the Node {node.key} is being deleted"
    if any(taint.key == REMOVAL_TAINT for taint in node.spec.taints or ()):
        return f"the Node {node.key} has the taint {REMOVAL_TAINT}: the cluster autoscaler removes it"
    return None
