"""What is known of the cluster that real servers are weighed by: what Nodes and Pods weigh, and where Nodes are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from kroute.model.objects import WEIGHT, ZONE_LABEL, Node, ObjectMeta
from kroute.model.plan import RealServer, shortened

MAX_WEIGHT = 65535
"""The greatest weight that IPVS accepts."""


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
    """The Nodes of the cluster, and how many of each zone are ready. One that is not known weighs 1."""

    def __init__(self, nodes: Mapping[str, NodeTraits] | None = None) -> None:
        self._nodes: dict[str, NodeTraits] = {}
        self._ready: Counter[str | None] = Counter()
        self._weighty: set[str] = set()
        for name, traits in (nodes or {}).items():
            self.put(name, traits)

    @property
    def have_weights(self) -> bool:
        """Whether any Node weighs something else than 1."""
        return bool(self._weighty)

    @property
    def ready(self) -> Mapping[str | None, int]:
        """How many ready Nodes each zone has; None: those without a zone."""
        return self._ready

    def copy(self) -> "Nodes":
        """The same Nodes, which stay as they are when these change."""
        return Nodes(self._nodes)

    def known(self, name: str) -> NodeTraits | None:
        """What is known of a Node; None: nothing."""
        return self._nodes.get(name)

    def of(self, name: str | None) -> NodeTraits:
        return self._nodes.get(name, UNKNOWN) if name is not None else UNKNOWN

    def put(self, name: str, traits: NodeTraits | None) -> NodeTraits:
        """Replace what is known of a Node; None: it is gone. Returns what was known before."""
        before = self._nodes.pop(name, UNKNOWN)
        self._weighty.discard(name)
        if before.is_ready:
            self._ready[before.zone] -= 1
        if traits is not None:
            self._nodes[name] = traits
            self._ready[traits.zone] += traits.is_ready
            if traits.weight != 1:
                self._weighty.add(name)
        return before


class WeightFacts(msgspec.Struct, frozen=True):
    """What is known for one Service: the Nodes, and the weights of its Pods, by the real server that each of them is.

    `refused` are the texts of its Pods that are no weights.
    """

    nodes: Nodes
    pods: Mapping[RealServer, int] = MappingProxyType({})
    refused: Sequence[str] = ()
