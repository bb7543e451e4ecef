"""S8 with `kroute director`: who answers for an external IP, who serves it, and what a fail-over costs."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from kroute.inspect import status as inspected
from tests.lab import objects
from tests.lab.api_server import ApiServer
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import SLOWNESS, eventually
from tests.lab.directors import Capture, DirectorMachine, who_has
from tests.lab.firewall import tool
from tests.lab.hosts import Host, OpenStream
from tests.lab.objects import Object
from tests.lab.patience import TURN, CountedTime

IPV4, IPV6 = VIPS = ("192.168.123.201", "fd00:192:168:123::201")
BALANCED = ("192.168.123.208", "fd00:192:168:123::208")
BALANCED_RANGE = ("--loadbalancer-ip-range", ",".join(BALANCED))
CLUSTER_IPS = ("10.254.0.80", "fd00:10:254::80")
RANGES = ("--external-ip-range", "192.168.123.0/24,10.254.0.0/16,fd00::/16")
"""What is in them is refused for a better reason."""
LEASE = 15
"""Seconds, more than those for which a slow machine stands still: who serves is not to lose its lease meanwhile."""
QUICK = (
    *RANGES,
    *("--lease-duration", f"{LEASE}s", "--lease-renew-deadline", "10s", "--lease-retry-period", "0.5s"),
    *("--check-interval", "0.3s", "--check-timeout", "3s", "--resync-period", "5s", "--sync-interface", "eth0"),
)
SOONEST = ("--lease-duration", "2s", "--lease-renew-deadline", "1.5s", "--lease-retry-period", "0.4s")
"""The flags that docs/director.md recommends for a fail-over within 3 s."""
FAIL_OVER = 3.0 * SLOWNESS
"""Seconds for which new connections may fail; `SLOWNESS` times as long in a slow machine of the lab."""
STREAMS = 4
"""Of each family."""
CALLERS, PAUSE, GIVES_UP = 4, 0.1, 0.9 * SLOWNESS
"""Those that call a VIP again and again, the seconds between two calls of each, and for a call without an answer."""


@dataclass(frozen=True)
class Stage:
    """Three nodes with a pod and an agent each, an API server on node1, and two machines for directors."""

    cluster: Cluster
    web: tuple[Pod, ...]
    api: ApiServer
    machines: tuple[DirectorMachine, ...]

    @property
    def client(self) -> Host:
        return self.cluster.client

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self.cluster.nodes.values())

    async def started(self, *flags: str) -> tuple[DirectorMachine, DirectorMachine]:
        """Start both directors; the first becomes the active one. For both, every node passes its checks."""
        first, second = self.machines
        for machine in (first, second):
            await machine.start(*QUICK, *flags)
            await eventually(partial(all_nodes_take_calls, machine))
            await eventually(lambda: has_vips(first))
        return first, second

    def by_role(self) -> tuple[DirectorMachine, DirectorMachine]:
        """The active director and the standby, which change places when the machine stands still for a Lease's time."""
        active, standby = self.machines if self.machines[0].has(IPV4) else reversed(self.machines)
        has_vips(active)
        not_on(standby)
        return active, standby


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    cluster = Cluster()
    nodes = tuple(cluster.nodes.values())
    api = None
    try:
        web = tuple(asyncio.run(pods(nodes)))
        items = [*map(node_object, nodes), web_service(), greedy_service(), *objects.endpoint_slices("web", web)]
        api = ApiServer(nodes[0], tmp_path_factory.mktemp("director"), items)
        api.start()
        asyncio.run(agents(nodes, api.kubeconfig))
        machines = tuple(DirectorMachine(cluster, f"dir-{last}", last, api.kubeconfig) for last in (101, 102))
        yield Stage(cluster, web, api, machines)
    finally:
        if api is not None:
            api.stop()
        cluster.close()


async def pods(nodes: tuple[Node, ...]) -> list[Pod]:
    return [await node.pod(f"web-{number}", http=8080) for number, node in enumerate(nodes, 1)]


async def agents(nodes: tuple[Node, ...], kubeconfig: Path) -> None:
    allocate = ("--allocate-load-balancer-ips", *BALANCED_RANGE)
    for node in nodes:
        await node.kroute("run", "--kubeconfig", str(kubeconfig), "--node-name", node.name, *allocate)
    for node in nodes:
        await node.processes[0].ready()


