"""A change costs what it concerns, with 1,000 pods in the cluster and with 10,000."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from kroute.model.objects import Applied, Deleted, KubernetesObject, Pod
from kroute.model.policy_plan import PortRange
from kroute.planning.policies import peers
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.planning.policies.groups import Allowed
from kroute.planning.policies.peers import Peers
from kroute.planning.policies.rules import holds
from tests.unit.planning.policies import cluster, large

NAMESPACES = 10
NUMBER = 60_000
"""Of a pod that is not in the cluster yet; it is of the first namespace."""

Change = Callable[[PolicyCatalog], None]


def apply(**labels: str) -> Change:
    return lambda made: made.take([Applied(large.read(large.pod(NUMBER, NAMESPACES, "node9", **labels)))])


def delete(made: PolicyCatalog) -> None:
    made.take([Deleted(Pod, large.read(large.pod(NUMBER, NAMESPACES, "node9")).key)])


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Counts comparisons of selectors with labels, and decisions about the elements of groups."""
    counts: dict[str, int] = {}

    def counting(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            counts[name] = counts.get(name, 0) + 1
            return function(*arguments)

        return call

    with (
        patch.object(peers, "holds", counting("compared", holds)),
        patch.object(Allowed, "decide", counting("decided", Allowed.decide)),
        patch.object(Peers, "_settle", counting("settled", Peers._settle)),
    ):
        yield counts


def work(pods: int, *before: Change, change: Change) -> dict[str, int]:
    """What a change costs after others in a cluster of so many pods, of which 110 are on this node."""
    made = large.catalog(pods, policies=5 * NAMESPACES)
    made.plan_marked()
    for one in before:
        one(made)
        made.plan_marked()
    with counted() as counts:
        change(made)
        made.plan_marked()
    return counts


@pytest.mark.parametrize(
    ("before", "change", "compared"),
    [((), apply(), False), ((), apply(version="2"), True), ((apply(),), delete, False)],
    ids=["a pod like others", "a pod with other labels", "a pod that goes"],
)
def test_a_pods_cost_does_not_grow_with_the_number_of_pods(
    before: tuple[Change, ...], change: Change, *, compared: bool
) -> None:
    few, many = (work(pods, *before, change=change) for pods in (1000, 10_000))
    assert few == many
    assert few["settled"] == 1
    assert few["decided"] > 0
    assert ("compared" in few) == compared


def test_replicas_are_compared_once() -> None:
    """Selectors are compared with five kinds of pods in each namespace, whatever the number of replicas."""
    with counted() as few:
        large.catalog(1000, policies=5 * NAMESPACES).plan_marked()
    with counted() as many:
        large.catalog(10_000, policies=5 * NAMESPACES).plan_marked()
    assert many["compared"] == few["compared"]


def test_replicas_are_decided_once_where_rules_have_no_blocks() -> None:
    web, allowed = cluster.pod("web", "10.0.0.1"), cluster.ingress(cluster.pods_with(app="client"))
    clients = [cluster.pod(f"c{number}", f"10.1.0.{number}", on="node2", app="client") for number in range(30)]
    with counted() as counts:
        made = cluster.Cluster(cluster.namespace("shop"), web, allowed, *clients)
    assert counts["decided"] == 1
    [networks] = made.node.networks.values()
    assert len(networks) == 30


def test_replicas_share_their_labels_before_they_are_planned_and_after() -> None:
    made = large.catalog(1000, policies=5 * NAMESPACES)
    waiting = [facts for facts in made._changes.pods.values() if facts is not None]
    assert len({id(facts.kind) for facts in waiting}) == large.APPS * NAMESPACES
    assert len({id(facts.kind.labels) for facts in waiting}) == large.APPS
    assert len({id(facts.kind.ports) for facts in waiting}) == 1
    made.plan_marked()
    apply()(made)
    made.plan_marked()
    known = made._peers._pods.values()
    assert len({id(facts.kind) for facts in known}) == large.APPS * NAMESPACES


def test_a_plan_that_is_compared_is_the_same_and_names_no_elements() -> None:
    made, other = large.catalog(1000, policies=50), large.catalog(1000, policies=50)
    compared, change = made.plan_marked(differs=False), other.plan_marked()
    assert compared is not None
    assert change is not None
    assert (compared.pods, compared.groups.keys()) == (change.pods, change.groups.keys())
    assert {one for of_group in compared.groups.values() for one in of_group.added} == set()
    assert {key: {*found} for key, found in made.groups()} == {
        key: {(one.network, PortRange(*one[1:])) for one in of_group.added} for key, of_group in change.groups.items()
    }


def test_planning_goes_in_pieces_of_the_work_that_is_asked_for() -> None:
    made, whole = large.catalog(2000, policies=100), large.catalog(2000, policies=100)
    change, pieces = None, 0
    while change is None:
        change, pieces = made.plan_marked(1000), pieces + 1
    assert pieces > 10
    other = whole.plan_marked()
    assert other is not None
    assert change.pods == other.pods
    assert {key: set(one.networks_added) for key, one in change.groups.items()} == {
        key: set(one.networks_added) for key, one in other.groups.items()
    }


def test_an_object_of_another_kind_is_nothing_to_plan() -> None:
    made = large.catalog(10, policies=5)
    made.plan_marked()
    other: KubernetesObject = large.read(cluster.namespace("n0", team="n0"))
    made.take([Applied(other)])
    assert not made.has_marked
