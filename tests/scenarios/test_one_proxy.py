"""kroute is installed beside a kube-proxy that runs, waits for its end, takes over, and hands the node back.

200 connections stay open, and 50 are opened each second. kube-proxy is the stand-in, which
`tests/scenarios/test_kube_proxy.py` holds against the real one, and, where this machine has it, the real one.
"""

import asyncio
import itertools
import re
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kroute.reconcile.ledger import Ledger, TakeOverBegun
from tests.lab import firewall, kubernetes
from tests.lab.api_server import EVENTS, ApiServer
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import eventually
from tests.lab.feed import ApiFeed, control_plane
from tests.lab.hosts import OpenStream
from tests.lab.kroute_process import KrouteProcess
from tests.lab.kube_proxy_process import KubeProxy
from tests.lab.load import Load, Way, steady_load
from tests.lab.objects import endpoint_slices, node, service
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import FAMILIES
from tests.lab.writes import reads, stop_tracing, traced, writes
from tests.real_proxies.running import ask

NODE_PORT, EXTERNAL_IP, OWN_PORT = 31080, "203.0.113.80", 10247
VIPS = tuple(family.service_ip for family in FAMILIES)
STREAMS, NEW_PER_SECOND = 200, 50
FLAGS = ("--node-name", "node1", "--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}", "--resync-period", "5s")
FLAGS += ("--external-ip-range", "203.0.113.0/24")
NFTABLES = ("--firewall", "nftables")
MODES = [
    pytest.param("iptables", marks=pytest.mark.legacy),
    pytest.param("ipvs", marks=pytest.mark.legacy),
    pytest.param("nftables", marks=pytest.mark.nftables),
]


