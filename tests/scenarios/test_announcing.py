"""Routers learn VIPs from nodes by BGP: a real BIRD on each node, and two routers outside, with packets by ECMP."""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kroute.base.wording import host_port
from tests.lab.cluster import Node
from tests.lab.deployment import eventually
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES
from tests.scenarios.router_stage import PLAIN, PORT, TO_ROUTERS, plain, reached, stage
from tests.scenarios.test_observation import scraped

CALLS = 60
"""From each client to each address."""


async def test_routers_divide_clients_over_the_nodes_that_serve(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with stage(tmp_path, *TO_ROUTERS) as here:
        for router, client in here.clients.items():
            await asyncio.gather(*(client.http(address, PORT) for address in PLAIN * CALLS))
            shares = Counter({name: reached(node, client) for name, node in here.cluster.nodes.items()})
            assert min(shares.values()) > 0
            record_property("measured", f"{router} divided {CALLS * len(PLAIN)} connections into {dict(shares)}")
        await here.knows(addresses=[family.service_ip for family in FAMILIES])
        [pod] = here.cluster.node("node2").pods
        here.deployment.apply(plain(externalTrafficPolicy="Local"), *endpoint_slices("plain", [pod]))
        await here.knows("node2", addresses=PLAIN)
        for client in here.clients.values():
            assert {(await client.http(address, PORT)).host for address in PLAIN} == {pod.name}
        await here.is_established("node1", *here.routers)


async def test_a_service_that_goes_is_withdrawn_before_its_address_is_unbound(tmp_path: Path) -> None:
    async with stage(tmp_path, *TO_ROUTERS, "--withdraw-grace", "15s") as here:
        here.deployment.delete(plain())
        await here.knows(addresses=PLAIN)
        for node in here.cluster.nodes.values():
            assert {*PLAIN} <= bound(node), "unbound before the grace"
        await eventually(lambda: not_bound(*here.cluster.nodes.values()), within=60)


def bound(node: Node) -> set[str]:
    return {address.partition("/")[0] for address in node.addresses("kube-ipvs0")}


def not_bound(*nodes: Node) -> None:
    for node in nodes:
        assert not {*PLAIN} & bound(node)


async def test_a_hung_bird_does_not_keep_a_node_from_serving(tmp_path: Path) -> None:
    async with stage(tmp_path, *TO_ROUTERS) as here:
        node1 = here.cluster.node("node1")
        await eventually(partial(says_that_sessions_are_up, node1, expected=True), within=90)
        here.speakers["node1"].pause()
        other = service("other", "10.254.0.77", ports={"TCP": PORT})
        here.deployment.apply(other, *endpoint_slices("other", here.cluster.node("node2").pods, {"TCP": PORT}))
        await eventually(partial(serves, node1, "10.254.0.77"), within=30)
        await eventually(partial(says_that_sessions_are_up, node1, expected=False), within=90)


def says_that_sessions_are_up(node: Node, *, expected: bool) -> None:
    """Its metrics, for which BIRD is not asked."""
    said = [value for (name, *_), value in scraped(node).items() if name == "kroute_bgp_session_up"]
    assert said
    assert all(value == expected for value in said)


def serves(node: Host, address: str) -> None:
    assert f"TCP {host_port(address, PORT)}" in node.ipvs()
