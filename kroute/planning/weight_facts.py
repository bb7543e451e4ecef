"""What Nodes and Pods weigh, and where Nodes are: what is known for a Service, and which Services a change concerns.

A change of a Node's weight concerns the Services with an endpoint there, one of its zone or readiness only those that
ask for zones or locality. A Pod's concerns the Services whose slices name it. While nobody weighs anything, all of this
is empty.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from kroute.model.addresses import Family
from kroute.model.objects import WEIGHT, ZONE_LABEL, Node, ObjectKey, ObjectMeta, Pod, Service
from kroute.model.plan import RealServer, shortened
from kroute.model.steps import Steps, parts, sort
from kroute.planning.backend_slices import BackendSlice, PodRef, first_backends
from kroute.planning.index import Index

MAX_WEIGHT = 65535
"""The greatest weight that IPVS accepts."""

WEIGHTS, LOCALITY = "kroute.io/weights", "kroute.io/locality"
"""The annotations of a Service that depend on Nodes."""

PAUSE = 5.0
"""Seconds between two times that Services are planned again because of Nodes. A change after a longer time counts at
once; but a kubelet can change its Node as often as it likes."""

Slices = Mapping[ObjectKey, tuple[BackendSlice, ...]]


class Weighed(NamedTuple):
    """The weight of a Node or a Pod; `refused` is the text that is none, with the place where it stands."""

    weight: int = 1
    refused: str = ""


def read_weight(text: str) -> int | None:
    """A number from 0 to 65,535, else None."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else MAX_WEIGHT + 1
    return number if number <= MAX_WEIGHT else None


def weight_of(metadata: ObjectMeta) -> Weighed:
    """The weight of a Node or a Pod: its annotation `kroute.io/weight`, else its label; without either 1.

    The first that exists counts, even if it is invalid. Then the weight is 1.
    """
    for place, texts in (("annotation", metadata.annotations), ("label", metadata.labels)):
        if texts is not None and WEIGHT in texts:
            text = texts[WEIGHT].strip()
            weight = read_weight(text)
            return Weighed(weight) if weight is not None else Weighed(1, f"{place} {WEIGHT}={shortened(text)}")
    return _PLAIN


_PLAIN = Weighed()


class NodeTraits(msgspec.Struct, frozen=True):
    """What of a Node counts for weights. One that is `ready` has clients."""

    weight: int = 1
    zone: str | None = None
    is_ready: bool = False


UNKNOWN = NodeTraits()


def traits_of(node: Node) -> NodeTraits:
    """What of this Node counts."""
    zone = (node.metadata.labels or {}).get(ZONE_LABEL) or None
    ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())
    return NodeTraits(weight_of(node.metadata).weight, zone, ready)


class Nodes:
    """The Nodes of the cluster as they are now. One that is not known weighs 1."""

    def __init__(self, nodes: Mapping[str, NodeTraits]) -> None:
        self._nodes = dict(nodes)
        self.have_weights = any(traits.weight != 1 for traits in nodes.values())
        """Whether any Node weighs something else than 1."""
        self.ready = Counter(traits.zone for traits in nodes.values() if traits.is_ready)
        """How many ready Nodes each zone has; None: those without a zone."""

    def of(self, name: str | None) -> NodeTraits:
        return self._nodes.get(name, UNKNOWN) if name is not None else UNKNOWN


class WeightFacts(msgspec.Struct, frozen=True):
    """What is known for one Service: the Nodes, and the weights of its Pods, by the real server that each of them is.

    `refused` are the texts of its Pods that are no weights.
    """

    nodes: Nodes
    pods: Mapping[RealServer, int] = MappingProxyType({})
    refused: Sequence[str] = ()


