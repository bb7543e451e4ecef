"""A client that reuses a source port is served at once, also while pods are replaced.

IPVS and the connection tracker remember a connection for minutes after its end. A client with few source ports meets
such an entry at every call. If the entry were followed, the SYN would go to a deleted pod, or it would be dropped and
repeated a second later.
"""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import pairwise
from statistics import median

import msgspec
import pytest

from tests.lab.cluster import Node, Pod
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.load import CALL_TIMEOUT, Way
from tests.lab.objects import endpoint_slices, service
from tests.lab.patience import patience
from tests.lab.servers import Answer
from tests.lab.world import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
NODE_PORT = 30080
PORTS = (40000, 40199)
"""The only source ports that the client has, first and last."""
CLIENT = {
    "net.ipv4.ip_local_port_range": "{} {}".format(*PORTS),
    # Since Linux 7 each pair of ports has its own timestamps by default. A node that masquerades may give a call the
    # port of an earlier one. To that one's TIME_WAIT socket in the pod the timestamps are old, so the SYN is repeated.
    "net.ipv4.tcp_timestamps": 2,
}
CALLS = 2000
GENERATIONS = 4
"""How many generations of pods serve during the calls, one after the other."""
PODS = 2
IN_FLIGHT = 20
"""After so many calls, every call that was open at the time of a change has ended."""
STALL = 0.5
"""Seconds. A SYN is repeated after 1 s; a machine that stands still for most of it, at once or in pieces, may repeat
one that was answered."""
TURN = 0.05
"""Seconds between two looks at whether the machine stands still."""
FLAGS = ("--cluster-cidr", "172.20.0.0/16,fd00:172:20::/48")


@pytest.fixture(params=["cluster_ip", "node_port"])
def way(request: pytest.FixtureRequest, world: World, family: Family) -> Iterator[Way]:
    """A client with few source ports: a pod that calls the ClusterIP, or a host outside that calls a node port."""
    way = {
        "cluster_ip": Way(world.visitor, family.service_ip, 8080),
        "node_port": Way(world.cluster.client, family.of(world.nodes[0]), NODE_PORT),
    }[request.param]
    before = {name: way.client.sysctl(name) for name in CLIENT}
    for name, value in CLIENT.items():
        way.client.sysctl(name, value)
    yield way
    for name, value in before.items():
        way.client.sysctl(name, value)


@pytest.fixture
async def generations(world: World) -> AsyncIterator[list[list[Pod]]]:
    """The pods of each generation; a test may take some away."""
    pods = [
        [await world.nodes[number % 3].pod(f"g{generation}-{number}", http=8080) for number in range(PODS)]
        for generation in range(GENERATIONS)
    ]
    yield pods
    for pod in (pod for generation in pods for pod in generation if pod in pod.node.pods):
        pod.node.remove_pod(pod)


class Caller:
    """A client that calls again and again. For each call: who answered, the seconds it took, and its source port."""

    def __init__(self, way: Way) -> None:
        self.answered: list[str] = []
        self.seconds: list[float] = []
        self.source_ports: Counter[int] = Counter()
        self._way = way

    async def run(self) -> None:
        """Make all calls, one after the other."""
        while len(self.answered) < CALLS:
            started = time.monotonic()
            answered = await self._call()
            self.seconds.append(time.monotonic() - started)
            self.answered.append(answered)

    async def has_made(self, calls: int) -> None:
        """Wait until so many calls have been made."""

        def made() -> None:
            assert len(self.answered) >= calls

        await eventually(made, within=60)

    async def _call(self) -> str:
        """Make a call on a new connection; the server closes it, so the client's port is free again at once."""
        client, address, port = self._way
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        loop = asyncio.get_running_loop()
        with client.namespace.socket(family, socket.SOCK_STREAM) as made:
            async with patience(CALL_TIMEOUT):
                await loop.sock_connect(made, (address, port))
                self.source_ports[made.getsockname()[1]] += 1
                await loop.sock_sendall(made, b"GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")
                answer = b""
                while received := await loop.sock_recv(made, 4096):
                    answer += received
        return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=Answer).host


async def note_stalls(found: list[float]) -> None:
    """Note for how many seconds the machine stood still, each time that it did."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(TURN)
        if (stood_still := time.monotonic() - before - TURN) > TURN:
            found.append(stood_still)


def repeated_syns(host: Host) -> int:
    """Return how many SYNs the host has repeated because no answer came, after a second or more."""
    names, values = (line.split() for line in host.namespace.read("/proc/net/netstat").splitlines()[:2])
    return int(dict(zip(names, values, strict=True))["TCPSynRetrans"])


async def test_no_call_is_delayed_or_refused_and_none_goes_to_a_pod_that_is_gone(
    world: World, deployment: Deployment, way: Way, generations: list[list[Pod]]
) -> None:
    node1, first = world.nodes[0], generations[0]
    deployment.apply(service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}), *endpoint_slices("web", first))
    await deployment.start(*FLAGS, nodes=("node1",))
    caller, before, stalls = Caller(way), repeated_syns(way.client), list[float]()
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(world.cluster.traffic.run(note_stalls(stalls)))
        calling = tasks.create_task(caller.run())
        for number, (old, new) in enumerate(pairwise(generations), 1):
            await caller.has_made(number * CALLS // GENERATIONS)
            deployment.apply(*endpoint_slices("web", new))
            await eventually(partial(nobody_new_for, node1, old))
            changed = len(caller.answered)
            await caller.has_made(changed + IN_FLIGHT)
            for pod in old:
                pod.node.remove_pod(pod)
            await caller.has_made(changed + 2 * IN_FLIGHT)
            assert set(caller.answered[changed + IN_FLIGHT :]) == {pod.name for pod in new}
        await calling
        watching.cancel()
    assert len(caller.source_ports) <= PORTS[1] - PORTS[0] + 1 < CALLS
    slow = f"the slowest call took {max(caller.seconds):.3f} s where {median(caller.seconds):.3f} s are usual"
    repeated = repeated_syns(way.client) - before
    assert repeated <= sum(stalls) / STALL, f"{repeated} SYNs were repeated; {slow}; the machine stood still: {stalls}"


def nobody_new_for(node: Node, pods: list[Pod]) -> None:
    """Assert that the pods have weight 0, or are deleted, in every virtual server."""
    addresses = {family.at(family.of(pod), 8080) for family in FAMILIES for pod in pods}
    weights = {
        address: real_server.weight
        for virtual_server in node.ipvs().values()
        for address, real_server in virtual_server.real_servers.items()
        if address in addresses
    }
    assert not any(weights.values()), weights
