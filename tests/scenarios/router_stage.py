"""Nodes that announce Services to two routers, BIRD and FRR, each of which has a client behind it."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from tests.lab.answers import ask_json
from tests.lab.cluster import Cluster, Node
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.feed import feed_for
from tests.lab.hosts import Host, OpenStream
from tests.lab.load import Load, Way, steady_load
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.routers import ROUTER_AS, BirdProcess, FrrRouter, Router, bird_router, next_hops
from tests.lab.topology import NODES, Place
from tests.lab.world import FAMILIES
from tests.scenarios.test_direct_return import process_in

PORT = 8080
PLAIN, DIRECT = ("203.0.113.10", "2001:db8::10"), ("203.0.113.11", "2001:db8::11")
"""The external addresses of two Services: by way of the node that is reached, and answered by pods themselves."""
PLACES = {"BIRD": Place(61), "FRR": Place(62)}
KINDS = {"BIRD": bird_router, "FRR": FrrRouter}
_ASNS = ("--peer-router-asns", ",".join(str(ROUTER_AS) for _ in PLACES))
TO_ROUTERS = ("--peer-router-ips", ",".join(place.ip for place in PLACES.values()), *_ASNS)
TO_ROUTERS_OVER_IPV6 = ("--peer-router-ips", ",".join(place.ip6 for place in PLACES.values()), *_ASNS)
FLAGS = ("--announce", "--advertise-external-ip")
CALLS_PER_SECOND = 20
CALL_TIMEOUT = 10.0
"""Seconds for a call: enough for three SYNs that are lost, 1, 2 and 4 s apart."""
STREAMS = 6
"""Open connections from each client to each address."""
BY_CLIENT = {"kroute.io/scheduler": "mh"}
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class Stage:
    """A cluster that announces, its routers, and the clients behind them. `flags` are those of kroute."""

    def __init__(self, cluster: Cluster, scratch: Path, flags: tuple[str, ...]) -> None:
        self.cluster = cluster
        self.scratch = scratch
        self.deployment = Deployment(cluster, feed_for(cluster, scratch))
        self.routers: dict[str, Router] = {}
        self.clients: dict[str, Host] = {}
        self.speakers: dict[str, BirdProcess] = {}
        self._flags = flags
        self._names = {address: name for name, node in cluster.nodes.items() for address in _addresses(node)}

    def bird_directory(self, name: str) -> Path:
        return self.scratch / name

    def attach(self, name: str, *, bfd: bool, password: str) -> None:
        """Start a router on the wire, with a client in a network behind it, to which nodes have routes."""
        number = PLACES[name].last
        networks = f"198.18.{number}.", f"fd00:198:18:{number}::"
        host = self.cluster.host(name, PLACES[name])
        namespace = self.cluster.namespace(f"behind-{name}")
        host.namespace.ip(f"link add inside type veth peer name eth0 netns {namespace.name}\nlink set inside up\n")
        namespace.ip("link set lo up\nlink set eth0 up\n")
        for network, length, via in zip(networks, (24, 64), (host.ip, host.ip6), strict=True):
            host.namespace.ip(f"address add {network}1/{length} dev inside nodad\n")
            namespace.ip(f"address add {network}2/{length} dev eth0 nodad\nroute add default via {network}1\n")
            for node in self.cluster.nodes.values():
                node.namespace.ip(f"route add {network}{'' if ':' in network else '0'}/{length} via {via}\n")
        self.clients[name] = Host(f"behind-{name}", namespace, host.traffic, *(f"{it}2" for it in networks))
        nodes = [place.ip6 if TO_ROUTERS_OVER_IPV6[1] in self._flags else place.ip for place in NODES.values()]
        self.routers[name] = KINDS[name](host, nodes, self.scratch / name, bfd=bfd, password=password)

    async def start(self, name: str, environment: Mapping[str, str] | None = None, *flags: str) -> None:
        """Start kroute on a node, and BIRD if it does not run there yet. With an `environment`, another release."""
        directory = self.bird_directory(name)
        directory.mkdir(exist_ok=True)
        own = flags if environment else (*self._flags, "--bird-directory", str(directory))
        await self.deployment.start(*own, nodes=(name,), environment=environment)
        if name not in self.speakers:
            configuration = directory / "kroute.conf"
            await eventually(partial(_is_there, configuration))
            self.speakers[name] = BirdProcess(self.cluster.node(name), directory, configuration)
            self.speakers[name].start()

    def switch_off(self, name: str) -> None:
        """Take the power from a node: what runs there ends, unheard of outside."""
        self.cluster.wire.ip(f"link set {name} down\n")
        self.deployment.agents.pop(name).close()
        self.speakers.pop(name).kill()

    async def switch_on(self, name: str) -> None:
        """Boot a node: what was in its kernel and below /run is gone."""
        shutil.rmtree(self.bird_directory(name))
        await self.clean_up(name)
        self.cluster.wire.ip(f"link set {name} up\n")
        await self.start(name)

    async def clean_up(self, name: str) -> None:
        """Run `kroute cleanup` on a node."""
        cleanup = await self.cluster.node(name).kroute("cleanup", "--bird-directory", str(self.bird_directory(name)))
        assert await cleanup.wait() == 0, cleanup.log.read_text()

    def change(self, name: str, *taints: Object, **annotations: str) -> None:
        """Give a Node these taints and annotations of kube-router, and no others. `rr_server` is rr.server."""
        [own] = [it for it in self.deployment.node_objects if it["metadata"]["name"] == name]
        named = {f"kube-router.io/{word.replace('_', '.')}": value for word, value in annotations.items()}
        metadata, spec = {**own["metadata"], "annotations": named}, {**own["spec"], "taints": list(taints)}
        self.deployment.apply({**own, "metadata": metadata, "spec": spec})

    async def knows(self, *names: str, addresses: Iterable[str] = (*PLAIN, *DIRECT)) -> None:
        """Wait until the kernels of both routers have these nodes, and no other, as next hops to these addresses."""
        expected = {(router, address): {*names} for router in self.routers for address in addresses}
        await eventually(partial(self._has, expected), within=60)

    def _has(self, expected: Mapping[tuple[str, str], set[str]]) -> None:
        found = {way: next_hops(self.routers[way[0]].host, way[1], self._names) for way in expected}
        assert found == expected

    async def has_settled(self, load: Load) -> None:
        """Assert that no router changes its routes while calls go on: at first they may do so more than once."""
        before = self._routes()
        await load.goes_on(CALLS_PER_SECOND)
        assert self._routes() == before

    def _routes(self) -> list[str]:
        return [it.host.run("ip", family, "route") for it in self.routers.values() for family in ("-4", "-6")]

    async def is_established(self, name: str, *routers: str) -> None:
        """Assert that of a node's sessions with routers those with these are established."""
        found = {router: state for router, (state, _) in (await self.sessions(name)).items()}
        assert {router for router, state in found.items() if state == "Established"} == {*routers}

    async def sessions(self, name: str) -> dict[str, tuple[str, str]]:
        """The states of BGP and of BFD of a node's sessions, by the router."""
        _, report = await ask_json(self.cluster.node(name), "show", "peers")
        states = {peer["address"]: (peer["state"], peer["bfd"]) for peer in report["items"]}
        own = [(router, it) for router, place in PLACES.items() for it in (place.ip, place.ip6)]
        return {router: states[address] for router, address in own if address in states}

    def load(self, addresses: Iterable[str]) -> AbstractAsyncContextManager[Load]:
        """Calls of all clients to these addresses."""
        ways = [Way(client, address, PORT) for client in self.clients.values() for address in addresses]
        return steady_load(ways, CALLS_PER_SECOND, CALL_TIMEOUT)

    async def streams(self, addresses: Iterable[str]) -> list[OpenStream]:
        """Open connections from all clients to these addresses."""
        ways = [(client, address) for client in self.clients.values() for address in addresses]
        return [
            await client.open_stream(address, PORT, interval=0.2, patience=60)
            for client, address in ways
            for _ in range(STREAMS)
        ]


