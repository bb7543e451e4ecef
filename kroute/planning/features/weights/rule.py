"""The one rule of weights: weight = pod x node x what the Service says of the zone and the node x locality.

Each factor is 1 if nobody says anything, and 0 anywhere drains. The rule only weighs servers that serve by policies,
state and hints; it never brings in another one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from math import prod
from typing import NamedTuple

import msgspec

from kroute.base.schedulers import BY_SHARE, IGNORE_WEIGHTS
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import Problem, RealServer
from kroute.model.steps import Steps, parts
from kroute.planning.backend_slices import BackendSlice
from kroute.planning.endpoints import Chosen
from kroute.planning.features.step import FeatureStep, PlanInputs
from kroute.planning.features.weights.locality import Location, shares
from kroute.planning.features.weights.text import Locality, ServiceWeights
from kroute.planning.features.weights.whole import Exact, exactly, whole
from kroute.planning.weight_facts import Nodes, WeightFacts

NO_FACTS = WeightFacts(Nodes({}))

Alike = tuple[str | None, int]
"""What real servers have in common that weigh the same: the name of their node, and their Pod's weight."""


class _Found(NamedTuple):
    """The whole weight of a kind, and its share of the node's connections by locality; None: that plays no part."""

    whole: int
    share: Exact | None = None


class _Scope(Enum):
    """The clients that the chosen real servers serve: those of which nodes."""

    NODE = "this node"
    ZONE = "this node's zone"
    CLUSTER = "all that are ready"


class Weighing(msgspec.Struct, FeatureStep, frozen=True):
    """All that says what the real servers of a Service weigh on a node.

    Ports whose real servers are of the same kinds are weighed once: `known` is what was found for how many of each.
    """

    node: NodeFacts
    facts: WeightFacts
    scheduler: str
    by_service: ServiceWeights | None = None
    locality: Locality | None = None
    known: dict[tuple[frozenset[tuple[Alike, int]], _Scope | None], dict[Alike, _Found]] = {}

    def explain_weights(self, chosen: Chosen) -> Steps[Mapping[RealServer, str]]:
        """The weight with the factors that are not 1, and whose they are."""
        kinds, found = yield from self._found(chosen)
        words = {kind: self._in_words(kind, one) for kind, one in found.items()}
        return {server: words[kind] for (server, _), kind in zip(chosen, kinds, strict=True)}

    def weigh(self, chosen: Chosen, _servers: tuple[RealServer, ...] = ()) -> Steps[tuple[RealServer, ...]]:
        """The real servers with their weights, in the same order."""
        kinds, found = yield from self._found(chosen)
        servers: list[RealServer] = []
        for part in parts(zip(chosen, kinds, strict=True)):
            servers += [
                server if found[kind].whole == server.weight else RealServer(*server[:2], found[kind].whole)
                for (server, _), kind in part
            ]
            yield len(part)
        return tuple(servers)

    def _found(self, chosen: Chosen) -> Steps[tuple[list[Alike], dict[Alike, _Found]]]:
        """The kind of each real server, and what each kind weighs."""
        kinds: list[Alike] = []
        pods = self.facts.pods
        for part in parts(chosen):
            kinds += [(traits.node_name, pods.get(server, 1)) for server, traits in part]
            yield len(part)
        counts = Counter(kinds)
        scope = self._scope(chosen) if self._has_places(counts) else None
        question = frozenset(counts.items()), scope
        found = self.known.get(question)
        if found is None:
            found = self.known[question] = yield from self._weighed(counts, scope)
        return kinds, found

    def _weighed(self, counts: Mapping[Alike, int], scope: _Scope | None) -> Steps[dict[Alike, _Found]]:
        products: dict[Alike, int] = {}
        for part in parts(counts):
            products |= {kind: prod(self._values(kind)) for kind in part}
            yield 2 * len(part)
        if scope is None and all(product == 1 for product in products.values()):
            return dict.fromkeys(counts, _Found(1))
        if scope is None or self.locality is None:
            exact = {kind: (product, 1) for kind, product in products.items()}
            total = (sum(product * counts[kind] for kind, product in products.items()), 1)
        else:
            exact = yield from self._shares(counts, products, self._client_nodes_by_zone(scope), self.locality)
            total = (1, 1)
        many: Counter[Exact] = Counter()
        for part in parts(exact):
            for kind in part:
                many[exact[kind]] += counts[kind]
            yield len(part)
        del many[0, 1]  # 0 stays 0
        weights = (yield from whole(many, total, self.scheduler)) if many else {}
        return {kind: _Found(weights.get(one, 0), None if scope is None else one) for kind, one in exact.items()}

    def _values(self, kind: Alike) -> tuple[int, ...]:
        """The factors of a kind's weight: pod, node, and what the Service says of the zone and the node."""
        name, pod = kind
        node = self.facts.nodes.of(name)
        if self.by_service is None:
            return pod, node.weight
        return pod, node.weight, self.by_service.zones.get(node.zone or "", 1), self.by_service.nodes.get(name or "", 1)

    def _in_words(self, kind: Alike, found: _Found) -> str:
        """`12 = pod 4 x node 3`; with ~ if it was scaled."""
        name, values = kind[0], self._values(kind)
        whose = ("pod", "node", f"zone/{self.facts.nodes.of(name).zone}", f"node/{name}")
        words = [f"{each} {value}" for each, value in zip(whose, values, strict=False) if value != 1]
        if found.share is not None:
            numerator, denominator = found.share
            words.append(f"locality {100 * numerator / denominator:.3g}% of this node's connections")
        sign = "=" if prod(values) == found.whole and found.share is None else "~"
        return f"{found.whole} {sign} {' x '.join(words)}" if words else str(found.whole)

    def _has_places(self, kinds: Iterable[Alike]) -> bool:
        """Whether locality plays a part: the Service asks for it, and not all real servers are on one node."""
        if self.locality is None or self.scheduler not in BY_SHARE:
            return False
        return len({name for name, _ in kinds}) > 1

    def _place(self, name: str | None, clients: Mapping[str | None, int]) -> Location:
        is_here = name == self.node.name
        traits = self.facts.nodes.of(name)
        zone = self.node.zone if is_here else traits.zone
        others = clients.get(zone, 0) - (zone == self.node.zone)  # this node is among its zone's
        return Location(name, zone, has_clients=is_here or (traits.is_ready and others > 0))

    def _scope(self, chosen: Chosen) -> _Scope:
        """Where hints chose the servers, others serve the clients of other zones, or of other nodes."""
        if all(self.node.name in traits.for_nodes for _, traits in chosen):
            return _Scope.NODE
        return _Scope.ZONE if all(self.node.zone in traits.for_zones for _, traits in chosen) else _Scope.CLUSTER

    def _client_nodes_by_zone(self, scope: _Scope) -> dict[str | None, int]:
        """How many nodes of each zone have clients that the servers serve: of those in scope all that are ready, and
        this one."""
        node, zone = self.node.name, self.node.zone
        if scope is _Scope.NODE:
            return {zone: 1}
        known = self.facts.nodes.of(node)
        ready = dict(self.facts.nodes.ready)
        if not known.is_ready:
            ready[zone] = ready.get(zone, 0) + 1
        elif known.zone != zone:  # the facts of the node are older
            ready[known.zone], ready[zone] = ready[known.zone] - 1, ready.get(zone, 0) + 1
        return {zone: ready[zone]} if scope is _Scope.ZONE else ready

    def _shares(
        self,
        counts: Mapping[Alike, int],
        products: Mapping[Alike, int],
        clients: Mapping[str | None, int],
        locality: Locality,
    ) -> Steps[dict[Alike, Exact]]:
        """The share of this node's connections that each real server of a kind gets."""
        places: dict[Alike, Location] = {}
        sums: Counter[Location] = Counter()
        for part in parts(products.items()):
            for kind, product in part:
                place = places[kind] = self._place(kind[0], clients)
                sums[place] += product * counts[kind]
            yield 2 * len(part)
        found = yield from shares(sums, self._place(self.node.name, clients), clients, locality)
        each: dict[Alike, Exact] = {}
        for part in parts(products.items()):
            for kind, product in part:
                numerator, denominator = found[places[kind]]
                each[kind] = exactly(numerator * product, denominator * sums[places[kind]]) if product else (0, 1)
            yield len(part)
        return each


