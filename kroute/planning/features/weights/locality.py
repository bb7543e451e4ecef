"""Which share of this node's connections each real server gets if near ones come first (`kroute.io/locality`).

The clients of a Service are taken to be spread evenly over the nodes that are ready. So with N nodes a server of weight
w, of W in all, has room for w/W of all connections, which is N*w/W of a node's. `spill` percent of that room are for
clients near it.

1. Servers on a client's own node take what fits into their part for near clients (`prefer-node` only).
2. Those in the zone take of what the zone's nodes have left as much as fits into what step 1 left of their part.
3. All servers of the cluster take the rest, by the room that they have left.

Each node computes the same numbers, so together they fill each server's room exactly: near servers come first, and yet
over all nodes each server gets its weight's share. The numbers are exact: they are integers, in a unit that divides all
of them.
"""

from collections.abc import Mapping

import msgspec

from kroute.model.steps import Steps, parts
from kroute.planning.features.weights.text import FULL, Locality
from kroute.planning.features.weights.whole import Exact, exactly


class Location(msgspec.Struct, frozen=True):
    """The real servers of a node that are alike. `has_clients`: whether it is one of the nodes that have clients."""

    node: str | None
    zone: str | None
    has_clients: bool


def shares(
    weights: Mapping[Location, int], here: Location, clients: Mapping[str | None, int], locality: Locality
) -> Steps[dict[Location, Exact]]:
    """The share of the node `here` that the servers of each place get together; the shares add up to 1.

    `weights` is what the servers of a place weigh together, `clients` how many nodes of each zone have clients, `here`
    among them.
    """
    if not (total := sum(weights.values())):
        return dict.fromkeys(weights, (0, 1))
    room = _Room(sum(clients.values()), FULL * total, locality)
    zones: dict[str | None, _Zone] = {zone: _Zone(rest=count * room.of_a_node) for zone, count in clients.items()}
    for part in parts(weights.items()):
        for place, weight in part:
            zone = zones.setdefault(place.zone, _Zone())
            own = room.own(place, weight)
            zone.rest -= own
            zone.near += room.near(weight) - own
            zone.room += room.all(weight) - own
        yield 2 * len(part)
    of_node = _OfNode(room, zones, here, weights.get(here, 0))
    found: dict[Location, Exact] = {}
    for part in parts(weights.items()):
        found |= {place: of_node.share(place, weight) for place, weight in part}
        yield 4 * len(part)
    return found


class _Room(msgspec.Struct, frozen=True):
    """The room of the servers of a place. All numbers are in one unit, of which a node's connections are `of_a_node`.

    `nodes` is how many have clients.
    """

    nodes: int
    of_a_node: int
    locality: Locality

    def all(self, weight: int) -> int:
        return FULL * self.nodes * weight

    def near(self, weight: int) -> int:
        """The part of it for near clients."""
        return self.locality.spill * self.nodes * weight

    def own(self, place: Location, weight: int) -> int:
        """The part that clients on the same node take, which is step 1."""
        return min(self.of_a_node, self.near(weight)) if self.locality.near == "node" and place.has_clients else 0


class _Zone(msgspec.Struct):
    """After step 1: what the servers of a zone have left for `near` clients, and in all, and the `rest` of what those
    clients have. Nodes without a zone are near nobody."""

    near: int = 0
    room: int = 0
    rest: int = 0

    @property
    def taken(self) -> int:
        """What the servers take of the rest, which is step 2."""
        return max(0, min(self.near, self.rest))


class _OfNode:
    """What the node `here`, on which servers of this weight are, gives to each place."""

    def __init__(self, room: _Room, zones: dict[str | None, _Zone], here: Location, weight: int) -> None:
        self._room = room
        self._zones = zones
        self._here = here
        self._taken = {zone: each.taken if zone is not None else 0 for zone, each in zones.items()}
        self._all_room = sum(each.room - self._taken[zone] for zone, each in zones.items())
        zone = zones[here.zone]
        self._rest = room.of_a_node - room.own(here, weight)
        """What step 1 leaves of this node's connections."""
        in_zone = self._taken[here.zone]
        self._in_zone = exactly(self._rest * in_zone, zone.rest * zone.near) if in_zone else (0, 1)
        """For each unit that a place of the zone has left for near clients: what step 2 gives to the place."""
        beyond = exactly(self._rest * (zone.rest - in_zone), zone.rest) if in_zone else (self._rest, 1)
        self._beyond = exactly(beyond[0], beyond[1] * self._all_room) if beyond[0] else (0, 1)
        """For each unit of room that a place has left at the end: what step 3 gives to the place."""

    def share(self, place: Location, weight: int) -> Exact:
        """The share of a place, whose servers have this weight together."""
        own = self._room.own(place, weight)
        near, left = self._room.near(weight) - own, self._room.all(weight) - own
        first = own if place == self._here else 0
        second, of_second = self._in_zone if place.zone == self._here.zone else (0, 1)
        third, of_third = self._beyond
        if taken := self._taken[place.zone]:
            in_all = self._zones[place.zone].near
            left, of_third = left * in_all - taken * near, of_third * in_all
        number = first * of_second * of_third + second * near * of_third + third * left * of_second
        return exactly(number, of_second * of_third * self._room.of_a_node)
