"""Ports without a name, renamed ports, and addresses of a family that a Service does not have."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from tests.lab.answers import ask_json
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.objects import Object, endpoint_slices, port, service
from tests.scenarios.conftest import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
EXTERNAL6 = "2001:db8::77"


@asynccontextmanager
async def calls(world: World, family: Family) -> AsyncIterator[list[str]]:
    """Call the Service again and again for the length of an `async with`. A call that fails fails the test."""
    hosts: list[str] = []

    async def call() -> None:
        while True:
            hosts.append((await world.visitor.http(family.service_ip, 8080)).host)

    async with asyncio.TaskGroup() as group:
        calling = group.create_task(call())
        await more(hosts, 1)
        yield hosts
        await more(hosts, 2)
        calling.cancel()


async def more(hosts: list[str], calls_: int) -> None:
    """Wait for this many more answers."""
    count = len(hosts) + calls_

    def have_come() -> None:
        assert len(hosts) >= count

    await eventually(have_come)


async def has_heard_of(node: Node, name: str) -> None:
    """Expect that the node's agent knows the Service's port by this name."""
    code, report = await ask_json(node, "show", "service", "default/web")
    assert code == 0
    assert [it["name"] for it in report["service"]["spec"]["ports"]] == [name]


def named(name: str) -> Object:
    return service("web", *CLUSTER_IPS, ports=[port(name, 8080)])


async def test_ports_without_a_name_in_manifests_are_those_with_an_empty_one(
    world: World, deployment: Deployment, family: Family
) -> None:
    """The API server writes the empty name into objects; a file has what its author wrote."""
    web = service("web", *CLUSTER_IPS)
    web["spec"]["ports"] = [{"port": 8080}]
    slices = endpoint_slices("web", world.web, ports=[{"port": 8080}])
    deployment.apply(web, *slices)
    await deployment.start(nodes=("node1",))
    assert set(await world.visitor.spread(family.service_ip, 8080, 3)) == {"web-1", "web-2", "web-3"}
    deployment.apply(*({**it, "ports": [{"name": None, "port": 8080, "protocol": None}]} for it in slices[:1]))
    assert set(await world.visitor.spread(family.service_ip, 8080, 3)) == {"web-1", "web-2", "web-3"}


async def test_a_renamed_port_loses_no_call_while_slices_carry_both_names(
    world: World, deployment: Deployment, family: Family
) -> None:
    both = [port("http", 8080), port("web", 8080)]
    deployment.apply(named("http"), *endpoint_slices("web", world.web, ports=both[:1], name="old"))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    stream = await world.visitor.open_stream(family.service_ip, 8080)
    before = node1.snapshot()
    async with calls(world, family) as hosts:
        deployment.apply(*endpoint_slices("web", world.web, ports=both[1:], name="new"))
        deployment.apply(named("web"))
        await eventually(partial(has_heard_of, node1, "web"))
        await more(hosts, 6)
        deployment.delete(*endpoint_slices("web", world.web, name="old"))
        await more(hosts, 6)
        deployment.apply(*endpoint_slices("web", world.web, ports=both, name="new"))
        deployment.apply(named("http"))
        await eventually(partial(has_heard_of, node1, "http"))
        await more(hosts, 6)
    await goes_on(stream)
    await stream.close()
    assert not before.diff(node1.snapshot())


async def test_a_port_that_is_renamed_before_its_slices_keeps_open_connections(
    world: World, deployment: Deployment, family: Family
) -> None:
    """Until the slices follow, new calls are refused, as kube-proxy refuses them: nobody serves the new name."""
    deployment.apply(named("http"), *endpoint_slices("web", world.web, ports=[port("http", 8080)]))
    await deployment.start(nodes=("node1",))
    stream = await world.visitor.open_stream(family.service_ip, 8080)
    deployment.apply(named("web"))

    async def is_refused() -> None:
        try:
            answer = await world.visitor.http(family.service_ip, 8080)
        except ConnectionRefusedError:
            return
        raise AssertionError(answer)

    await eventually(is_refused)
    await goes_on(stream)
    deployment.apply(*endpoint_slices("web", world.web, ports=[port("web", 8080)]))
    await eventually(lambda: world.visitor.http(family.service_ip, 8080))
    await goes_on(stream)
    await stream.close()


async def test_an_external_ip_of_a_family_that_the_service_has_not_is_left_out_with_one_line(
    world: World, deployment: Deployment
) -> None:
    web = service("web", CLUSTER_IPS[0], externalIPs=[EXTERNAL6], ingress=[EXTERNAL6])
    deployment.apply(web, *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    assert (await world.visitor.http(CLUSTER_IPS[0], 8080)).host.startswith("web-")
    assert node1.addresses("kube-ipvs0") == [f"{CLUSTER_IPS[0]}/32"]
    assert set(node1.ipvs()) == {f"TCP {CLUSTER_IPS[0]}:8080"}
    lines = deployment.agents["node1"].log.read_text().splitlines()
    [line] = [it for it in lines if "has no IPv6 ClusterIP" in it and "externalIP" in it]
    assert "Make it dual-stack" in line
