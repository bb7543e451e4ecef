"""Random Services of a real API server, served by kroute and by the real kube-proxy, one after the other on one node.

Beside kube-proxy's mode `ipvs` stands what the kernel says of every virtual server; beside its mode `nftables`, to
which a packet of a pod, of the node and of a client outside comes. What differs is in a table with its reason.
KROUTE_LAB_RANDOM says how many Services there are, KROUTE_LAB_SEED which. A part of them has an API server of its own.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

import pytest
import yaml

from tests.lab import kubernetes
from tests.lab.api_server import SERVICES, RealApiServer, RequestRefusedError
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import eventually
from tests.lab.firewall import IPTABLES, NFTABLES
from tests.lab.hosts import Host
from tests.lab.kube_proxy import METRICS_PORT
from tests.lab.kube_proxy_process import KubeProxy
from tests.lab.objects import Object, node
from tests.lab.other_proxies import wiped
from tests.lab.random_services import EXTERNAL, EXTERNAL6, PROTOCOLS, TARGETS, ZONES, RandomServices
from tests.lab.thoroughness import is_thorough, seed
from tests.lab.topology import CONTROL_PLANE, POD_RANGE, POD_RANGE6, SERVICE_RANGE, SERVICE_RANGE6
from tests.real_proxies.running import ask

COUNT = int(os.environ.get("KROUTE_LAB_RANDOM") or (150 if is_thorough() else 12))
OF_A_PART = 50
ORDINARY_SEED = 4
"""The Services of a run that is neither thorough nor has a seed: make nightly looks for others, a change does not."""
HEADLESS = "service.kubernetes.io/headless"
AT_ONCE = 30
"""Ends that are called at the same time; most of them wait for an answer that does not come."""
TRIES, GIVES_UP_AFTER = 2, 2.5
"""Seconds without an answer after which a packet counts as lost, if that happens so often. Over IPv6 a client of TCP
notices an ICMP refusal at its second SYN only, after a second.
"""
ANSWERS_FOR_AN_ENDPOINT = 20
"""Calls for each endpoint that is still missing, until it counts as never chosen: with five the chance is 1e-9."""
_EPERM = os.strerror(errno.EPERM)
_REFUSALS = {errno.ECONNREFUSED, errno.ENOPROTOOPT}
"""The second is SCTP's, of an ICMP message that the protocol is unreachable."""
_SYNCHRONIZED = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"

MISSING = kubernetes.missing("kube-apiserver", "etcd", "kube-proxy")
pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.legacy,
    pytest.mark.nftables,
]


class End(NamedTuple):
    """A virtual server's key."""

    protocol: str
    address: str
    port: int


class Server(NamedTuple):
    """A virtual server as the kernel shows it. The real servers have method and weight by address and port."""

    scheduler: str
    flags: str
    real_servers: Mapping[str, tuple[str, int]]


class Way(NamedTuple):
    """A packet's way: from where, and to what."""

    source: str
    end: End


HealthPort = tuple[str, int]
"""Address and port of a health check."""


class Served(NamedTuple):
    """What a proxy has made of the Services."""

    table: Mapping[End, Server]
    answers: Mapping[Way, frozenset[str]]
    health: Mapping[HealthPort, int]


class Item(NamedTuple):
    """A Service and its slices as the API server has stored them."""

    service: Object
    slices: list[Object]

    @property
    def name(self) -> str:
        return str(self.service["metadata"]["name"])

    def __str__(self) -> str:
        kept = [
            {**it, "metadata": {key: it["metadata"][key] for key in ("name", "labels") if key in it["metadata"]}}
            for it in (self.service, *self.slices)
        ]
        return yaml.safe_dump_all(kept, sort_keys=False)

    @property
    def cluster_ips(self) -> list[str]:
        return self.service["spec"].get("clusterIPs", [])

    def is_local_for(self, end: End) -> bool:
        """Whether the traffic policy of this end is Local."""
        policy = "internalTrafficPolicy" if end.address in self.cluster_ips else "externalTrafficPolicy"
        return self.service["spec"].get(policy) == "Local"

    @property
    def has_duplicates(self) -> bool:
        """Whether an address is in two of the slices, which may say different things of it."""
        addresses = [it["addresses"][0] for piece in self.slices for it in piece["endpoints"] or ()]
        return len(addresses) > len(set(addresses))

    def ends(self, at: Node) -> list[End]:
        """All ends at which the Service may be served on a node."""
        spec = self.service["spec"]
        ingress = self.service.get("status", {}).get("loadBalancer", {}).get("ingress", ())
        addresses = [*self.cluster_ips, *spec.get("externalIPs", ()), *(it["ip"] for it in ingress if "ip" in it)]
        found = []
        for port in spec.get("ports", ()):
            found += [End(port["protocol"], it, port["port"]) for it in addresses if it != "None"]
            if number := port.get("nodePort"):
                found += [End(port["protocol"], it, number) for it in (at.ip, at.ip6)]
        return found