class WeightSources:
    """The weights that objects give. `take_affected` says which Services to plan again since the last time.

    `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes: dict[str, NodeTraits] = {}
        self._snapshot: Nodes | None = None
        """The Nodes since their last change: a Service that is planned in steps keeps to what it began with."""
        self._asking: dict[ObjectKey, bool] = {}
        """The Services with one of the annotations, and whether locality is one."""
        self._pods: dict[ObjectKey, tuple[str, Weighed]] = {}
        self._slices = Index[ObjectKey, ObjectKey]()
        """The slices, and the Pods that each of them names."""
        self._service_of: dict[ObjectKey, ObjectKey] = {}
        """The Service of each slice that names Pods."""
        self._weighed_nodes: set[str] = set()
        self._have_zones_changed = False
        self._has_readiness_changed = False
        self._nodes_due = 0.0
        """When changes of Nodes may count again, on the clock."""
        self._affected: set[ObjectKey] = set()

    @property
    def has_affected(self) -> bool:
        """Whether Services are to be planned again now."""
        have_nodes_changed = self._weighed_nodes or self._have_zones_changed or self._has_readiness_changed
        return bool(self._affected) or (bool(have_nodes_changed) and self._nodes_due <= self._clock())

    def due_in(self) -> float | None:
        """In how many seconds the newest changes of Nodes count; None: there are none."""
        has_any = self._weighed_nodes or self._have_zones_changed or self._has_readiness_changed
        return self._nodes_due - self._clock() if has_any else None

    def place_service(self, key: ObjectKey, service: Service | None) -> None:
        """Take a Service's annotations; None: it is gone. The caller plans it again."""
        annotations = (service.metadata.annotations if service is not None else None) or {}
        if WEIGHTS in annotations or LOCALITY in annotations:
            self._asking[key] = LOCALITY in annotations
        else:
            self._asking.pop(key, None)

    def place_node(self, name: str, node: Node | None) -> None:
        """Take a Node's weight, zone and readiness; None: it is gone."""
        before, after = self._nodes.pop(name, UNKNOWN), UNKNOWN
        if node is not None:
            after = self._nodes[name] = traits_of(node)
        if after != before:
            self._snapshot = None
        if after.weight != before.weight:
            self._weighed_nodes.add(name)
        if after.zone != before.zone:
            self._have_zones_changed = bool(self._asking)
        elif after.is_ready != before.is_ready:
            self._has_readiness_changed = any(self._asking.values())

    def place_pod(self, key: ObjectKey, pod: Pod | None) -> None:
        """Take a Pod's weight; None: it is gone, or weighs nothing in particular any more."""
        before = self._pods.pop(key, None)
        after = (pod.metadata.uid, weight_of(pod.metadata)) if pod is not None else None
        if after is not None:
            self._pods[key] = after
        if before != after:
            self._affected.update(self._service_of[piece] for piece in self._slices.owners(key))

    def place_slice(self, key: ObjectKey, service: ObjectKey | None, piece: BackendSlice | None) -> None:
        """Take the Pods that a slice of a Service names; None: it is gone. The caller plans the Service again."""
        pods = [ObjectKey(key.namespace, ref.name) for ref in piece.pods if ref] if piece is not None else []
        self._slices.put(key, pods)
        if pods and service is not None:
            self._service_of[key] = service
        else:
            self._service_of.pop(key, None)

    def take_affected(self, slices: Slices) -> set[ObjectKey]:
        """The Services to plan again, each once. All Nodes that have another weight are looked for together."""
        affected, self._affected = self._affected, set()
        if (due := self.due_in()) is None or due > 0:
            return affected
        nodes, self._weighed_nodes = self._weighed_nodes, set()
        concerned = {
            key
            for key, is_local in self._asking.items()
            if self._have_zones_changed or (is_local and self._has_readiness_changed)
        }
        if nodes:
            concerned |= {key for key, pieces in slices.items() if any(_are_on(nodes, piece) for piece in pieces)}
        self._have_zones_changed = self._has_readiness_changed = False
        self._nodes_due = self._clock() + PAUSE if concerned else 0.0
        return affected | concerned

    def facts(self, service: ObjectKey, slices: Collection[BackendSlice], most: int) -> Steps[WeightFacts | None]:
        """What is known for a Service now, or None if nobody weighs any of its real servers.

        Of each family `most` backends are looked at: those that are served.
        """
        nodes = self._snapshot = self._snapshot or Nodes(self._nodes)
        if self._pods and any(piece.pods for piece in slices):
            in_order = sorted(slices, key=attrgetter("name"))
            pods, refused = yield from self._weights_of_pods(service, in_order, most)
            return WeightFacts(nodes, pods, refused)
        return WeightFacts(nodes) if nodes.have_weights or service in self._asking else None

    def _weights_of_pods(
        self, service: ObjectKey, slices: Sequence[BackendSlice], most: int
    ) -> Steps[tuple[dict[RealServer, int], list[str]]]:
        """The weights of the real servers that are Pods with one. Of two copies of one the better is the Pod's."""
        found: dict[RealServer, tuple[tuple[bool, bool, bool], int]] = {}
        refused: dict[str, None] = {}
        newest: BackendSlice | None = None
        weighed: dict[int, int] = {}
        for family in Family:
            for piece, port, count in first_backends((piece for piece in slices if piece.family == family), most):
                if piece is not newest:
                    newest, weighed = piece, self._weights_in(piece, service.namespace, refused)
                    yield len(piece.pods)
                servers = piece.real_servers(port, count)
                for number, weight in weighed.items():
                    if number < count:
                        candidate = piece.traits[number].preference, weight
                        found[servers[number]] = max(found.get(servers[number], _LEAST), candidate)
                yield min(count, len(weighed))
        pods: dict[RealServer, int] = {}
        for part in parts(found.items()):
            pods |= {server: weight for server, (_, weight) in part}
            yield len(part)
        return pods, (yield from sort(refused))

    def _weights_in(self, piece: BackendSlice, namespace: str, refused: dict[str, None]) -> dict[int, int]:
        """The weights of the Pods of a slice that have one, by the number of their endpoint; `refused` is added to."""
        found: dict[int, int] = {}
        for number, ref in enumerate(piece.pods):
            weighed = self._weight_of(namespace, ref) if ref is not None else None
            if ref is None or weighed is None:
                continue
            if weighed.refused:
                refused[f"{weighed.refused} of Pod {ref.name}"] = None
            found[number] = weighed.weight
        return found

    def _weight_of(self, namespace: str, ref: PodRef) -> Weighed | None:
        """The weight of a Pod of this name, if it is the one that the slice means: a StatefulSet uses names again."""
        uid, weighed = self._pods.get(ObjectKey(namespace, ref.name), ("", None))
        return weighed if not (uid and ref.uid and uid != ref.uid) else None


_LEAST = ((False, False, False), -1)


def _are_on(nodes: set[str], piece: BackendSlice) -> bool:
    return any(traits.node_name in nodes for traits in piece.traits)
