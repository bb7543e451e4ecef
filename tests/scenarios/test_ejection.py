"""Real servers that do not answer new connections are ejected, and come back when they do; others never are.

Nor are those that accept connections, while a client sends what they never see.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from tests.lab.allocation import Addresses, Allocator
from tests.lab.answers import ask_json
from tests.lab.cluster import Node, Pod
from tests.lab.deployment import Deployment, deployed, eventually
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.stray_packets import segment
from tests.scenarios.conftest import World
from tests.scenarios.test_observation import scraped

ANNOTATIONS = {"kroute.io/scheduler": "rr", "kroute.io/ejection": "after 5s, hold 45s"}
PORTS = {"TCP": 8080, "UDP": 5353}
CALLERS = 4
"""Of each family."""
SYN = 0x02
FORGED_FROM, FORGED_AT_MOST = 20_000, 600
A_WHILE = 12.0
"""Seconds in which whoever fails is ejected: five, and up to four until it is seen."""


@pytest.fixture(scope="module")
def running(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(world.cluster, tmp_path_factory.mktemp("feed"), "--masquerade-all", nodes=("node1",)) as running:
        yield running


class Served:
    """The Service of nine pods, for TCP and UDP and in both families, as node1 serves it."""

    def __init__(self, world: World, pods: tuple[Pod, ...], addresses: Addresses) -> None:
        self.node, self.pods, self.addresses = world.cluster.node("node1"), pods, addresses
        self._names = {address: it.name for it in pods for address in (it.ip, f"[{it.ip6}]")}

    def pod(self, name: str) -> Pod:
        (pod,) = (it for it in self.pods if it.name == name)
        return pod

    def weights(self, protocol: str, address: str) -> dict[str, int]:
        key = f"{protocol} {f'[{address}]' if ':' in address else address}:{PORTS[protocol]}"
        row = self.node.ipvs().get(key)
        return {self._names[it.rpartition(":")[0]]: one.weight for it, one in row.real_servers.items()} if row else {}

    def has_out(self, *out: Pod, protocol: str = "TCP") -> None:
        """Assert that these pods, and no others, have weight 0."""
        names = {it.name for it in out}
        for address in self.addresses:
            assert self.weights(protocol, address) == {it.name: int(it.name not in names) for it in self.pods}


@pytest.fixture
async def served(world: World, running: Deployment, free: Allocator) -> AsyncIterator[Served]:
    more = [await node.pod(f"web-{node.name}-{each}", http=8080, udp=5353) for node in world.nodes for each in "ab"]
    found = Served(world, (*world.web, *more), free.cluster_ips())
    running.apply(
        service("web", *found.addresses, ports=PORTS, annotations=ANNOTATIONS),
        *endpoint_slices("web", found.pods, PORTS),
    )

    async def is_served() -> None:
        found.has_out()
        found.has_out(protocol="UDP")
        for address in found.addresses:
            await world.visitor.http(address, 8080)

    await eventually(is_served)
    yield found
    await running.clear()
    for pod in more:
        pod.node.remove_pod(pod)


@contextlib.asynccontextmanager
async def calling(visitor: Host, addresses: Addresses, protocol: str = "TCP") -> AsyncIterator[None]:
    """Let clients call again and again over both families, each time with a new connection."""

    async def call(address: str) -> None:
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                if protocol == "UDP":
                    await visitor.udp(address, 5353, timeout=0.5)
                else:
                    await visitor.http(address, 8080, timeout=1.5)
            await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(call(address)) for address in addresses for _ in range(CALLERS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def failing(silent: Pod, unreachable: Pod, refusing: Pod) -> AsyncIterator[None]:
    """Let each of the pods fail in its way, for the length of the block."""
    ways = {family: silent.run("ip", family, "route", "show", "default").split("metric")[0] for family in ("-4", "-6")}
    for family in ways:
        silent.run("ip", family, "route", "del", "default")
    unreachable.node.run("ip", "link", "set", unreachable.interface, "down")
    await refusing.stop_serving()
    try:
        yield
    finally:
        for family, way in ways.items():
            silent.run("ip", family, "route", "add", *way.split())
        unreachable.node.run("ip", "link", "set", unreachable.interface, "up")
        await refusing.serve(http=8080, udp=5353)


async def test_pods_that_do_not_answer_are_ejected_and_come_back_when_they_do(world: World, served: Served) -> None:
    silent, refusing, unreachable = (served.pod(name) for name in ("web-node2-a", "web-node2-b", "web-node3-a"))
    async with calling(world.visitor, served.addresses):
        async with failing(silent, unreachable, refusing):
            out = (silent, refusing, unreachable)
            for address in served.addresses:
                await eventually(partial(only_others_answer, world.visitor, served, address, *out), within=120)
            served.has_out(protocol="UDP")
            await eventually(partial(said_of_three, served), within=120)
        await eventually(served.has_out, within=150)  # whoever has failed in a trial is held for longer
    for address in served.addresses:
        hosts = await world.visitor.spread(address, 8080, 27)
        assert hosts.keys() == {it.name for it in served.pods}


async def only_others_answer(visitor: Host, served: Served, address: str, *out: Pod) -> None:
    """Assert that these pods are out, and that meanwhile, in which none has a trial, all others answer."""
    served.has_out(*out)
    hosts = await visitor.spread(address, 8080, 60)  # others call in between, so it does not go round
    served.has_out(*out)
    assert hosts.keys() == {it.name for it in served.pods} - {it.name for it in out}


async def said_of_three(served: Served) -> None:
    """Assert that kroute names three ejected pods, in both families."""
    _, report = await ask_json(served.node, "show", "service", "default/web")
    states = [one["state"] for row in report["virtualServers"] for one in row["realServers"]]
    assert (states.count("ejected"), states.count("serving")) == (6, len(states) - 6)
    assert sum(it.startswith("RealServerEjected") for it in report["problems"]) == 6
    code, explained = await ask_json(served.node, "explain", f"{served.addresses.ip}:8080")
    assert (code, explained["items"][0]["differences"]) == (0, [])
    assert sum(it.startswith("RealServerEjected") for it in explained["items"][0]["problems"]) == 3


async def test_a_quiet_connection_a_pod_that_hangs_and_udp_are_no_reason(world: World, served: Served) -> None:
    hanging, deaf = served.pods[-1], served.pods[-2]
    quiet = [await world.visitor.connect(address, 8080) for address in served.addresses for _ in served.pods]
    await hanging.stop_serving()
    await deaf.stop_serving()
    await deaf.serve(http=8080)
    with hanging.namespace.socket(socket.AF_INET6, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("::", 8080))
        listener.listen(1000)
        async with calling(world.visitor, served.addresses), calling(world.visitor, served.addresses, "UDP"):
            end = asyncio.get_running_loop().time() + A_WHILE
            while asyncio.get_running_loop().time() < end:
                served.has_out()
                served.has_out(protocol="UDP")
                await asyncio.sleep(0.5)
    for one in quiet:
        await one.close()


def with_a_wrong_checksum(syn: bytes) -> bytes:
    return syn[:16] + bytes(octet ^ 0xFF for octet in syn[16:18]) + syn[18:]


def refuted(node: Node) -> float:
    return scraped(node).get(("kroute_ejections_refuted_total",), 0)


@pytest.mark.parametrize(
    ("forge", "ttl"),
    [
        pytest.param(with_a_wrong_checksum, 64, id="a wrong checksum"),
        pytest.param(bytes, 1, id="a TTL that ends on the node"),
    ],
)
async def test_a_client_cannot_eject_a_pod_that_serves(
    world: World, served: Served, forge: Callable[[bytes], bytes], ttl: int
) -> None:
    """Of nine connections in turn one is a SYN that IPVS counts and no pod sees: always of the same pod."""
    visitor, vip = world.visitor, served.addresses.ip
    before = refuted(served.node)
    with visitor.namespace.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        raw.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
        for port in range(FORGED_FROM, FORGED_FROM + FORGED_AT_MOST):
            raw.sendto(forge(segment(((visitor.ip, port), (vip, 8080)), SYN)), (vip, 0))
            for _ in served.pods[1:]:
                await visitor.http(vip, 8080)
            served.has_out()
            if refuted(served.node) > before:
                return
    raise AssertionError("no pod was nominated: the SYNs are no evidence")