class Scene:
    """The cluster with the API server's Services. kroute and kube-proxy run on node1, one at a time."""

    def __init__(self, cluster: Cluster, api: RealApiServer, pods: list[Pod], visitor: Pod) -> None:
        self.cluster = cluster
        self.node = cluster.node("node1")
        self.api = api
        self.sources: dict[str, Host] = {"pod": visitor, "node": self.node, "client": cluster.client}
        self.pods = pods
        self.items: list[Item] = []
        self.refused = 0
        self._hosts = {address: pod.name for pod in pods for address in (pod.ip, pod.ip6)}

    def fill(self, services: RandomServices, count: int) -> None:
        """Create Services until there are so many that the API server takes."""
        for service, ingress, slices in services:
            try:
                stored = self.api.create(service)
            except RequestRefusedError:
                self.refused += 1
                continue
            if ingress:
                self.api.apply({**stored, "status": {"loadBalancer": {"ingress": ingress}}}, "/status")
            self.items.append(Item(service, [self.api.create(it) for it in slices]))
            if len(self.items) == count:
                break
        stored_now = {it["metadata"]["name"]: it for it in self.api.list(SERVICES)}
        self.items = [Item(stored_now[it.name], it.slices) for it in self.items]

    async def kroute(self, firewall: str) -> Served:
        """Serve the Services with kroute."""
        flags = ("--kubeconfig", str(self.api.kubeconfig), "--node-name", self.node.name, "--firewall", firewall)
        agent = await self.node.kroute("run", *flags, "--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}")
        await agent.ready()
        table = self._table()
        served = Served(table, await self._answers(table), await self._health())
        assert await agent.terminate() == 0
        cleanup = await self.node.kroute("cleanup")
        assert await cleanup.wait() == 0, cleanup.log.read_text()
        return served

    async def kube_proxy(self, mode: str, ours: Served) -> Served:
        """Serve the Services with the real kube-proxy, beside what kroute has made of them."""
        proxy = KubeProxy(self.node, mode, self.api, kubernetes.program("kube-proxy"))
        with wiped(self.node):
            try:
                await proxy.start()
                await eventually(self._has_synchronized, within=300)
                if mode == "ipvs":
                    return Served(self._table(), {}, await self._health(ours.health))
                return Served({}, await self._answers(ours.table), await self._health(ours.health))
            finally:
                proxy.close()
                self.node.run("nft", "flush", "ruleset")

    def _has_synchronized(self) -> None:
        """Assert that kube-proxy has served both families once: the first time it has read everything before."""
        metrics = ask(self.node, "GET", METRICS_PORT, "/metrics")[2]
        lines = [it for it in metrics.splitlines() if it.startswith(_SYNCHRONIZED)]
        assert len(lines) == 2
        assert all(float(it.split()[-1]) > 0 for it in lines)

    def _table(self) -> dict[End, Server]:
        found = {}
        for key, server in self.node.ipvs().items():
            protocol, _, where = key.partition(" ")
            address, _, port = where.rpartition(":")
            real = {end: (it.method, it.weight) for end, it in server.real_servers.items()}
            found[End(protocol, address.strip("[]"), int(port))] = Server(server.scheduler, server.flags, real)
        return found

    async def _health(self, expected: Mapping[HealthPort, int] | None = None) -> dict[HealthPort, int]:
        """The status of each health check port, or 0 if nothing listens there. `expected` may take a while."""
        ports = {
            (self.node.ip6 if family == "IPv6" else self.node.ip, port)
            for it in self.items
            if (port := it.service["spec"].get("healthCheckNodePort"))
            for family in it.service["spec"]["ipFamilies"]
        }

        async def found() -> dict[HealthPort, int]:
            return {port: await self._status(*port) for port in ports}

        async def has_it() -> None:
            assert await found() == expected

        with contextlib.suppress(AssertionError):
            await eventually(has_it, within=5 if expected is not None else 0)
        return await found()

    async def _status(self, address: str, port: int) -> int:
        try:
            return await self.node.http_status(address, port)
        except ConnectionRefusedError:
            return 0

    async def _answers(self, expected: Mapping[End, Server]) -> dict[Way, frozenset[str]]:
        """Who answers on each way. `expected` says when no more answers are to be awaited.

        The sources of an end take turns, unless all are refused anyway: if they called at once, round robin might give
        each of them one server.
        """
        self.node.run("conntrack", "-F")
        limit = asyncio.Semaphore(AT_ONCE)

        async def answers(end: End) -> list[tuple[Way, frozenset[str]]]:
            server = expected.get(end)
            wanted = {self._named(it) for it in server.real_servers} if server else set()
            is_persistent = bool(server and "persistent" in server.flags)
            turns = asyncio.Semaphore(len(self.sources) if len(wanted) < 2 else 1)

            async def answer(way: Way) -> tuple[Way, frozenset[str]]:
                async with turns:
                    return way, await self._answered(way, wanted, is_persistent=is_persistent)

            async with limit:
                return await asyncio.gather(*(answer(Way(source, end)) for source in self.sources))

        ends = [end for it in self.items for end in it.ends(self.node)]
        return dict(itertools.chain.from_iterable(await asyncio.gather(*map(answers, ends))))

    def endpoints(self, item: Item, end: End, *, only_local: bool) -> set[str]:
        """The endpoints that may serve this end, whatever hints say: ready ones, or those that serve meanwhile.

        Proxies ignore slices with the label of headless Services.
        """
        family = "IPv6" if ":" in end.address else "IPv4"
        names = {
            it.get("name", "")
            for it in item.service["spec"]["ports"]
            if it["protocol"] == end.protocol and end.port in (it["port"], it.get("nodePort"))
        }
        return {
            f"{self._hosts[endpoint['addresses'][0]]}:{port['port']}"
            for piece in item.slices
            if piece["addressType"] == family and HEADLESS not in piece["metadata"]["labels"]
            for port in piece["ports"] or ()
            if port["name"] in names and "port" in port
            for endpoint in piece["endpoints"] or ()
            if _may_serve(endpoint["conditions"]) and (not only_local or endpoint.get("nodeName") == self.node.name)
        }

    def _named(self, real_server: str) -> str:
        address, _, port = real_server.rpartition(":")
        return f"{self._hosts.get(address.strip('[]'))}:{port}"

    async def _answered(self, way: Way, wanted: set[str], *, is_persistent: bool) -> frozenset[str]:
        """Call until all that are wanted have answered, or something else happens, or it will not happen.

        With session affinity one of them answers, and stands for all.
        """
        seen: set[str] = set()
        for _ in range(max(1, ANSWERS_FOR_AN_ENDPOINT * len(wanted))):
            seen.add(await self._call(way))
            if not seen < wanted:
                break
            if is_persistent:
                assert seen == {await self._call(way)}
                return frozenset(wanted)
        return frozenset(seen)

    async def _call(self, way: Way) -> str:
        source = self.sources[way.source]
        own = (source.ip6 if ":" in way.end.address else source.ip, 0) if way.end.protocol == "SCTP" else None
        call = getattr(source, PROTOCOLS[way.end.protocol])
        for _ in range(TRIES):
            try:
                answer = await call(way.end.address, way.end.port, source=own, timeout=GIVES_UP_AFTER)
            except TimeoutError:
                continue
            except OSError as error:
                return "refused" if error.errno in _REFUSALS else os.strerror(error.errno or 0)
            return f"{answer.host}:{answer.port}"
        return "no answer"