@dataclass
class Scene:
    """A node with kube-proxy, another node, their pods, and an API server that both proxies follow."""

    cluster: Cluster
    api: ApiServer
    feed: ApiFeed
    proxy: KubeProxy
    web: list[Pod]
    visitor: Pod
    streams: list[OpenStream] = field(default_factory=list)

    @property
    def node(self) -> Node:
        """The node that both proxies want."""
        return self.proxy.node

    @property
    def ways(self) -> list[Way]:
        """Every kind of caller: a pod and the node by ClusterIP, a client outside by node port and external IP."""
        client = self.cluster.client
        return [
            *(Way(self.visitor, vip, 8080) for vip in VIPS),
            *(Way(self.node, vip, 8080) for vip in VIPS),
            Way(client, self.node.ip, NODE_PORT),
            Way(client, self.node.ip6, NODE_PORT),
            Way(client, EXTERNAL_IP, 8080),
        ]

    async def kroute(
        self, *flags: str, trace: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> KrouteProcess:
        """Install kroute on the node."""
        under = {"fork": False, "under": traced(trace)} if trace else {}
        argv = ("run", *self.feed.flags, *FLAGS, *flags)
        return await self.node.kroute(*argv, environment=environment, **under)  # type: ignore[arg-type]

    async def command(self, *argv: str) -> str:
        """Run a command of kroute's on the node, which must succeed."""
        process = await self.node.kroute(*argv)
        code = await process.wait()
        assert code == 0, process.log.read_text()
        return process.log.read_text()

    async def status(self) -> str:
        """What `kroute status` prints of a node that has a problem."""
        process = await self.node.kroute("status")
        code = await process.wait()
        assert code, process.log.read_text()
        return process.log.read_text()

    async def waits(self, why: str) -> None:
        """Wait until kroute says that it waits for kube-proxy, and why."""

        def says_so() -> None:
            code, text = self.own("/readyz")
            assert code == 503
            assert "waiting: kube-proxy" in text
            assert why in text, text

        await eventually(says_so, within=60)

    def said_of_proxies(self) -> set[str]:
        """The reasons of the Events about other proxies that kroute has written on the Node."""
        found = [event for event in self.api.list(EVENTS) if "ServiceProxy" in event["reason"]]
        assert all(event["regarding"]["kind"] == "Node" for event in found)
        return {event["reason"] for event in found}

    def own(self, path: str) -> tuple[int, str]:
        """What kroute answers at its own port: status and body."""
        status, _, body = ask(self.node, "GET", OWN_PORT, path)
        return status, body

    async def go_on(self) -> None:
        """Wait until every stream has moved a byte that was sent after this call."""
        echoed = [stream.echoed for stream in self.streams]

        def all_moved() -> None:
            assert not [
                f"{way.client} to {way.address} {way.port}: {stream.failure}"
                for way, stream in zip(itertools.cycle(self.ways), self.streams, strict=False)
                if stream.failure
            ]
            assert all(it.echoed > before + 1 for it, before in zip(self.streams, echoed, strict=True))

        await eventually(all_moved, within=60)


@asynccontextmanager
async def scene(mode: str, program: Path | None, *, services: int = 0, is_running: bool = True) -> AsyncIterator[Scene]:
    """kube-proxy serves the Service `web`, and so many Services more; or, not `is_running`, it is yet to come."""
    async with Cluster.start("node1", "node2") as cluster:
        at = cluster.node("node1")
        api = control_plane(cluster)
        feed = ApiFeed(api)
        web = [await it.pod(f"web-{n}", http=8080) for n, it in enumerate((at, at, cluster.node("node2")), 1)]
        visitor = await at.pod("visitor")
        at.run("ip", "route", "add", "default", "via", cluster.client.ip)
        at.run("ip", "route", "add", "default", "via", cluster.client.ip6)
        cluster.client.run("ip", "route", "add", EXTERNAL_IP, "via", at.ip)
        for item in (
            *map(node, cluster.nodes.values()),
            service("web", *VIPS, node_ports={"TCP": NODE_PORT}, externalIPs=[EXTERNAL_IP]),
            *endpoint_slices("web", web),
        ):
            feed.put(item)
        for number in range(services):
            name, hosts = f"more-{number}", [web[number % 3], web[(number + 1) % 3]]
            feed.put(service(name, f"10.254.{1 + number // 250}.{1 + number % 250}"))
            feed.put(endpoint_slices(name, hosts)[0])
        proxy = KubeProxy(at, mode, api, program)
        made = Scene(cluster, api, feed, proxy, web, visitor)
        try:
            if is_running:
                proxy.deploy()
                await proxy.start()
                for way in made.ways:
                    await eventually(lambda way=way: way.client.http(way.address, way.port), within=120)
            yield made
        finally:
            proxy.close()


@asynccontextmanager
async def traffic(
    made: Scene, record: Callable[[str, object], None], what: str, streams: int = STREAMS
) -> AsyncIterator[Load]:
    """Open connections that go on, and new ones, for the length of a `with`; none may fail."""
    ways = made.ways
    made.streams = [
        await ways[n % len(ways)].client.open_stream(*ways[n % len(ways)][1:], interval=2.0, patience=60)
        for n in range(streams)
    ]
    loop = asyncio.get_running_loop()
    async with steady_load(ways, NEW_PER_SECOND) as load:
        began = loop.time()
        yield load
        await made.go_on()
        took = loop.time() - began
    assert not load.failures, load.failures[:10]
    assert all(load.calls[way] for way in ways)
    longest = {"open": max((it.longest for it in made.streams), default=0.0), "new": load.longest}
    record(
        "measured",
        f"{what}: {load.calls.total()} new connections ({load.calls.total() / took:.0f}/s) and {streams} open ones, "
        f"none failed; longest time without an answer {longest['new']:.2f} s new, {longest['open']:.2f} s open",
    )
    for stream in made.streams:
        await stream.close()


def left_of_kube_proxy(at: Node) -> list[str]:
    """What only kube-proxy makes, and is still there. The kubelet has a KUBE-FIREWALL, too."""
    found = []
    if firewall.has_nf_tables():
        found += [it for it in at.run("nft", "list", "tables").splitlines() if it.endswith(" kube-proxy")]
    for tool in ("iptables", "ip6tables"):
        saved = at.run(f"{tool}-{firewall.variant()}-save")
        found += [it for it in saved.splitlines() if "KUBE-" in it and "KUBE-FIREWALL" not in it]
    if firewall.has_legacy():
        found += [it for it in at.run("ipset", "list", "-n").splitlines() if it.startswith("KUBE-")]
    return found


async def nothing_is_left(at: Node) -> None:
    """Wait until nothing of kube-proxy's is left."""

    async def looks_clean() -> None:
        await asyncio.sleep(0.5)
        assert not left_of_kube_proxy(at)

    await eventually(looks_clean, within=60)


def program_of(kind: str) -> Path | None:
    """The real kube-proxy, if it is asked for."""
    program = kubernetes.program("kube-proxy") if kind == "real" else None
    if kind == "real" and program is None:
        pytest.skip(str(kubernetes.missing("kube-proxy")))
    return program


@pytest.fixture(autouse=True)
def many_files() -> None:
    """Let this process have the sockets of all connections, of both ends."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.mark.drawn(7, "there and back")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["stand-in", "real"])
async def test_kroute_waits_beside_kube_proxy_takes_over_when_it_is_deleted_and_hands_back(
    kind: str, mode: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nothing is written while kube-proxy lives, restarts or crashes; no connection fails on the way there and back."""
    async with scene(mode, program_of(kind)) as made:
        agent = await takes_over(made, tmp_path / "trace", record_property, f"{kind}, {mode}")
        await hands_back(made, agent, record_property, f"{kind}, {mode}")


async def takes_over(
    made: Scene, trace: Path, record: Callable[[str, object], None], what: str, *, restarts: bool = True
) -> KrouteProcess:
    """Install kroute beside kube-proxy, and delete kube-proxy, which `restarts` before."""
    async with traffic(made, record, f"{what}, kube-proxy's end") as load:
        before = made.node.snapshot()
        agent = await made.kroute(trace=trace)
        await made.waits(f"mode {made.proxy.mode}")
        await load.goes_on(200)
        assert not before.diff(made.node.snapshot())
        if restarts:
            await waits_through_restarts(made, load)
        assert writes(trace) == []
        assert reads(trace), "the trace shows what kroute asks the kernel"
        stop_tracing(agent.pid)
        await made.proxy.delete()
        await agent.ready()
        await nothing_is_left(made.node)
        assert made.said_of_proxies() == {"WaitingForServiceProxy", "ServiceProxyGone"}
        await load.goes_on(100)
    return agent


async def hands_back(made: Scene, agent: KrouteProcess, record: Callable[[str, object], None], what: str) -> None:
    """Give the node back to kube-proxy.

    In the mode ipvs kube-proxy adopts kroute's virtual servers. In the mode iptables open connections go on through
    these, and the hand-over waits for their end. In the mode nftables kube-proxy itself removes them when it starts, so
    that no connection goes on, and new ones fail until the hand-over has seen its table.
    """
    hand_over = ("migrate", "--to", "kube-proxy", "--hand-over")
    if made.proxy.mode == "nftables":
        assert await agent.terminate() == 0
        made.proxy.deploy()
        await made.proxy.start()
        await made.command(*hand_over, "--wait", "5m")
    else:
        async with traffic(made, record, f"{what}, the way back") as load:
            assert await agent.terminate() == 0
            made.proxy.deploy()
            await made.proxy.start()
            await load.goes_on(100)
            if made.proxy.mode == "ipvs":
                await made.command(*hand_over)
            else:
                refused = await made.node.kroute(*hand_over, "--wait", "0s")
                assert await refused.wait() == 1
                assert "connections are still open" in refused.log.read_text()
            await load.goes_on(100)
    async with steady_load(made.ways, NEW_PER_SECOND) as load:
        if made.proxy.mode == "iptables":
            await made.command(*hand_over, "--wait", "5m")
        await load.goes_on(100)
    assert not load.failures, load.failures[:10]
    assert not left_of_kroute(made.node)


def left_of_kroute(at: Node) -> list[str]:
    """kroute's tables, sets and chains."""
    found = [it for it in at.run("nft", "list", "tables").splitlines() if it.endswith(" kroute")]
    if firewall.has_legacy():
        found += [it for it in at.run("ipset", "list", "-n").splitlines() if it.startswith("KROUTE")]
        found += [it for it in at.run("iptables-legacy-save").splitlines() if it.startswith(":KROUTE")]
    return found


async def waits_through_restarts(made: Scene, load: Load) -> None:
    """Restart kube-proxy, have it crash again and again, and replace its Pod: kroute waits on."""
    assert (made.own("/livez"))[0] == 200
    assert 'kroute_waiting_for_proxy{proxy="kube-proxy"} 1' in (made.own("/metrics"))[1]
    assert "WaitingForServiceProxy: waiting: kube-proxy is at work on this node" in await made.status()
    assert made.said_of_proxies() == {"WaitingForServiceProxy"}
    await load.goes_on(100)
    made.proxy.end()
    await made.waits("it is silent, but")
    await load.goes_on(100)
    await made.proxy.start()
    for _ in range(3):
        await made.waits(f"mode {made.proxy.mode}")
        made.proxy.close()
        await made.waits("it is silent, but")
        made.proxy.launch()
    await made.proxy.delete_pod()
    await made.waits("it is silent, but")
    made.proxy.deploy()
    await made.proxy.start()
    await made.waits(f"mode {made.proxy.mode}")


@pytest.mark.drawn(7, "there and back")
@pytest.mark.parametrize("mode", MODES[1:2])  # the mode whose virtual servers are adopted
async def test_a_node_with_1000_services_is_taken_over_and_handed_back_without_a_failed_connection(
    mode: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with scene(mode, None, services=1000) as made:
        what = f"1,000 Services, {mode}"
        agent = await takes_over(made, tmp_path / "trace", record_property, what, restarts=False)
        await hands_back(made, agent, record_property, what)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("mode", MODES)
async def test_a_take_over_that_was_interrupted_is_finished_at_the_next_start(
    mode: str, record_property: Callable[[str, object], None]
) -> None:
    """An agent was killed when it had said in its ledger that it takes over, and had done nothing yet."""
    async with scene(mode, None) as made, traffic(made, record_property, f"{mode}, an interrupted take-over") as load:
        await made.proxy.delete()
        ledger = Ledger.open(made.node.state_dir)
        ledger.record([TakeOverBegun("kube-proxy")])
        ledger.close()
        agent = await made.kroute()
        await agent.ready()
        await nothing_is_left(made.node)

        def is_finished() -> None:
            assert Ledger.open(made.node.state_dir).take_overs == set()

        await eventually(is_finished, within=60)  # the agent looks once more before the ledger says so
        await load.goes_on(100)


@pytest.mark.legacy
@pytest.mark.nftables
async def test_legacy_rules_of_a_kube_proxy_that_ended_before_kroute_came_are_taken_over_by_either_backend(
    record_property: Callable[[str, object], None],
) -> None:
    """They come before IPVS, so kroute would serve nobody beside them, and they lead to endpoints of yesterday.

    An image without the tools cannot remove them, and waits.
    """
    async with scene("iptables", None) as made, traffic(made, record_property, "kube-proxy ended before") as load:
        await made.proxy.delete()
        flags = (*NFTABLES, "--take-over-after", "2s")
        before = made.node.snapshot()
        agent = await made.kroute(*flags, environment={"PATH": "/nonexistent"})
        await made.waits("it has ended, but its legacy iptables rules translate packets before IPVS")
        assert await agent.terminate() == 0
        assert not before.diff(made.node.snapshot())
        agent = await made.kroute(*flags)
        await agent.ready()
        await nothing_is_left(made.node)
        await load.goes_on(100)


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("mode", "streams", "flags"),
    [
        pytest.param("ipvs", STREAMS, (), marks=pytest.mark.legacy),
        pytest.param("iptables", STREAMS, NFTABLES, marks=[pytest.mark.legacy, pytest.mark.nftables]),
        pytest.param("nftables", 0, (), marks=pytest.mark.nftables),
    ],
)
async def test_a_kube_proxy_that_comes_later_is_reported_and_not_fought(
    mode: str,
    streams: int,
    flags: tuple[str, ...],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """kroute goes on serving; it writes no object again that it has written, and repairs all when the rival ends.

    In the mode nftables kube-proxy removes IPVS's virtual servers when it starts, and with them the open connections.
    New ones fail until kroute has found it and repaired that; from then on none may.
    """
    async with scene(mode, None, is_running=False) as made:
        trace = tmp_path / "trace"
        agent = await made.kroute(*flags, trace=trace)
        await agent.ready()

        async def rival_comes() -> None:
            made.proxy.deploy()
            await made.proxy.start()
            await eventually(lambda: has_metric(made, 'kroute_rival_proxy{proxy="kube-proxy"} 1'), within=60)

        if not streams:
            await rival_comes()
            for way in made.ways:
                await eventually(lambda way=way: way.client.http(way.address, way.port), within=60)
        async with traffic(made, record_property, f"a rival, {mode}", streams) as load:
            if streams:
                await rival_comes()
            assert "RivalServiceProxy" in await made.status()
            before = len(writes(trace))
            await load.goes_on(500)
            repeated = Counter(re.sub(r"^.*?nlmsg_type|nlmsg_seq=\d+", "", it) for it in writes(trace)[before:])
            assert not {what: times for what, times in repeated.items() if times > 1}
            await made.proxy.delete()
            await eventually(lambda: has_metric(made, 'kroute_rival_proxy{proxy="kube-proxy"} 0'), within=60)
            await nothing_is_left(made.node)
            assert made.said_of_proxies() == {"RivalServiceProxy", "ServiceProxyGone"}
            await load.goes_on(100)


def has_metric(made: Scene, line: str) -> None:
    """Assert that kroute's metrics have this line; a gauge of 0 may be left out."""
    text = made.own("/metrics")[1]
    name, _, value = line.rpartition(" ")
    assert line in text or (value == "0" and name not in text)