def begin(inputs: PlanInputs) -> Weighing | None:
    """The step of a Service whose real servers are weighed."""
    options = inputs.options
    by_service, locality = options.of(ServiceWeights), options.of(Locality)
    weighing = weighing_of(inputs.node, inputs.facts, options.scheduler, by_service, locality)
    if weighing is not None:
        inputs.problems.extend(problems_of(weighing))
    return weighing


def weighing_of(
    node: NodeFacts,
    facts: WeightFacts | None,
    scheduler: str,
    by_service: ServiceWeights | None,
    locality: Locality | None = None,
) -> Weighing | None:
    """How a Service is weighed, or None if all its servers weigh 1."""
    is_weighed = facts is not None and (facts.pods or facts.nodes.have_weights)
    if by_service is None and locality is None and not is_weighed:
        return None
    return Weighing(node, facts or NO_FACTS, scheduler, by_service, locality)


def are_weighed(slices: Iterable[BackendSlice], facts: WeightFacts | None) -> Steps[bool]:
    """Whether a Node or a Pod gives one of the Service's real servers a weight that only some schedulers look at.

    A weight of 0 holds with every scheduler, so a Node with that weight does not count.
    """
    if facts is None or facts.pods or not facts.nodes.have_weights:
        return facts is not None and bool(facts.pods)
    for piece in slices:
        yield len(piece.traits) // 4
        if any(facts.nodes.of(name).weight > 1 for name in {traits.node_name for traits in piece.traits}):
            return True
    return False


def problems_of(weighing: Weighing) -> list[Problem]:
    """What of a Service's weights cannot be obeyed.

    A Node's weight is not the Service's matter: the Node's own agent reports it.
    """
    problems = []
    refused = weighing.facts.refused
    if refused:
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        message = f"{refused[0]}{more}: no weight; the pod weighs 1. Allowed: 0 to 65535."
        problems.append(Problem("InvalidWeight", refused[0], message))
    if weighing.scheduler in IGNORE_WEIGHTS and (weighing.by_service or weighing.facts.pods):
        problems.append(_ignored(weighing.scheduler, "ignores all weights except 0"))
    elif weighing.locality is not None and weighing.scheduler not in BY_SHARE:
        problems.append(
            _ignored(weighing.scheduler, "does not divide connections by weight, so kroute.io/locality has no effect")
        )
    return problems


def _ignored(scheduler: str, what: str) -> Problem:
    rest = f"{what}. Choose one that divides connections by weight: {', '.join(BY_SHARE)}."
    return Problem.about("SchedulerIgnoresWeights", f"scheduler {scheduler}", rest)
