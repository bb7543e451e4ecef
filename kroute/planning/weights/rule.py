"""The one rule of weights: weight = pod x node x what the Service says of the zone and the node x locality.

Each factor is 1 if nobody says anything, and 0 anywhere drains. The rule only weighs servers that serve by policies,
state and hints; it never brings in another one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

import msgspec

from kroute.model.node_facts import NodeFacts
from kroute.model.plan import Problem, RealServer
from kroute.planning.backend_slices import BackendSlice, Traits
from kroute.planning.weights.facts import Nodes, WeightFacts
from kroute.planning.weights.locality import Place, shares
from kroute.planning.weights.text import Locality, ServiceWeights
from kroute.planning.weights.whole import whole
from kroute.schedulers import BY_SHARE, HEEDLESS

NO_FACTS = WeightFacts(Nodes())

Chosen = Sequence[tuple[RealServer, Traits]]
"""The endpoints that serve, as `kroute.planning.endpoints.choose` found them."""


class Factor(msgspec.Struct, frozen=True):
    """A part of a weight that is not 1, and whose it is."""

    whose: str
    value: int

    def __str__(self) -> str:
        return f"{self.whose} {self.value}"


class Weight(msgspec.Struct, frozen=True):
    """The weight of a real server: the whole one, and the factors that are not 1.

    `share` is its share of the node's connections by locality; None: that plays no part.
    """

    whole: int
    factors: tuple[Factor, ...]
    share: Fraction | None = None

    def __str__(self) -> str:
        """`12 = pod 4 x node 3`; with ~ if it was scaled."""
        parts = [str(it) for it in self.factors]
        product = _product(self.factors)
        if self.share is not None:
            parts.append(f"locality {float(100 * self.share):.3g}% of this node's connections")
        sign = "=" if product == self.whole and self.share is None else "~"
        return f"{self.whole} {sign} {' x '.join(parts)}" if parts else str(self.whole)


_ONE = Weight(1, ())


class Weighing(msgspec.Struct, frozen=True):
    """All that says what the real servers of a Service weigh on a node."""

    node: NodeFacts
    facts: WeightFacts
    scheduler: str
    by_service: ServiceWeights | None = None
    locality: Locality | None = None

    def of(self, chosen: Chosen) -> list[Weight]:
        """The weight of each real server, in the same order."""
        factors = [self._factors(server, traits) for server, traits in chosen]
        products = [_product(it) for it in factors]
        places = self._places(chosen)
        if places is None or self.locality is None:
            if all(product == 1 for product in products):
                return [_ONE] * len(products)
            exact = [Fraction(product) for product in products]
            return [Weight(*it) for it in zip(self._whole(exact), factors, strict=True)]
        each = self._shares(products, places, chosen, self.locality)
        return [Weight(*it) for it in zip(self._whole(each), factors, each, strict=True)]

    def weigh(self, chosen: Chosen) -> tuple[RealServer, ...]:
        """The real servers with their weights, in the same order."""
        weights = self.of(chosen)
        return tuple(
            [
                server if weight.whole == server.weight else server._replace(weight=weight.whole)
                for (server, _), weight in zip(chosen, weights, strict=True)
            ]
        )

    def _factors(self, server: RealServer, traits: Traits) -> tuple[Factor, ...]:
        node, zone = traits.node_name, self.facts.nodes.of(traits.node_name).zone
        found = [("pod", self.facts.pods.get(server, 1)), ("node", self.facts.nodes.of(node).weight)]
        if self.by_service is not None:
            found.append((f"zone/{zone}", self.by_service.zones.get(zone or "", 1)))
            found.append((f"node/{node}", self.by_service.nodes.get(node or "", 1)))
        return tuple([Factor(*it) for it in found if it[1] != 1])

    def _places(self, chosen: Chosen) -> list[Place] | None:
        """Where each real server is; None if locality plays no part: nobody asks, or all are on one node."""
        if self.locality is None or self.scheduler not in BY_SHARE:
            return None
        if len({traits.node_name for _, traits in chosen}) <= 1:
            return None
        crowd = self._crowd(chosen)
        return [self._place(traits.node_name, crowd) for _, traits in chosen]

    def _place(self, name: str | None, crowd: dict[str | None, int]) -> Place:
        is_here = name == self.node.name
        traits = self.facts.nodes.of(name)
        zone = self.node.zone if is_here else traits.zone
        others = crowd.get(zone, 0) - (zone == self.node.zone)  # this node is among its zone's
        return Place(name, zone, has_clients=is_here or (traits.is_ready and others > 0))

    def _crowd(self, chosen: Chosen) -> dict[str | None, int]:
        """How many nodes of each zone have clients that these servers serve: all that are ready, and this one.

        Where hints chose the servers, others serve the clients of other zones, or of other nodes.
        """
        node, zone = self.node.name, self.node.zone
        if all(node in traits.for_nodes for _, traits in chosen):
            return {zone: 1}
        known = self.facts.nodes.of(node)
        ready = {it: count for it, count in self.facts.nodes.ready.items() if count}
        if not known.is_ready:
            ready[zone] = ready.get(zone, 0) + 1
        elif known.zone != zone:  # the facts of the node are older
            ready[known.zone], ready[zone] = ready[known.zone] - 1, ready.get(zone, 0) + 1
        if all(zone in traits.for_zones for _, traits in chosen):
            return {zone: ready[zone]}
        return ready

    def _shares(self, products: list[int], places: list[Place], chosen: Chosen, locality: Locality) -> list[Fraction]:
        """The share of this node's connections that each real server gets."""
        sums: Counter[Place] = Counter()
        for place, product in zip(places, products, strict=True):
            sums[place] += product
        crowd = self._crowd(chosen)
        found = shares(sums, self._place(self.node.name, crowd), crowd, locality)
        return [
            found[place] * product / sums[place] if product else Fraction(0)
            for place, product in zip(places, products, strict=True)
        ]

    def _whole(self, exact: list[Fraction]) -> list[int]:
        """Whole weights for exact ones; 0 stays 0."""
        counts = Counter(filter(None, exact))
        weights = whole(counts, self.scheduler) if counts else {}
        return [weights.get(it, 0) for it in exact]


