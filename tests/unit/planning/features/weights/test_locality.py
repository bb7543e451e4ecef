"""Near servers come first, and yet over all nodes each server gets its weight's share of all connections."""

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from kroute.planning.features.weights.locality import Location, shares
from kroute.planning.features.weights.text import Locality
from tests.builders import finish

Cluster = dict[str, tuple[str | None, int]]
"""The nodes that have clients: zone, and what the servers there weigh together."""


def shares_of(cluster: Cluster, node: str, locality: Locality) -> dict[str, Fraction]:
    places = {name: Location(name, zone, has_clients=True) for name, (zone, _) in cluster.items()}
    weights = {places[name]: weight for name, (_, weight) in cluster.items() if weight}
    clients = Counter(zone for zone, _ in cluster.values())
    found = finish(shares(weights, places[node], clients, locality))
    return {str(place.node): Fraction(*it) for place, it in found.items()}


def zones(**nodes: int) -> Cluster:
    """Nodes named by their zone and a number: `a1=2`."""
    return {name: (name[0], weight) for name, weight in nodes.items()}


def test_where_each_node_has_its_part_nothing_leaves_it() -> None:
    cluster = zones(a1=2, a2=2, b1=2)
    assert shares_of(cluster, "a1", Locality("node")) == {"a1": 1, "a2": 0, "b1": 0}


def test_what_a_node_lacks_comes_from_its_zone_and_then_from_others() -> None:
    cluster = zones(a1=1, a2=2, b1=0, b2=3)
    assert shares_of(cluster, "a1", Locality("node")) == {"a1": Fraction(2, 3), "a2": Fraction(1, 3), "b2": 0}
    assert shares_of(cluster, "b1", Locality("node")) == {"a1": 0, "a2": 0, "b2": 1}


def test_a_zone_that_lacks_servers_gets_the_rest_from_others() -> None:
    cluster = zones(a1=0, a2=1, b1=2, b2=2)  # room for 4/5 of a node's connections in a, for 16/5 in b
    assert shares_of(cluster, "a2", Locality("node")) == {
        "a2": Fraction(4, 5),
        "b1": Fraction(1, 10),
        "b2": Fraction(1, 10),
    }
    assert shares_of(cluster, "a1", Locality("node")) == {"a2": 0, "b1": Fraction(1, 2), "b2": Fraction(1, 2)}


def test_spill_leaves_room_for_others() -> None:
    cluster = zones(a1=1, b1=1)
    assert shares_of(cluster, "a1", Locality("node", 80)) == {"a1": Fraction(9, 10), "b1": Fraction(1, 10)}


def test_prefer_zone_does_not_tell_nodes_apart() -> None:
    cluster = zones(a1=1, a2=3, b1=4, b2=0)
    assert shares_of(cluster, "a1", Locality("zone")) == {"a1": Fraction(1, 4), "a2": Fraction(3, 4), "b1": 0}


def test_nodes_without_a_zone_are_in_none_together() -> None:
    cluster: Cluster = {"n1": (None, 1), "n2": (None, 1)}
    assert shares_of(cluster, "n1", Locality("zone")) == {"n1": Fraction(1, 2), "n2": Fraction(1, 2)}


CLUSTERS = st.dictionaries(
    st.sampled_from([f"n{number}" for number in range(9)]),
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 9)),
    min_size=1,
)
LOCALITIES = st.builds(Locality, st.sampled_from(["node", "zone"]), st.integers(1, 100))


@given(CLUSTERS, LOCALITIES)
def test_over_all_nodes_each_server_gets_its_weights_share(cluster: Cluster, locality: Locality) -> None:
    total = sum(weight for _, weight in cluster.values())
    if not total:
        return
    sums: Counter[str] = Counter()
    for node in cluster:
        found = shares_of(cluster, node, locality)
        assert sum(found.values()) == 1
        assert min(found.values()) >= 0
        sums.update(found)  # type: ignore[arg-type]
    assert sums == {name: Fraction(len(cluster) * weight, total) for name, (_, weight) in cluster.items() if weight}


@given(CLUSTERS, LOCALITIES)
def test_a_node_has_the_stated_share_at_home(cluster: Cluster, locality: Locality) -> None:
    total = sum(weight for _, weight in cluster.values())
    for name, (_, weight) in cluster.items():
        if weight and locality.near == "node":
            least = min(Fraction(1), Fraction(locality.spill, 100) * len(cluster) * weight / total)
            assert shares_of(cluster, name, locality)[name] >= least


@given(CLUSTERS, LOCALITIES)
def test_the_order_of_nodes_and_servers_does_not_matter(cluster: Cluster, locality: Locality) -> None:
    node = min(cluster)
    backwards = dict(reversed(cluster.items()))
    assert shares_of(cluster, node, locality) == shares_of(backwards, node, locality)