@pytest.fixture(autouse=True)
async def clean(stage: Stage) -> AsyncIterator[None]:
    """Restore the machines and the objects after each test."""
    before = [machine.host.snapshot() for machine in stage.machines]
    yield
    for machine, snapshot in zip(stage.machines, before, strict=True):
        if machine.process is not None:
            await machine.process.terminate()
        await machine.cleanup()
        assert not snapshot.diff(machine.host.snapshot())
    for item in (web_service(), *objects.endpoint_slices("web", stage.web)):
        stage.api.apply(item)


def node_object(node: Node) -> Object:
    item = objects.node(node)
    item["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return item


def web_service(annotations: dict[str, str] | None = None, **spec: object) -> Object:
    item = objects.service("web", *CLUSTER_IPS, annotations=annotations)
    item["spec"] |= {
        "type": "NodePort",
        "externalIPs": list(VIPS),
        "externalTrafficPolicy": "Cluster",
        "ports": [{"name": "tcp", "port": 8080, "protocol": "TCP", "nodePort": 30080}],
        **spec,
    }
    return item


def has_vips(machine: DirectorMachine, vips: tuple[str, ...] = VIPS) -> None:
    assert all(map(machine.has, vips))


def key_of(vip: str) -> str:
    return f"TCP [{vip}]:8080" if ":" in vip else f"TCP {vip}:8080"


def weights(machine: DirectorMachine, vip: str = IPV4) -> dict[str, int]:
    """Return the weights of the nodes behind a VIP, by node address."""
    row = machine.host.ipvs().get(key_of(vip))
    assert row is not None
    real_servers = row.real_servers
    assert {it.method for it in real_servers.values()} <= {"Route"}
    return {address.rpartition(":")[0].strip("[]"): it.weight for address, it in real_servers.items()}


def weights_are(machine: DirectorMachine, expected: dict[str, int], vip: str = IPV4) -> None:
    assert weights(machine, vip) == expected


def all_nodes_take_calls(machine: DirectorMachine) -> None:
    """Assert that no check of a node has failed last: the first one counts at once, and may be too early."""
    for vip in VIPS:
        takes_calls(machine, vip)


def takes_calls(machine: DirectorMachine, vip: str) -> None:
    assert (found := weights(machine, vip))
    assert all(found.values()), found


async def status_of(machine: DirectorMachine) -> tuple[int, list[inspected.StatusProblem]]:
    """Run `kroute status` beside a director; return its exit code, and the problems that the director has named."""
    process = await machine.run("status")
    code = await process.wait()
    problems = (await inspected.ask(machine.state_dir)).problems
    printed = process.log.read_text()
    assert "active director" in printed
    assert all(it.message in printed for it in problems)
    return code, problems


def knows_streams(standby: DirectorMachine, vip: str, count: int) -> None:
    """Assert that so many connections are established at a standby: those of which the active director has told it."""
    assert sum(it.active for it in standby.host.ipvs()[key_of(vip)].real_servers.values()) >= count


async def alone_answers(stage: Stage, director: DirectorMachine) -> None:
    """Assert that this director, and nobody else, answers when the client asks who has the VIP."""
    assert await who_has(stage.client, IPV4) == {director.mac()}


def connections_of(host: Host, vip: str) -> int:
    return sum(it.active + it.inactive for it in host.ipvs()[key_of(vip)].real_servers.values())


async def test_s8_only_the_director_answers_for_the_vip_and_all_nodes_reply_directly(stage: Stage) -> None:
    director = stage.machines[0]
    await director.start(*QUICK)
    await eventually(lambda: has_vips(director))
    for vip in VIPS:
        served_before = [connections_of(node, vip) for node in stage.nodes]
        with Capture(director.host) as capture:
            answered = await stage.client.spread(vip, 8080, 9)
            requests, replies = capture.packets(destination=vip), capture.packets(source=vip)
        assert sum(answered.values()) == 9
        served = [connections_of(node, vip) for node in stage.nodes]
        assert all(now > before for now, before in zip(served, served_before, strict=True)), "a node has not served"
        assert requests
        assert not replies, "replies of the nodes came by the director"
        assert director.mac() in stage.client.run("ip", "neigh", "show", vip)
    await eventually(partial(alone_answers, stage, director))


async def test_s9_a_node_that_calls_the_vip_is_answered_on_the_node(stage: Stage) -> None:
    director = stage.machines[0]
    await director.start(*QUICK)
    await eventually(lambda: has_vips(director))
    for vip in VIPS:
        with Capture(director.host) as capture:
            for node in stage.nodes:
                assert sum((await node.spread(vip, 8080, 3)).values()) == 3
            assert not capture.packets(destination=vip)


async def test_an_address_that_an_agent_allocates_is_served_by_the_director(stage: Stage) -> None:
    director = stage.machines[0]
    await director.start(*QUICK, *BALANCED_RANGE)
    stage.api.apply(web_service(type="LoadBalancer"))
    await eventually(lambda: has_vips(director, BALANCED))
    for vip in BALANCED:
        await eventually(partial(takes_calls, director, vip))
        with Capture(director.host) as capture:
            assert sum((await stage.client.spread(vip, 8080, 9)).values()) == 9
            assert capture.packets(destination=vip)
            assert not capture.packets(source=vip), "replies of the nodes came by the director"


async def test_policy_local_directs_to_nodes_with_endpoints_weighed_by_their_number(stage: Stage) -> None:
    director = stage.machines[0]
    await director.start(*QUICK)
    await eventually(lambda: has_vips(director))
    node2, node3 = (node.ip for node in stage.nodes[1:])
    node2_ip6, node3_ip6 = (node.ip6 for node in stage.nodes[1:])
    stage.api.apply(web_service(externalTrafficPolicy="Local"))
    for piece in objects.endpoint_slices("web", stage.web[1:2]):
        stage.api.apply(piece)
    await eventually(lambda: weights_are(director, {node2: 1}, IPV4))
    await eventually(lambda: weights_are(director, {node2_ip6: 1}, IPV6))

    async def is_answered_by_node2() -> None:  # whose agent may follow later than the director
        for vip, peer in ((IPV4, stage.client.ip), (IPV6, stage.client.ip6)):
            answer = await stage.client.http(vip, 8080)
            assert (answer.host, answer.peer) == ("web-2", peer)

    await eventually(is_answered_by_node2)
    other = await stage.nodes[1].pod("web-4", http=8080)
    stage.api.apply(web_service({"service.director-weight": "endpoints"}, externalTrafficPolicy="Local"))
    for piece in objects.endpoint_slices("web", [*stage.web[1:], other]):
        stage.api.apply(piece)
    await eventually(lambda: weights_are(director, {node2: 2, node3: 1}, IPV4))
    await eventually(lambda: weights_are(director, {node2_ip6: 2, node3_ip6: 1}, IPV6))
    stage.nodes[1].remove_pod(other)


async def test_a_failing_node_has_weight_0_until_it_is_well_again(stage: Stage) -> None:
    director = stage.machines[0]
    await director.start(*QUICK)
    node1, node2, node3 = (node.ip for node in stage.nodes)
    await eventually(lambda: weights_are(director, {node1: 1, node2: 1, node3: 1}))
    rule = ("INPUT", "-s", director.host.ip, "-p", "tcp", "-j", "DROP")
    stage.nodes[2].run(tool("IPv4"), "-I", *rule)
    try:

        async def is_told() -> None:
            weights_are(director, {node1: 1, node2: 1, node3: 0})
            code, problems = await status_of(director)
            assert (code, [(it.reason, node3 in it.message) for it in problems]) == (1, [("NodeFailing", True)])

        await eventually(is_told)
    finally:
        stage.nodes[2].run(tool("IPv4"), "-D", *rule)
    await eventually(lambda: weights_are(director, {node1: 1, node2: 1, node3: 1}))


@dataclass
class Calls:
    """New connections: when each success happened, and why the others failed.

    The time is in seconds, of which those do not count in which the machine has stood still.
    """

    time: float = 0.0
    succeeded: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def longest_gap(self) -> float:
        """The longest time in seconds during which no new connection succeeded."""
        return max(later - earlier for earlier, later in zip(self.succeeded, self.succeeded[1:], strict=False))

    async def call(self, client: Host, vip: str) -> None:
        """Make one call that gives up soon, so that a gap is the VIP's, and not that of TCP, which repeats its SYN."""
        try:
            await client.http(vip, 8080, timeout=GIVES_UP)
        except OSError as error:
            self.failures.append(repr(error))
        else:
            self.succeeded.append(self.time)

    async def keep_time(self) -> None:
        """Count the time until cancelled."""
        counted = CountedTime()
        while True:
            await asyncio.sleep(TURN)
            self.time += counted.since_last_look()


@asynccontextmanager
async def calling(client: Host, vip: str) -> AsyncIterator[Calls]:
    """Call the VIP for the length of the block, and once after it."""
    calls = Calls()

    async def keep_calling() -> None:
        while True:
            await calls.call(client, vip)
            await asyncio.sleep(PAUSE)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(it) for it in (calls.keep_time(), *(keep_calling() for _ in range(CALLERS)))]
        try:
            yield calls
            await calls.call(client, vip)
        finally:
            for task in running:
                task.cancel()