def _may_serve(conditions: Mapping[str, bool]) -> bool:
    ends = conditions.get("terminating", False) and conditions.get("serving", True)
    return conditions.get("ready", True) or ends


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """Three nodes with five pods, a visitor, and the real API server. All packets for Services are sent to node1.

    Servers and clients of SCTP are bound to one address: each side would offer all that it has, VIPs included, and an
    association would end when one of them is tried (docs/kernel-facts.md).
    """
    async with Cluster.start() as cluster:
        nodes = [cluster.node(name) for name in ("node1", "node1", "node2", "node2", "node3")]
        pods = [await it.pod(f"web-{n}") for n, it in enumerate(nodes, 1)]
        for pod, at in itertools.product(pods, range(2)):
            await pod.serve(http=TARGETS["TCP"][at], udp=TARGETS["UDP"][at])
            for address in (pod.ip, pod.ip6):
                await pod.serve(sctp=TARGETS["SCTP"][at], address=address)
        node1, client = nodes[0], cluster.client
        for network in (EXTERNAL, SERVICE_RANGE):
            client.run("ip", "route", "add", network, "via", node1.ip)
        for network in (EXTERNAL6, SERVICE_RANGE6):
            client.run("ip", "route", "add", network, "via", node1.ip6)
        for gateway in (client.ip, client.ip6):
            node1.run("ip", "route", "add", "default", "via", gateway)
        directory = cluster.directory / "real-control-plane"
        directory.mkdir()
        api = RealApiServer(cluster.host("control-plane", CONTROL_PLANE), directory)
        try:
            api.start()
            for it in cluster.nodes.values():
                api.create(node(it, ZONES[it.name]))
            with wiped(node1):
                yield Scene(cluster, api, pods, await node1.pod("visitor"))
        finally:
            api.stop()


