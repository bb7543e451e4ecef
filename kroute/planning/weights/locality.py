"""Which share of this node's connections each real server gets if near ones come first (`kroute.io/locality`).

The clients of a Service are taken to be spread evenly over the nodes that are ready. So with N nodes a server of weight
w, of W in all, has room for w/W of all connections, which is N*w/W of a node's. `spill` percent of that room are for
clients near it.

1. Servers on a client's own node take what fits into their part for near clients (`prefer-node` only).
2. Those in the zone take of what the zone's nodes have left as much as fits into what step 1 left of their part.
3. All servers of the cluster take the rest, by the room that they have left.

Each node computes the same numbers, so together they fill each server's room exactly: near servers come first, and yet
over all nodes each server gets its weight's share. The numbers of one node are exact fractions.
"""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

import msgspec

from kroute.planning.weights.text import FULL, Locality


class Place(msgspec.Struct, frozen=True):
    """The real servers of a node that are alike. `has_clients`: whether it is one of the nodes that have clients."""

    node: str | None
    zone: str | None
    has_clients: bool


def shares(
    weights: Mapping[Place, int], here: Place, clients: Mapping[str | None, int], locality: Locality
) -> dict[Place, Fraction]:
    """The share of the node `here` that the servers of each place get together; the shares add up to 1.

    `weights` is what the servers of a place weigh together, `clients` how many nodes of each zone have clients, `here`
    among them.
    """
    nodes, total = sum(clients.values()), sum(weights.values())
    if not total:
        return dict.fromkeys(weights, Fraction(0))
    room = {place: Fraction(nodes * weight, total) for place, weight in weights.items()}
    near = {place: it * locality.spill / FULL for place, it in room.items()}
    own = {
        place: min(Fraction(1), it) if locality.near == "node" and place.has_clients else Fraction(0)
        for place, it in near.items()
    }
    near = {place: it - own[place] for place, it in near.items()}
    room = {place: it - own[place] for place, it in room.items()}
    zones = _fill_zones(near, own, clients)
    for place in room:
        room[place] -= zones.filled(place, near[place])
    return _of_node(here, own, near, room, zones)


class _Zones(msgspec.Struct, frozen=True):
    """By zone: what its servers have left for clients of the zone, the rest that those clients have after step 1, and
    the part of it that the servers take."""

    left: Mapping[str | None, Fraction]
    rest: Mapping[str | None, Fraction]
    taken: Mapping[str | None, Fraction]

    def filled(self, place: Place, near: Fraction) -> Fraction:
        """What the zone's clients use of the room of a place that has left `near` for them."""
        left = self.left.get(place.zone)
        return self.taken[place.zone] * self.rest[place.zone] * near / left if left else Fraction(0)


def _fill_zones(
    near: Mapping[Place, Fraction], own: Mapping[Place, Fraction], clients: Mapping[str | None, int]
) -> _Zones:
    left: Counter[str | None] = Counter()
    used: Counter[str | None] = Counter()
    for place, it in near.items():
        if place.zone is not None:
            left[place.zone] += it  # type: ignore[assignment]
        used[place.zone] += own[place]  # type: ignore[assignment]
    rest = {zone: clients.get(zone, 0) - Fraction(used[zone]) for zone in {*clients, *left}}
    taken = {
        zone: min(Fraction(1), Fraction(left[zone]) / rest[zone]) if rest[zone] > 0 else Fraction(0) for zone in rest
    }
    return _Zones({zone: Fraction(it) for zone, it in left.items()}, rest, taken)


def _of_node(
    here: Place,
    own: Mapping[Place, Fraction],
    near: Mapping[Place, Fraction],
    room: Mapping[Place, Fraction],
    zones: _Zones,
) -> dict[Place, Fraction]:
    rest = 1 - own.get(here, Fraction(0))
    in_zone = rest * zones.taken.get(here.zone, Fraction(0)) if here.zone is not None else Fraction(0)
    beyond, all_room = rest - in_zone, sum(room.values())
    found: dict[Place, Fraction] = {}
    for place in room:
        share = own[place] if place == here else Fraction(0)
        if in_zone and place.zone == here.zone:
            share += in_zone * near[place] / zones.left[here.zone]
        if beyond:
            share += beyond * room[place] / all_room
        found[place] = share
    return found
