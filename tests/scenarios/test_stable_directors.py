"""A client keeps its pod when a director dies and when a node leaves: with mh all machines choose alike."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.lab.crowd import NETWORKS, clients
from tests.lab.deployment import eventually
from tests.lab.directors import DirectorMachine
from tests.lab.firewall import tool
from tests.lab.hosts import Host
from tests.scenarios.test_director import (
    IPV4,
    VIPS,
    Stage,
    clean,
    has_vips,
    key_of,
    power_failure,
    stage,
    web_service,
    weights_are,
)

__all__ = ["clean", "stage"]
CLIENTS = 20


@pytest.fixture
def crowd(stage: Stage) -> Iterator[Host]:
    """The client with all addresses of the crowd's networks, which every machine can answer."""
    client = stage.client
    machines = (*stage.nodes, *(machine.host for machine in stage.machines))
    client.run("sysctl", "-qw", "net.ipv6.ip_nonlocal_bind=1")
    for network, gateway in zip(NETWORKS, (client.ip, client.ip6), strict=True):
        client.run("ip", "route", "replace", "local", network, "dev", "lo")
        for machine in machines:
            machine.run("ip", "route", "replace", network, "via", gateway)
    yield client
    client.run("sysctl", "-qw", "net.ipv6.ip_nonlocal_bind=0")
    for network in NETWORKS:
        client.run("ip", "route", "del", "local", network, "dev", "lo")
        for machine in machines:
            machine.run("ip", "route", "del", network)


async def pods_of(client: Host, address: str) -> dict[str, str]:
    """Which pod answers each address of the crowd, as soon as all are answered."""
    sources = [source for source, _ in clients("IPv6" if ":" in address else "IPv4", CLIENTS)]

    async def all_are_answered() -> dict[str, str]:
        answers = await asyncio.gather(*(client.http(address, 8080, source=(it, 0)) for it in sources))
        return {source: answer.host for source, answer in zip(sources, answers, strict=True)}

    return await eventually(all_are_answered)


async def with_mh(stage: Stage) -> tuple[DirectorMachine, DirectorMachine]:
    """Start both directors, with mh on all machines."""
    stage.api.apply(web_service({"kroute.io/scheduler": "mh"}))
    first, second = await stage.started()

    def all_have_mh() -> None:
        hosts = [*stage.nodes, first.host, second.host]
        rows = [host.ipvs().get(key_of(IPV4)) for host in hosts]
        assert {row and row.scheduler for row in rows} == {"mh"}

    await eventually(all_have_mh)
    return first, second


async def test_a_client_keeps_its_pod_when_the_active_director_dies(stage: Stage, crowd: Host) -> None:
    first, second = await with_mh(stage)
    before = {}
    for vip in VIPS:
        tables = [list(machine.host.ipvs()[key_of(vip)].real_servers) for machine in (first, second)]
        assert tables[0] == tables[1]
        before[vip] = await pods_of(crowd, vip)
        assert set(before[vip].values()) == {"web-1", "web-2", "web-3"}
    await power_failure(first)
    try:
        await eventually(lambda: has_vips(second))
        for vip in VIPS:
            assert await pods_of(crowd, vip) == before[vip]
    finally:
        first.plug_in()


async def test_a_client_keeps_its_pod_when_its_node_gets_no_more_clients(stage: Stage, crowd: Host) -> None:
    first, _ = await with_mh(stage)
    node1, node2, node3 = (node.ip for node in stage.nodes)
    await eventually(lambda: weights_are(first, {node1: 1, node2: 1, node3: 1}))
    before = await pods_of(crowd, IPV4)
    rule = ("INPUT", "-s", first.host.ip, "-p", "tcp", "-j", "DROP")
    stage.nodes[2].run(tool("IPv4"), "-I", *rule)
    try:
        await eventually(lambda: weights_are(first, {node1: 1, node2: 1, node3: 0}))
        assert await pods_of(crowd, IPV4) == before
    finally:
        stage.nodes[2].run(tool("IPv4"), "-D", *rule)
