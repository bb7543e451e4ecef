"""Nodes of one cluster plan the same, apart from what each node legitimately has for itself."""

from collections.abc import Iterable

import msgspec
import pytest

from kroute.inspect.shared_state import SharedState, digest, encoded, shared_state
from kroute.model.objects import Applied, KubernetesObject, Service
from kroute.model.plan import NodePlan
from kroute.planning.catalog import Catalog
from tests.builders import LISTED, endpoint, endpoint_slice, facts, port, service, settings

ENDPOINTS = endpoint_slice("web", endpoint("10.244.1.5", on="node1"), endpoint("10.244.2.5", on="node2"))


async def on(name: str, *objects: KubernetesObject) -> SharedState:
    """Return what a node of this name plans and others should. Its own address is its own."""
    own = f"192.168.0.{name[-1]}"
    catalog = Catalog(settings(node_name=name), facts(own, None, name=name, zone=f"zone-{name}", own=[own]))
    catalog.take([*map(Applied, objects), *LISTED])
    plans = {it.key: it for it in catalog.plan_marked() if not isinstance(it, NodePlan)}
    return await shared_state(catalog, plans)


def local(**policy: str) -> Service:
    return service(kind="NodePort", ports=[port(80, node_port=30080)], external_ips=("198.51.100.7",), **policy)


@pytest.mark.parametrize(
    "objects",
    [
        [local(), ENDPOINTS],
        [local(external_traffic_policy="Local"), ENDPOINTS],
        [local(internal_traffic_policy="Local"), ENDPOINTS],
        [service(), endpoint_slice("web", *(endpoint(f"10.244.{n}.5", zones=[f"zone-node{n}"]) for n in (1, 2)))],
    ],
    ids=["node ports", "external policy", "internal policy", "hints"],
)
async def test_what_nodes_have_for_themselves_makes_no_difference(objects: Iterable[KubernetesObject]) -> None:
    first, second = await on("node1", *objects), await on("node2", *objects)
    assert first == second
    assert first.virtual_servers
    assert await digest(first) == await digest(second)
    assert msgspec.json.decode(await encoded(first), type=SharedState) == first


async def test_a_policy_inside_leaves_the_addresses_outside_comparable() -> None:
    found = await on("node1", local(internal_traffic_policy="Local"), ENDPOINTS)
    by_address = {it.address: it.real_servers for it in found.virtual_servers}
    assert by_address["10.96.0.10"] is None
    assert by_address["198.51.100.7"] == ("10.244.1.5:8080=1", "10.244.2.5:8080=1")


async def test_a_node_that_has_missed_a_change_differs() -> None:
    behind = endpoint_slice("web", endpoint("10.244.1.5", on="node1"))
    states = [
        await on("node1", service(), ENDPOINTS),
        await on("node2", service(), behind),
        await on("node2", service(annotations={"kube-router.io/service.scheduler": "lc"}), ENDPOINTS),
        await on("node2", service(), ENDPOINTS, service("other", "10.96.0.11")),
    ]
    assert len({await digest(it) for it in states}) == len(states)
