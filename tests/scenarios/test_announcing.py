"""Routers learn VIPs from nodes by BGP: a real BIRD on each node, and one outside as router, with packets by ECMP.

The client of the lab is the router: what its BIRD learns it writes into its kernel, so the client's calls follow.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kroute.base.wording import host_port
from tests.lab import objects
from tests.lab.answers import ask_json
from tests.lab.cluster import Cluster
from tests.lab.deployment import Deployment, eventually
from tests.lab.feed import feed_for
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.routers import BirdProcess
from tests.lab.topology import CLIENT, NODES
from tests.scenarios.conftest import FAMILIES

PORT, NODE_PORT = 8080, 30088
ANNOUNCED = ("203.0.113.10", "2001:db8::10")
CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
FLAGS = ("--announce", "--advertise-external-ip", "--peer-router-ips", CLIENT.ip, "--peer-router-asns", "65000")
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def router_configuration() -> str:
    """A router that learns from three neighbours and divides its packets over them."""
    sessions = "\n".join(
        f"protocol bgp {name} {{ local {CLIENT.ip} as 65000; neighbor {place.ip} as 64512; connect delay time 1;\n"
        "  ipv4 { import all; export none; }; ipv6 { import all; export none; }; }"
        for name, place in NODES.items()
    )
    kernel = "\n".join(
        f"protocol kernel kernel{number} {{ merge paths on; ipv{number} {{ export all; }}; }}" for number in (4, 6)
    )
    return f"log stderr all;\nrouter id {CLIENT.ip};\nprotocol device {{ }}\n{kernel}\n{sessions}\n"


class Network(NamedTuple):
    """A cluster whose nodes announce, and its router. `flags` are those of kroute."""

    flags: tuple[str, ...]
    cluster: Cluster
    deployment: Deployment
    speakers: dict[str, BirdProcess]
    router: BirdProcess
    scratch: Path

    def directory(self, name: str) -> Path:
        return self.scratch / name

    async def start(self, name: str) -> None:
        """Start kroute on a node, and BIRD if it does not run there yet."""
        directory = self.directory(name)
        directory.mkdir(exist_ok=True)
        await self.deployment.start(*self.flags, "--bird-directory", str(directory), nodes=(name,))
        if name not in self.speakers:
            configuration = directory / "kroute.conf"
            await eventually(partial(is_there, configuration))
            self.speakers[name] = BirdProcess(self.cluster.node(name), directory, configuration)
            self.speakers[name].start()

    async def knows(self, *names: str, addresses: tuple[str, ...] = ANNOUNCED) -> None:
        """Wait until the router reaches these addresses by these nodes alone."""

        def check() -> None:
            for address in addresses:
                expected = {NODES[name].ip6 if ":" in address else NODES[name].ip for name in names}
                assert self.router.next_hops(address) == expected

        await eventually(check, within=60)


def is_there(path: Path) -> None:
    assert path.exists()


def web(policy: str = "Cluster") -> Object:
    return service(
        "web",
        *CLUSTER_IPS,
        ports={"TCP": PORT},
        node_ports={"TCP": NODE_PORT},
        externalIPs=list(ANNOUNCED),
        externalTrafficPolicy=policy,
        annotations={"kroute.io/scheduler": "mh"},
    )


@asynccontextmanager
async def network(scratch: Path, *flags: str) -> AsyncIterator[Network]:
    cluster = Cluster()
    running: list[BirdProcess] = []
    try:
        pods = [await node.pod(f"web-{name}", http=PORT) for name, node in cluster.nodes.items()]
        deployment = Deployment(cluster, feed_for(cluster, scratch))
        deployment.apply(web(), *endpoint_slices("web", pods, {"TCP": PORT}))
        router = BirdProcess.router(cluster.client, scratch / "router", router_configuration())
        running.append(router)
        made = Network((*FLAGS, *flags), cluster, deployment, {}, router, scratch)
        for name in cluster.nodes:
            await made.start(name)
            running.append(made.speakers[name])
        await made.knows(*NODES)
        yield made
    finally:
        for process in running:
            process.kill()
        cluster.close()


async def calls(client: Host, address: str, count: int = 30) -> set[str]:
    """Make so many calls of one connection each; returns who has answered. A lost one raises."""
    return {(await client.http(address, PORT)).host for _ in range(count)}


async def test_routers_reach_a_service_by_the_nodes_that_serve_it(tmp_path: Path) -> None:
    async with network(tmp_path) as here:
        for address in ANNOUNCED:
            assert await calls(here.cluster.client, address)
        assert here.router.next_hops(CLUSTER_IPS[0]) == set(), "ClusterIPs are not announced without their setting"
        [pod] = here.cluster.node("node1").pods
        here.deployment.apply(web("Local"), *endpoint_slices("web", [pod], {"TCP": PORT}))
        await here.knows("node1")
        for address in ANNOUNCED:
            assert await calls(here.cluster.client, address) == {pod.name}
        _, report = await ask_json(here.cluster.node("node1"), "show", "peers")
        assert [(peer["address"], peer["state"]) for peer in report["items"]] == [(CLIENT.ip, "Established")]


async def test_a_service_that_goes_is_withdrawn_before_its_address_is_unbound(tmp_path: Path) -> None:
    async with network(tmp_path, "--withdraw-grace", "15s") as here:
        here.deployment.delete(web())
        await here.knows()

        def is_unbound() -> None:
            for node in here.cluster.nodes.values():
                assert not {*ANNOUNCED} & {it.partition("/")[0] for it in node.addresses("kube-ipvs0")}

        for node in here.cluster.nodes.values():
            assert any(it.startswith(ANNOUNCED[0]) for it in node.addresses("kube-ipvs0")), "unbound before the grace"
        await eventually(is_unbound, within=60)


async def test_no_call_is_lost_while_kroute_is_restarted_and_bird_is_killed(tmp_path: Path) -> None:
    async with network(tmp_path) as here:
        routes = here.router.ask("show", "route", "count")
        agent = here.deployment.agents["node1"]
        assert await agent.terminate() == 0
        assert await calls(here.cluster.client, ANNOUNCED[0])
        await here.start("node1")
        assert await calls(here.cluster.client, ANNOUNCED[0])
        for name, speaker in here.speakers.items():
            speaker.kill()
            assert await calls(here.cluster.client, ANNOUNCED[0])
            speaker.start()
            await eventually(partial(established, here.router, name), within=60)
            assert await calls(here.cluster.client, ANNOUNCED[0])
        await here.knows(*NODES)
        assert here.router.ask("show", "route", "count") == routes


def established(router: BirdProcess, name: str) -> None:
    assert "Established" in router.ask("show", "protocols", name)


async def test_no_call_is_lost_when_a_node_is_cordoned(tmp_path: Path) -> None:
    async with network(tmp_path) as here:
        [own] = [it for it in here.deployment.node_objects if it["metadata"]["name"] == "node1"]
        here.deployment.apply({**own, "spec": {**own["spec"], "taints": [CORDONED]}})
        for address in ANNOUNCED:
            assert await calls(here.cluster.client, address)
        await here.knows("node2", "node3")
        for address in ANNOUNCED:
            assert await calls(here.cluster.client, address)
        here.deployment.apply(own)
        await here.knows(*NODES)


async def test_a_hung_bird_does_not_keep_a_node_from_serving(tmp_path: Path) -> None:
    async with network(tmp_path) as here:
        here.speakers["node1"].pause()
        [pod] = here.cluster.node("node2").pods
        other = objects.service("other", "10.254.0.77", ports={"TCP": PORT})
        here.deployment.apply(other, *endpoint_slices("other", [pod], {"TCP": PORT}))
        await eventually(partial(serves, here.cluster.node("node1"), "10.254.0.77"), within=30)


def serves(node: Host, address: str) -> None:
    assert f"TCP {host_port(address, PORT)}" in node.ipvs()
