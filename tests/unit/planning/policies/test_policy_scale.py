"""A change costs what it concerns, with 1,000 pods in the cluster and with 10,000."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from kroute.model.objects import Applied, Deleted, KubernetesObject, Pod
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