def weighing_of(
    node: NodeFacts,
    facts: WeightFacts | None,
    scheduler: str,
    by_service: ServiceWeights | None,
    locality: Locality | None,
) -> Weighing | None:
    """How a Service is weighed, or None if all its servers weigh 1."""
    is_weighed = facts is not None and (facts.pods or facts.nodes.have_weights)
    if by_service is None and locality is None and not is_weighed:
        return None
    return Weighing(node, facts or NO_FACTS, scheduler, by_service, locality)


def are_weighed(slices: Iterable[BackendSlice], facts: WeightFacts | None) -> bool:
    """Whether a Node or a Pod gives one of the Service's real servers a weight that only some schedulers look at.

    A weight of 0 holds with every scheduler, so a Node with that weight does not count.
    """
    if facts is None or not (facts.pods or facts.nodes.have_weights):
        return False
    names = {traits.node_name for piece in slices for traits in piece.traits}
    return bool(facts.pods) or any(facts.nodes.of(name).weight > 1 for name in names)


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
    if weighing.scheduler in HEEDLESS and (weighing.by_service or weighing.facts.pods):
        problems.append(_heedless(weighing.scheduler, "ignores all weights except 0"))
    elif weighing.locality is not None and weighing.scheduler not in BY_SHARE:
        problems.append(
            _heedless(weighing.scheduler, "does not divide connections by weight, so kroute.io/locality has no effect")
        )
    return problems


def _heedless(scheduler: str, what: str) -> Problem:
    subject = f"scheduler {scheduler}"
    message = f"{subject} {what}. Choose one that divides connections by weight: {', '.join(BY_SHARE)}."
    return Problem("SchedulerIgnoresWeights", subject, message)


def _product(factors: Sequence[Factor]) -> int:
    product = 1
    for factor in factors:
        product *= factor.value
    return product