# ---- what may differ, and why ----------------------------------------------------------------------------------------


class Why(Enum):
    """Why kroute does otherwise than kube-proxy."""

    NOTHING_SERVES = (
        "a port without endpoints has no virtual server: the firewall refuses at once, where IPVS over IPv6 refuses "
        "the second SYN only"
    )
    INTERNAL_LOCAL = (
        "internalTrafficPolicy Local without an endpoint on this node: the API says that the port serves nobody. The "
        "mode ipvs serves endpoints of other nodes, if the Service can be reached from outside"
    )
    DUPLICATES = (
        "one endpoint in two slices with contradicting conditions or hints: kroute takes the ready copy, kube-proxy "
        "the one that it happens to see last"
    )
    REFUSED = (
        "policy Local without an endpoint on this node: the mode nftables drops the packet, kroute refuses it, so that "
        "the client need not wait"
    )
    UDP_OF_THE_NODE = (
        "a datagram of the node's own process that nothing serves: in the mode nftables, which stops it in OUTPUT, its "
        "sender gets EPERM; with kroute what a client outside gets"
    )
    SCTP_REFUSED = (
        "a client of SCTP ignores the ICMP message with which the mode nftables refuses; kroute says that the protocol "
        "is unreachable, which ends the call"
    )
    LOCAL_FROM_INSIDE = (
        "externalTrafficPolicy Local, and a client of this node: the mode nftables serves it by any endpoint of the "
        "cluster. A virtual server cannot tell clients, so with an endpoint on this node all have those, as in the "
        "mode ipvs"
    )


class Difference(NamedTuple):
    """Something that kube-proxy and kroute do differently with a Service, and the reason if there is one."""

    item: Item
    what: Way | End | HealthPort
    theirs: object
    ours: object
    why: Why | None

    def __str__(self) -> str:
        return f"{self.what}\n  kube-proxy {self.theirs}\n  kroute     {self.ours}"


def ipvs_differences(made: Scene, theirs: Served, ours: Served) -> Iterator[Difference]:
    """What the kernel says of each virtual server that differs."""
    owners = {(it.protocol, it.port): item for item in made.items for it in item.ends(made.node)}  # of node ports
    owners |= {it: item for item in made.items for it in item.ends(made.node)}
    for end in sorted(theirs.table.keys() | ours.table.keys()):
        his, own = theirs.table.get(end), ours.table.get(end)
        item = owners.get(end) or owners.get((end.protocol, end.port))
        if his != own and item is not None:
            yield Difference(item, end, his, own, why_servers_differ(made, item, end, his, own))
        else:
            assert his == own, f"{end} is none of the Services': {his}, {own}"


