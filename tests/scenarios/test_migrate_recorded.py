"""The take-over of what kube-proxy 1.36 and kube-router 2.11 really left on a node, with connections in flight.

The node's kernel is given the recorded state of each proxy (tests/real_proxies), and kroute the same 40 Services. Where
the rules are in nf_tables, kroute has no iptables tools, as in the image without them.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol as TypingProtocol

import pytest

from kroute.model.addresses import canonical
from kroute.model.plan import Protocol, VirtualServerKey
from tests import real_proxies
from tests.lab.cluster import Cluster, Node
from tests.lab.deployment import eventually
from tests.lab.hosts import Host
from tests.lab.patience import patience
from tests.lab.recorded_node import RecordedWorld, leave, populate, recorded_cluster
from tests.lab.servers import Answer
from tests.lab.udp_client import UdpClient
from tests.real_proxies import KUBE_PROXY_IPTABLES, KUBE_PROXY_IPVS, KUBE_ROUTER, NODE_IPV4, NODE_IPV6
from tests.real_proxies.plans import planned_virtual_servers

pytestmark = pytest.mark.legacy

NAMES = {KUBE_PROXY_IPVS: "kube-proxy", KUBE_PROXY_IPTABLES: "kube-proxy", KUBE_ROUTER: "kube-router"}
FLAGS = (
    "--cluster-cidr", ",".join(real_proxies.POD_RANGES), "--nodeport-addresses", "primary", "--strict-arp", "off",
    "--resync-period", "5s", "--node-name", real_proxies.NODE,
)  # fmt: skip
WITH_SOURCE_RANGES = ("198.51.100.99", "198.51.100.162", "2001:db8:6::5ebc")
"""LoadBalancer addresses that the lab's client is kept off by their source ranges."""
SINGLE_STACK = VirtualServerKey(Protocol.SCTP, NODE_IPV6, 32593)
API_SERVER = "10.96.0.1"
"""The ClusterIP of the Service `kubernetes`. Its endpoint is the lab's client, which does not call itself."""
PATIENCE = 60.0
"""Seconds in which one of some hundred calls at once is answered, stalls of the machine not counted."""
UDP_TIMEOUTS = ("net.netfilter.nf_conntrack_udp_timeout", "net.netfilter.nf_conntrack_udp_timeout_stream")
LONG = 3600
"""Seconds after which the kernel forgets a UDP flow here. After its own 30 s a slow machine would begin others."""
KINDS = {
    (protocol, is_ipv6, what)
    for protocol in ("TCP", "UDP", "SCTP")
    for is_ipv6 in (False, True)
    for what in ("ClusterIP", "node", "external")
} - {("TCP", True, "external"), ("SCTP", True, "external")}
"""The connections that are in flight. Of the recorded Services none with such a port has an endpoint."""
THEIRS = ("KUBE-", "kube-router", "kube-dummy-if")
"""What only the other proxy's objects have in their names. kube-proxy's link has become kroute's."""
KUBELETS = "KUBE-FIREWALL"
WITHOUT_TOOLS = {"PATH": "/nonexistent", "KROUTE_FIREWALL": "nftables"}


class Askable(TypingProtocol):
    """A connection, or a socket for datagrams."""

    async def ask(self) -> Answer:
        """Send one more request and return the answer."""
        ...


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """The recorded node's cluster."""
    with recorded_cluster() as made:
        yield made


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """A directory with the recorded objects."""
    directory = tmp_path / "manifests"
    directory.mkdir()
    for name in real_proxies.OBJECTS:
        (directory / name).write_bytes((real_proxies.DIRECTORY / name).read_bytes())
    return directory


def served_by_both(recording: str) -> list[VirtualServerKey]:
    """Return the ports with endpoints that the proxy serves and kroute plans, and that the client may use.

    A UDP port is among them only if kroute keeps all its real servers: a flow to any other ends with the take-over.
    """
    theirs = real_proxies.virtual_servers(KUBE_PROXY_IPVS if recording == KUBE_PROXY_IPTABLES else recording)
    plan = planned_virtual_servers()
    return sorted(
        key
        for key in plan.keys() & theirs.keys()
        if plan[key].real_servers
        and theirs[key].real_servers
        and key.address not in WITH_SOURCE_RANGES
        and (key.protocol is not Protocol.UDP or theirs[key].real_servers.keys() <= plan[key].real_servers.keys())
    )


def kind(key: VirtualServerKey) -> tuple[str, bool, str]:
    """Return what kind of frontend a port is: its protocol, whether it is of IPv6, and what its address is."""
    is_cluster_ip = key.address.startswith(("10.96.", "fd00:10:96:"))
    what = "ClusterIP" if is_cluster_ip else "node" if key.address in (NODE_IPV4, NODE_IPV6) else "external"
    return key.protocol.name, ":" in key.address, what


async def connected(client: Host, key: VirtualServerKey, stack: AsyncExitStack) -> Askable:
    if key.protocol is Protocol.UDP:
        return stack.enter_context(UdpClient(client, key.address, key.port, patience=PATIENCE))
    number = socket.IPPROTO_TCP if key.protocol is Protocol.TCP else socket.IPPROTO_SCTP
    try:
        async with patience(PATIENCE):
            connection = await client.connect(key.address, key.port, number)
    except OSError as error:
        raise AssertionError(f"{client.name} cannot connect to {key}: {error!r}") from None
    stack.push_async_callback(connection.close)
    return connection


