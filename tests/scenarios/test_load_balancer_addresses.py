"""One of the agents gives Services of type LoadBalancer addresses, which all nodes serve, and another takes over."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.lab import objects
from tests.lab.answers import ask_json
from tests.lab.api_server import SERVICES, ApiServer
from tests.lab.deployment import eventually
from tests.lab.kroute_process import KrouteProcess
from tests.lab.objects import Object
from tests.scenarios.conftest import FAMILIES, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
FIRST, SECOND = ["203.0.113.96", "2001:db8:96::"], ["203.0.113.97", "2001:db8:96::1"]
FLAGS = ("--allocate-load-balancer-ips", "--loadbalancer-ip-range", "203.0.113.96/31,2001:db8:96::/127")
NODES = ("node2", "node3")


def balanced(name: str, *cluster_ips: str) -> Object:
    return objects.service(name, *cluster_ips, type="LoadBalancer")


@pytest.fixture
async def agents(world: World, tmp_path: Path) -> AsyncIterator[tuple[ApiServer, dict[str, KrouteProcess]]]:
    """kroute on two nodes, with an API server on a third one; the nodes are cleaned up afterwards."""
    items = [*map(objects.node, world.nodes), balanced("web", *CLUSTER_IPS), *objects.endpoint_slices("web", world.web)]
    api = ApiServer(world.cluster.node("node1"), tmp_path, items)
    api.start()
    try:
        running = {}
        for name in NODES:
            source = ("--kubeconfig", str(api.kubeconfig), "--node-name", name)
            running[name] = await world.cluster.node(name).kroute("run", *source, *FLAGS)
        for process in running.values():
            await process.ready()
        yield api, running
        for name in NODES:
            if running[name].running:
                await running[name].terminate()
            cleanup = await world.cluster.node(name).kroute("cleanup")
            assert await cleanup.wait() == 0
    finally:
        api.stop()


def addresses(api: ApiServer) -> dict[str, list[str]]:
    found = {it["metadata"]["name"]: it.get("status", {}).get("loadBalancer", {}) for it in api.list(SERVICES)}
    return {name: [entry["ip"] for entry in status.get("ingress", ())] for name, status in found.items()}


def have(api: ApiServer, expected: dict[str, list[str]]) -> None:
    assert addresses(api) == expected


def allocators(running: dict[str, KrouteProcess]) -> list[str]:
    """The nodes whose agents have said that they are the allocator."""
    lines = {name: it.log.read_text().splitlines() for name, it in running.items()}
    return [name for name, said in lines.items() if any('"lease.role"' in it and '"active"' in it for it in said)]


async def test_addresses_are_given_served_and_given_by_another_agent_when_the_first_stops(
    world: World, agents: tuple[ApiServer, dict[str, KrouteProcess]]
) -> None:
    api, running = agents
    await eventually(lambda: have(api, {"web": FIRST}), within=30)
    for name in NODES:
        for address in FIRST:

            async def is_served(name: str = name, address: str = address) -> None:
                assert len(await world.cluster.node(name).spread(address, 8080, 6)) == 3

            await eventually(is_served)
    [holder] = allocators(running)

    async def is_said_by_both() -> None:
        for name in NODES:
            _, status = await ask_json(world.cluster.node(name), "status")
            fill = {"inUse": 1, "inRange": 2} if name == holder else None
            said = status["allocator"]
            assert (said["node"], said["isHere"], said["addresses"].get("IPv6")) == (holder, name == holder, fill)

    await eventually(is_said_by_both, within=30)
    await running[holder].terminate()
    api.create(balanced("late", "10.254.0.77", "fd00:10:254::77"))
    await eventually(lambda: have(api, {"web": FIRST, "late": SECOND}), within=60)
    assert sorted(allocators(running)) == sorted(NODES)