def why_servers_differ(made: Scene, item: Item, end: End, theirs: Server | None, ours: Server | None) -> Why | None:
    if ours is None and theirs is not None and not theirs.real_servers:
        return Why.NOTHING_SERVES
    if ours is None and item.is_local_for(end) and not made.endpoints(item, end, only_local=True):
        return Why.INTERNAL_LOCAL if end.address in item.cluster_ips else None
    if theirs and ours and item.has_duplicates and theirs == ours._replace(real_servers=theirs.real_servers):
        return Why.DUPLICATES
    return None


def answer_differences(made: Scene, theirs: Served, ours: Served) -> Iterator[Difference]:
    """What becomes of a packet on each way that differs."""
    owners = {end: it for it in made.items for end in it.ends(made.node)}
    for way, answers in theirs.answers.items():
        if answers != ours.answers[way]:
            item, own = owners[way.end], ours.answers[way]
            yield Difference(item, way, sorted(answers), sorted(own), why_answers_differ(made, item, way, answers, own))


def why_answers_differ(made: Scene, item: Item, way: Way, theirs: frozenset[str], ours: frozenset[str]) -> Why | None:
    is_local, inside = item.is_local_for(way.end), way.source != "client"
    near = made.endpoints(item, way.end, only_local=True)
    if ours == {"refused"} and is_local and not near and theirs <= {"no answer", _EPERM}:
        return Why.REFUSED
    if (way.source, way.end.protocol, theirs) == ("node", "UDP", {_EPERM}) and ours <= {"refused", "no answer"}:
        return Why.UDP_OF_THE_NODE
    if (way.end.protocol, theirs, ours) == ("SCTP", {"no answer"}, {"refused"}):
        return Why.SCTP_REFUSED
    if is_local and inside and way.end.address not in item.cluster_ips and ours <= near:
        return Why.LOCAL_FROM_INSIDE if theirs <= made.endpoints(item, way.end, only_local=False) else None
    if item.has_duplicates and theirs | ours <= made.endpoints(item, way.end, only_local=False):
        return Why.DUPLICATES
    return None


def health_differences(made: Scene, theirs: Served, ours: Served) -> Iterator[Difference]:
    """The status of each health check that differs."""
    owners = {it.service["spec"].get("healthCheckNodePort"): it for it in made.items}
    for port, status in theirs.health.items():
        if status != ours.health[port]:
            yield Difference(owners[port[1]], port, status, ours.health[port], None)


@pytest.mark.parametrize("part", range(-(-COUNT // OF_A_PART)))
async def test_random_services_are_served_as_by_the_real_kube_proxy(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    chosen = seed() if is_thorough() or "KROUTE_LAB_SEED" in os.environ else ORDINARY_SEED
    backend = random.Random(f"{chosen} {part}").choice((NFTABLES, IPTABLES))
    async with scene() as made:
        made.fill(RandomServices(f"{chosen} {part}", made.pods), min(OF_A_PART, COUNT))
        ours = await made.kroute(backend)
        ipvs, nftables = await made.kube_proxy("ipvs", ours), await made.kube_proxy("nftables", ours)
        found = [*ipvs_differences(made, ipvs, ours), *answer_differences(made, nftables, ours)]
        found += [*health_differences(made, ipvs, ours), *health_differences(made, nftables, ours)]
    known = Counter(it.why.name for it in found if it.why)
    record_property(
        "measured",
        f"seed {chosen}, part {part}, {backend}: {len(made.items)} Services ({made.refused} more were refused), "
        f"{len(ipvs.table)} virtual servers, {len(nftables.answers)} ways of packets; "
        f"differences with a reason: {dict(known)}",
    )
    unexplained: defaultdict[str, list[Difference]] = defaultdict(list)
    for difference in found:
        if difference.why is None:
            unexplained[difference.item.name].append(difference)
    texts = ["\n".join(map(str, (each[0].item, *each))) for each in unexplained.values()]
    again = f"KROUTE_LAB_SEED={chosen} KROUTE_LAB_RANDOM={COUNT}"
    assert not texts, f"{again}, part {part}, {backend}:\n" + "\n\n".join(texts)