async def sigterm(machine: DirectorMachine) -> None:
    assert machine.process is not None
    await machine.process.terminate()
    not_on(machine)


async def sigkill(machine: DirectorMachine) -> None:
    assert machine.process is not None
    await machine.process.kill()


async def power_failure(machine: DirectorMachine) -> None:
    """Unplug the machine's network first, then kill kroute."""
    machine.unplug()
    await sigkill(machine)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("end", [sigterm, sigkill, power_failure])
async def test_a_fail_over_loses_no_established_connection_and_few_new_ones(
    stage: Stage, end: Callable[[DirectorMachine], Awaitable[None]]
) -> None:
    await stage.started(*SOONEST)
    await eventually(stage.by_role)
    streams = [
        await stage.client.open_stream(vip, 8080, patience=4 * FAIL_OVER) for vip in VIPS for _ in range(STREAMS)
    ]

    def are_known() -> None:
        _, standby = stage.by_role()
        for vip in VIPS:
            knows_streams(standby, vip, STREAMS)

    await eventually(are_known)
    async with calling(stage.client, IPV4) as calls, calling(stage.client, IPV6) as calls6:
        await asyncio.sleep(2)
        first, second = await eventually(stage.by_role)
        await end(first)
        await eventually(lambda: has_vips(second))
        await eventually(lambda: not_on(first))
        await asyncio.sleep(2)
    assert max(calls.longest_gap, calls6.longest_gap) <= FAIL_OVER
    echoed = [stream.echoed for stream in streams]
    for stream, before in zip(streams, echoed, strict=True):
        await eventually(partial(has_moved, stream, before))  # TCP waits longer before each retransmission
        await stream.close()
    first.plug_in()
    await eventually(partial(alone_answers, stage, second))