def reached(node: Node, *clients: Host) -> int:
    """How many connections of these clients a node has."""
    addresses = {ip_address(address).packed.hex() for client in clients for address in (client.ip, client.ip6)}
    lines = node.namespace.read("/proc/net/ip_vs_conn").splitlines()
    return sum(line.split()[1].replace(":", "").lower() in addresses for line in lines)


async def go_on(load: Load, *streams: OpenStream) -> None:
    """Wait until calls that began after this moment have ended, and every open connection has moved on."""
    await load.goes_on(CALLS_PER_SECOND)
    await load.settles()
    await asyncio.gather(*map(goes_on, streams))


def plain(**spec: str) -> Object:
    """The Service at PLAIN."""
    addresses = [family.service_ip for family in FAMILIES]
    return service("plain", *addresses, externalIPs=list(PLAIN), annotations=BY_CLIENT, **spec)


def direct() -> Object:
    """The Service at DIRECT."""
    addresses = [family.other_service_ip for family in FAMILIES]
    annotations = {**BY_CLIENT, "kroute.io/direct-return": "tunnel"}
    return service("direct", *addresses, externalIPs=list(DIRECT), annotations=annotations)


@asynccontextmanager
async def stage(
    scratch: Path, *flags: str, bfd: bool = False, password: str = "", is_known: bool = True
) -> AsyncIterator[Stage]:
    """Pods on node2 and node3 behind two Services, which all nodes announce, if it `is_known`, to both routers.

    node1 is only a way to them: whatever becomes of it, no pod ends.
    """
    async with AsyncExitStack() as stack:
        cluster = Cluster()
        stack.callback(cluster.close)
        here = Stage(cluster, scratch, (*FLAGS, "--direct-return", *flags))
        pods = [await cluster.node(name).pod(f"web-{name}", http=PORT) for name in ("node2", "node3")]
        for pod in pods:
            stack.enter_context(process_in(pod))
        here.deployment.apply(plain(), direct(), *endpoint_slices("plain", pods), *endpoint_slices("direct", pods))
        for name in KINDS:
            here.attach(name, bfd=bfd, password=password)
            stack.callback(here.routers[name].kill)
            stack.callback(here.clients[name].close)
        stack.callback(lambda: [speaker.kill() for speaker in here.speakers.values()])
        for name in cluster.nodes:
            await here.start(name)
        if is_known:
            await here.knows(*NODES)
        yield here


def _addresses(host: Host) -> list[str]:
    [link] = json.loads(host.run("ip", "-j", "address", "show", "dev", "eth0"))
    return [it["local"] for it in link["addr_info"]]


def _is_there(path: Path) -> None:
    assert path.exists()
