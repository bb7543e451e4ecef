"""Remember what Nodes and Pods weigh, and find the Services that a change concerns.

A change of a Node's weight concerns the Services with an endpoint there, one of its zone or readiness only those that
ask for zones or locality. A Pod's concerns the Services whose slices name it. While nobody weighs anything, all of this
is empty.
"""

from collections.abc import Iterable, Mapping

from kroute.model.objects import Node, ObjectKey, Pod, Service
from kroute.model.plan import Problem, RealServer
from kroute.planning.backend_slices import BackendSlice, PodRef
from kroute.planning.weights.facts import Nodes, WeightFacts, traits_of
from kroute.planning.weights.text import Weighed, weight_of
from kroute.schedulers import BY_SHARE, HEEDLESS
from kroute.settings import Settings

WEIGHTS, LOCALITY = "kroute.io/weights", "kroute.io/locality"
"""The annotations of a Service that depend on Nodes."""

Slices = Mapping[ObjectKey, tuple[BackendSlice, ...]]


class WeightSources:
    """The weights that objects give. `take_affected` says which Services to plan again since the last time."""

    def __init__(self) -> None:
        self.nodes = Nodes()
        self._asking: dict[ObjectKey, bool] = {}
        """The Services with one of the annotations, and whether locality is one."""
        self._pods: dict[ObjectKey, tuple[str, Weighed]] = {}
        self._services_of: dict[ObjectKey, tuple[ObjectKey, ...]] = {}
        self._pods_of: dict[ObjectKey, frozenset[ObjectKey]] = {}
        self._weighed_nodes: set[str] = set()
        self._affected: set[ObjectKey] = set()

    @property
    def has_affected(self) -> bool:
        return bool(self._affected or self._weighed_nodes)

    def place_service(self, key: ObjectKey, service: Service | None) -> None:
        """Take a Service's annotations; None: it is gone. Who calls this plans it again."""
        annotations = (service.metadata.annotations if service is not None else None) or {}
        if WEIGHTS in annotations or LOCALITY in annotations:
            self._asking[key] = LOCALITY in annotations
        else:
            self._asking.pop(key, None)

    def place_node(self, name: str, node: Node | None) -> None:
        """Take a Node's weight, zone and readiness; None: it is gone."""
        after = traits_of(node) if node is not None else None
        before = self.nodes.put(name, after)
        if before.weight != (after.weight if after is not None else 1):
            self._weighed_nodes.add(name)
        if before.zone != (after.zone if after is not None else None):
            self._affected |= self._asking.keys()
        elif before.is_ready != (after is not None and after.is_ready):
            self._affected |= {key for key, is_local in self._asking.items() if is_local}

    def place_pod(self, key: ObjectKey, pod: Pod | None) -> None:
        """Take a Pod's weight; None: it is gone, or weighs nothing in particular any more."""
        before = self._pods.pop(key, None)
        after = (pod.metadata.uid, weight_of(pod.metadata)) if pod is not None else None
        if after is not None:
            self._pods[key] = after
        if before != after:
            self._affected.update(self._services_of.get(key, ()))

    def place_slices(self, service: ObjectKey, slices: Iterable[BackendSlice]) -> None:
        """Take the Pods that the slices of a Service name. Who calls this plans it again."""
        before = self._pods_of.pop(service, frozenset())
        after = frozenset(ObjectKey(service.namespace, it.name) for piece in slices for it in piece.pods if it)
        if after:
            self._pods_of[service] = after
        for pod in before ^ after:
            services = self._services_of.pop(pod, ())
            left = (*services, service) if pod in after else tuple(it for it in services if it != service)
            if left:
                self._services_of[pod] = left

    def take_affected(self, slices: Slices) -> set[ObjectKey]:
        """The Services to plan again, each once. All Nodes that have another weight are looked for together."""
        affected, self._affected = self._affected, set()
        nodes, self._weighed_nodes = self._weighed_nodes, set()
        if nodes:
            affected |= {key for key, pieces in slices.items() if any(_are_on(nodes, piece) for piece in pieces)}
        return affected

    def facts(self, service: ObjectKey, slices: Iterable[BackendSlice]) -> WeightFacts | None:
        """What is known for a Service, or None if nobody weighs any of its real servers."""
        if self._pods and service in self._pods_of:
            pods, refused = self._weights_of_pods(service, slices)
            return WeightFacts(self.nodes, pods, refused)
        return WeightFacts(self.nodes) if self.nodes.have_weights or service in self._asking else None

    def _weights_of_pods(
        self, service: ObjectKey, slices: Iterable[BackendSlice]
    ) -> tuple[dict[RealServer, int], list[str]]:
        """The weights of the real servers that are Pods with one. Of two copies of one the better is the Pod's."""
        found: dict[RealServer, tuple[tuple[bool, bool, bool], int]] = {}
        refused: dict[str, None] = {}
        for piece in slices:
            for number, ref in enumerate(piece.pods):
                weighed = self._weight_of(service.namespace, ref) if ref is not None else None
                if weighed is None or ref is None:
                    continue
                if weighed.refused:
                    refused[f"{weighed.refused} of Pod {ref.name}"] = None
                for server in piece.real_servers_at(number):
                    found[server] = max(found.get(server, _LEAST), (piece.traits[number].preference, weighed.weight))
        return {server: weight for server, (_, weight) in found.items()}, sorted(refused)

    def _weight_of(self, namespace: str, ref: PodRef) -> Weighed | None:
        """The weight of a Pod of this name, if it is the one that the slice means: a StatefulSet uses names again."""
        uid, weighed = self._pods.get(ObjectKey(namespace, ref.name), ("", None))
        return weighed if not (uid and ref.uid and uid != ref.uid) else None


_LEAST = ((False, False, False), -1)


def _are_on(nodes: set[str], piece: BackendSlice) -> bool:
    return any(traits.node_name in nodes for traits in piece.traits)


def node_problems(node: Node | None, settings: Settings) -> list[Problem]:
    """What is wrong with the Node object of an agent's own node."""
    if node is None:
        return [_missing(settings.node_name)]
    weight, refused = weight_of(node.metadata)
    if refused:
        message = f"{refused}: no weight; the real servers of Node {node.key.name} weigh 1. Allowed: 0 to 65535."
        return [Problem("InvalidWeight", refused, message)]
    if weight > 1 and settings.scheduler in HEEDLESS:
        subject = f"weight {weight} of Node {node.key.name}"
        message = (
            f"{subject} has no effect on Services with the scheduler {settings.scheduler}, which is --scheduler's. "
            f"Take one that divides connections by weight: {', '.join(BY_SHARE)}."
        )
        return [Problem("SchedulerIgnoresWeights", subject, message)]
    return []


def _missing(name: str) -> Problem:
    subject = f"Node {name}"
    message = (
        f"{subject} does not exist yet: its zone and podCIDRs are not known, and its addresses are those of the "
        "default routes' interfaces. All else is served. Check --node-name if the Node has another name."
    )
    return Problem("NodeNotFound", subject, message)