def has_moved(stream: OpenStream, echoed: int) -> None:
    assert stream.failure is None, stream.failure
    assert stream.echoed > echoed


def not_on(machine: DirectorMachine) -> None:
    assert not any(map(machine.has, VIPS))


@contextmanager
def api_server_out_of_reach(stage: Stage) -> Iterator[None]:
    """Drop every packet to the API server, as when its network is down."""
    rule = ("INPUT", "-p", "tcp", "--dport", "6443", "-j", "DROP")
    stage.nodes[0].run(tool("IPv4"), "-I", *rule)
    try:
        yield
    finally:
        stage.nodes[0].run(tool("IPv4"), "-D", *rule)


async def test_a_restart_without_the_api_server_leaves_the_vips_where_they_are(stage: Stage) -> None:
    director = stage.machines[0]
    patient = ("--lease-duration", "30s")
    await director.start(*QUICK, *patient)
    await eventually(lambda: has_vips(director))
    await eventually(lambda: all_nodes_take_calls(director))
    assert director.process is not None
    with api_server_out_of_reach(stage):
        await director.process.kill()
        again = await director.start(*QUICK, *patient, wait=False)
        await asyncio.sleep(35)
        has_vips(director)
        assert sum((await stage.client.spread(IPV4, 8080, 3)).values()) == 3
        assert "vip." not in again.log.read_text()
    await again.ready()
    has_vips(director)


async def misses_api_server(machine: DirectorMachine, role: str) -> None:
    found = await inspected.ask(machine.state_dir)
    assert (found.role, found.election, found.state) == ("director", role, inspected.State.READY)
    assert [it.reason for it in found.problems] == ["ApiUnreachable"]