@asynccontextmanager
async def in_flight(ways: list[tuple[Host, VirtualServerKey]]) -> AsyncIterator[dict[str, tuple[Askable, str]]]:
    """Open a connection on each way; yields it with the address of the pod that answers on it."""
    async with AsyncExitStack() as stack:
        flows = {f"{client.name} to {key}": await connected(client, key, stack) for client, key in ways}
        answers = await asyncio.gather(*map(answering, flows.values()))
        opened = {name: (flow, pod) for (name, flow), pod in zip(flows.items(), answers, strict=True)}
        assert not {name: pod for name, (_, pod) in opened.items() if not is_address(pod)}
        yield opened


def is_address(text: str) -> bool:
    """Whether this is where an answer came from, and no error."""
    return canonical(text) is not None


async def assert_all_go_on(flows: dict[str, tuple[Askable, str]]) -> None:
    """Assert that the same pod answers on each connection."""
    answers = await asyncio.gather(*(answering(flow) for flow, _ in flows.values()))
    cut = {
        name: f"{pod} does not answer, but {answer}"
        for (name, (_, pod)), answer in zip(flows.items(), answers, strict=True)
        if answer != pod
    }
    assert not cut


async def answering(flow: Askable) -> str:
    """Return the address of the pod that answers, or the error."""
    try:
        async with patience(PATIENCE):
            return (await flow.ask()).address
    except OSError as error:
        return repr(error)


async def migrate(
    world: RecordedWorld, manifests: Path, proxy: str, *more: str, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    arguments = ("migrate", "--from", proxy, "--manifests", str(manifests), *more)
    process = await world.node.kroute(*arguments, environment=environment)
    code = await process.wait()
    text = process.log.read_text()
    assert code == 0, text
    return text


def serving(node: Node) -> dict[str, set[str]]:
    """Return the real servers that take new connections, by virtual server; none without any."""
    found = {key: {at for at, it in server.real_servers.items() if it.weight} for key, server in node.ipvs().items()}
    return {key: real_servers for key, real_servers in found.items() if real_servers}


def planned() -> dict[str, set[str]]:
    """Return what `serving` should be."""
    return {
        str(key): {
            f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address, port in it.real_servers
        }
        for key, it in planned_virtual_servers().items()
        if it.real_servers
    }


def assert_nothing_of_theirs_is_left(node: Node) -> None:
    parts = node.snapshot().parts
    left = [
        f"{command}: {line}"
        for command, lines in parts.items()
        if command != "sysctl"
        for line in lines
        if any(word in line for word in THEIRS) and KUBELETS not in line
    ]
    assert not left


@pytest.mark.drawn(3)
@pytest.mark.parametrize("recording", NAMES)
@pytest.mark.parametrize("variant", ["legacy", "nft"])
async def test_a_recorded_proxy_is_taken_over_whole_and_no_connection_is_cut(
    cluster: Cluster, manifests: Path, recording: str, variant: str
) -> None:
    """The node itself calls by TCP and UDP.

    By SCTP it would tell its peer all its addresses, and the peer's heartbeats to the others pass by the translation.
    kube-router has left no rule that needs conntrack, so an association that stands is new to the kernel with its next
    heartbeat, and masqueraded: by SCTP only new connections are tested there.
    """
    world = await populate(cluster)
    node, proxy = world.node, NAMES[recording]
    leave(node, recording, variant)
    environment = WITHOUT_TOOLS if variant == "nft" else {}
    for timeout in UDP_TIMEOUTS:
        node.sysctl(timeout, LONG)
    keys = served_by_both(recording)
    assert {kind(key) for key in keys} >= KINDS
    ways = [(world.client, key) for key in keys if key.address != API_SERVER]
    ways += [(node, key) for key in keys if kind(key)[-1] == "ClusterIP" and key.protocol is not Protocol.SCTP]
    lasting = [way for way in ways if recording != KUBE_ROUTER or way[1].protocol is not Protocol.SCTP]
    async with in_flight(lasting) as flows:
        found = json.loads(await migrate(world, manifests, proxy, "-o", "json", environment=environment))
        assert {table["variant"] for table in found["tables"]} == {f"IPv4 {variant}", f"IPv6 {variant}"}
        assert found["warnings"] == []
        assert found["others"] == []
        assert len(found["toAdopt"]) == len(real_proxies.virtual_servers(recording))
        await migrate(world, manifests, proxy, "--take-over", environment=environment)
        await assert_all_go_on(flows)
        agent = await node.kroute("run", "--manifests", str(manifests), *FLAGS, environment=environment)
        await agent.ready()
        await assert_all_go_on(flows)
        outcome = await migrate(world, manifests, proxy, "--take-over", environment=environment)
        assert f"nothing of {proxy}'s is left" in outcome
        await assert_all_go_on(flows)
        assert_nothing_of_theirs_is_left(node)
        assert serving(node) == planned()
    async with in_flight(ways) as flows:
        await assert_all_go_on(flows)
    await follows_its_endpoints(node, manifests)


async def follows_its_endpoints(node: Node, manifests: Path) -> None:
    """Assert that the node port on the node's IPv6 address, which no set names, is kroute's: it follows a change."""
    path = manifests / "endpointslices.json"
    pods = {"fd00:10:101::13:fb15", "fd00:10:120::13:585b", "fd00:10:120::13:7492"}
    assert serving(node)[str(SINGLE_STACK)] == {f"[{pod}]:9090" for pod in pods}
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(path.read_text().replace("fd00:10:120::13:7492", "fd00:10:120::13:7493"))
    unfinished.replace(path)

    def changed() -> None:
        after = pods - {"fd00:10:120::13:7492"} | {"fd00:10:120::13:7493"}
        assert serving(node)[str(SINGLE_STACK)] == {f"[{pod}]:9090" for pod in after}

    await eventually(changed)