async def test_without_the_api_server_the_active_director_serves_and_the_standby_stays_one(stage: Stage) -> None:
    first, second = await stage.started()
    with api_server_out_of_reach(stage):
        await asyncio.sleep(LEASE + 2)
        has_vips(first)
        not_on(second)
        for machine, role in ((first, "active"), (second, "standby")):
            await eventually(partial(misses_api_server, machine, role))
        assert sum((await stage.client.spread(IPV4, 8080, 3)).values()) == 3
    await asyncio.sleep(4)
    has_vips(first)
    not_on(second)


async def test_a_director_that_is_killed_and_comes_back_keeps_its_vips(stage: Stage) -> None:
    patient = ("--lease-duration", "60s")
    first, second = await stage.started(*patient)
    stream = await stage.client.open_stream(IPV4, 8080)
    assert first.process is not None
    await first.process.kill()
    await first.start(*QUICK, *patient)
    has_vips(first)
    not_on(second)
    log = first.process.log.read_text()
    assert "vip.bound" not in log, log
    await stream.close()


def announcements(frames: list[bytes], machine: DirectorMachine) -> list[bytes]:
    """The frames in which the machine tells all that it has a VIP: ARP with it as sender, or a neighbour advertisement.

    The kernel's answer to one that asks is none: it has the VIP until that expires.
    """
    mac, vip4, vip6 = (
        bytes.fromhex(machine.mac().replace(":", "")),
        socket.inet_aton(IPV4),
        socket.inet_pton(socket.AF_INET6, IPV6),
    )
    own = [it for it in frames if it[6:12] == mac and it[0] & 1]  # to a group
    arp = [it for it in own if it[12:14] == b"\x08\x06" and it[28:32] == vip4]
    return arp + [it for it in own if it[12:14] == b"\x86\xdd" and it[54:55] == b"\x88" and it[62:78] == vip6]


def has_announced(capture: Capture, machine: DirectorMachine) -> None:
    assert announcements(capture.received(), machine)


def says(machine: DirectorMachine, *words: str) -> None:
    """Assert that a line of the log of a machine's director has all these words."""
    assert machine.process is not None
    lines = machine.process.log.read_text().splitlines()
    assert any(all(word in line for word in words) for line in lines), words


async def test_a_director_that_stood_still_does_not_announce_the_vips_that_another_has_taken(stage: Stage) -> None:
    first, second = await stage.started("--resync-period", "300s")
    assert first.process is not None
    with Capture(stage.client) as capture:
        first.process.signal(signal.SIGSTOP)
        try:
            await eventually(lambda: has_vips(second))
            await eventually(lambda: not_on(first))
            await asyncio.sleep(4)
            await eventually(lambda: has_announced(capture, second))
            assert not announcements(capture.received(), first)
        finally:
            first.process.signal(signal.SIGCONT)
        await eventually(lambda: says(first, "director.stood_still"))
        await asyncio.sleep(5)
        assert not announcements(capture.received(), first)
    not_on(first)
    has_vips(second)
    assert sum((await stage.client.spread(IPV4, 8080, 3)).values()) == 3


async def test_of_two_directors_with_one_name_one_has_the_vips(stage: Stage) -> None:
    first, second = await stage.started("--identity", "director", "--resync-period", "1s")
    await asyncio.sleep(5)
    has_vips(first)
    not_on(second)
    await eventually(lambda: says(second, '"holder": "director_'))
    assert sum((await stage.client.spread(IPV4, 8080, 3)).values()) == 3
    await sigterm(first)
    await eventually(lambda: has_vips(second))


async def test_of_two_directors_with_a_copied_state_directory_one_gives_up(stage: Stage) -> None:
    first, second = stage.machines
    await first.start(*QUICK, "--identity", "director")
    await eventually(lambda: has_vips(first))
    (second.state_dir / "identity").write_bytes((first.state_dir / "identity").read_bytes())
    await second.start(*QUICK, "--identity", "director")
    await eventually(lambda: has_vips(second))
    await eventually(lambda: not_on(first))
    assert first.process is not None
    assert first.process.log.read_text().count("lease.identity_shared") == 1
    await asyncio.sleep(5)
    not_on(first)
    has_vips(second)
    assert sum((await stage.client.spread(IPV4, 8080, 3)).values()) == 3


def greedy_service(*addresses: str) -> Object:
    """A Service that the agents leave to others, so that it is the director that admits or refuses it."""
    item = objects.service("greedy", "10.254.0.81", "fd00:10:254::81")
    item["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "director"}
    ports = [{"name": f"p{number}", "port": number, "protocol": "TCP"} for number in (22, 8080)]
    item["spec"] |= {"externalIPs": list(addresses), "ports": ports}
    return item


async def test_what_the_machine_and_the_cluster_need_is_taken_by_no_service(stage: Stage) -> None:
    director = stage.machines[0]
    host, gateway = director.host, "192.168.123.240"
    before = set(host.addresses("eth0"))
    host.run("ip", "route", "add", "198.51.100.0/24", "via", gateway)
    await host.serve(http=22)
    stage.api.apply(greedy_service(host.ip, host.ip6, gateway, CLUSTER_IPS[0], "8.8.8.8", stage.nodes[1].ip))
    try:
        await director.start(*QUICK, "--service-proxy-name", "director")
        await eventually(lambda: has_vips(director))
        await asyncio.sleep(2)
        assert {it.split("/")[0] for it in set(host.addresses("eth0")) - before} == set(VIPS)
        assert host.ipvs().keys() == set(map(key_of, VIPS))
        assert sum((await stage.client.spread(IPV4, 8080, 3)).values()) == 3
        assert (await stage.client.http(host.ip, 22)).host == host.name
        for address in (host.ip, host.ip6, gateway, CLUSTER_IPS[0], "8.8.8.8", stage.nodes[1].ip):
            await eventually(partial(says, director, "greedy", address))
    finally:
        stage.api.apply(greedy_service())
        await host.stop_serving()
        host.run("ip", "route", "del", "198.51.100.0/24")


FLOOD = 1000
"""Ports."""


def flood() -> Object:
    """A Service of another tenant, which the agents leave to others, with very many ports."""
    item = objects.service("flood", "10.254.0.82", "fd00:10:254::82")
    item["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "director"}
    numbered = [{"name": f"p{number}", "port": number, "protocol": "TCP"} for number in range(1, FLOOD + 1)]
    item["spec"] |= {"externalIPs": ["192.168.123.202"], "ports": numbered}
    return item


def node_elsewhere(number: int) -> Object:
    """A Node that is ready, and that nobody reaches."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"elsewhere-{number}"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": f"192.168.122.{number}"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def has_real_servers(machine: DirectorMachine, count: int) -> None:
    """Assert that each port of the flood is directed to so many nodes."""
    ours = {key: row for key, row in machine.host.ipvs().items() if "192.168.123.202" in key}
    assert len(ours) == FLOOD
    assert {len(row.real_servers) for row in ours.values()} == {count}


async def test_a_service_with_many_ports_on_many_nodes_takes_no_vip_away(stage: Stage) -> None:
    others = [node_elsewhere(number) for number in range(1, 38)]
    stage.api.apply(web_service(externalTrafficPolicy="Local"))  # its nodes are those that have its pods
    await stage.started("--service-proxy-name", "director")
    active, standby = stage.by_role()
    made: list[Object] = []
    try:
        made.extend(stage.api.create(item) for item in (*others, flood()))
        async with calling(stage.client, IPV4) as calls:
            for machine in (active, standby):
                await eventually(partial(has_real_servers, machine, len(others) + 3), within=120.0)
                await eventually(partial(weights_are, machine, {node.ip: 1 for node in stage.nodes}))
        has_vips(active)
        not_on(standby)
        assert calls.longest_gap < LEASE
        for machine in (active, standby):
            assert machine.process is not None
            assert "director.stood_still" not in machine.process.log.read_text()
    finally:
        for item in reversed(made):
            stage.api.delete(item)


async def test_an_address_that_was_there_before_is_left_alone(stage: Stage) -> None:
    director = stage.machines[0]
    director.host.run("ip", "address", "add", f"{IPV4}/32", "dev", "eth0")
    await director.start(*QUICK)
    await eventually(lambda: has_vips(director))
    assert director.process is not None
    await director.process.terminate()
    assert director.has(IPV4)
    assert not director.has(IPV6)
    director.host.run("ip", "address", "del", f"{IPV4}/32", "dev", "eth0")
