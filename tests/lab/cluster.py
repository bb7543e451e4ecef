"""A cluster in network namespaces, as the tests describe it.

    async with Cluster.start() as cluster:
        web = await cluster.node("node1").pod("web-1", http=8080)
        answer = await cluster.client.http("192.168.123.250", 30080)
        assert answer.host == "web-1"

Every node is a namespace with IPVS, conntrack, rules, sets and sysctls of its own. The nodes and the client are on one
wire; each node has a bridge with its pods behind it, and routes to the pods of the others, as a CNI plugin lays them.
"""

import contextlib
import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import ClassVar, Self

from tests.lab.api_server import ApiServer
from tests.lab.hosts import Host
from tests.lab.kroute_process import KrouteProcess
from tests.lab.namespaces import Namespace
from tests.lab.topology import CLIENT, NODES, Place
from tests.lab.traffic import Traffic

_FROM_THE_START = {
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
    "net.ipv6.conf.all.accept_dad": 0,
    "net.ipv6.conf.default.accept_dad": 0,
    "net.ipv6.conf.default.accept_ra": 0,
    "net.ipv4.icmp_ratelimit": 0,
    "net.ipv6.icmp.ratelimit": 0,
}
"""Set in every namespace before it has interfaces. There is no wait for duplicate addresses, nothing is dropped as
martian, and no refusal is rate-limited: tests connect more often than once a second, the kernel's limit."""

_ROUTER = {"net.ipv4.ip_forward": 1, "net.ipv6.conf.all.forwarding": 1}
"""The sysctls that a CNI plugin sets on a node, so that pods reach each other."""


class Pod(Host):
    """A pod: `ip`, `ip6`, `name`, its `node`, and the `interface` of the node that it is wired to."""

    def __init__(self, name: str, node: "Node", interface: str, namespace: Namespace, ip: str, ip6: str) -> None:
        super().__init__(name, namespace, node.traffic, ip, ip6)
        self.node = node
        self.interface = interface


class Node(Host):
    """A node of the cluster, with its `pods` and its kroute processes."""

    def __init__(self, name: str, place: Place, cluster: "Cluster", namespace: Namespace) -> None:
        super().__init__(name, namespace, cluster.traffic, place.ip, place.ip6)
        self.state_dir = cluster.directory / name / "state"
        self.state_dir.mkdir(parents=True)
        self._place = place
        self._cluster = cluster
        self._numbers = itertools.count(2)
        self.pods: list[Pod] = []
        self.processes: list[KrouteProcess] = []

    async def pod(self, name: str, *, http: int | None = None, udp: int | None = None, sctp: int | None = None) -> Pod:
        """Add a pod with servers on the given ports."""
        number = next(self._numbers)
        ip, ip6 = self._place.pod_ip(number), self._place.pod_ip6(number)
        namespace = self._cluster.namespace(name)
        interface = f"veth{number}"
        self.namespace.ip(
            f"link add {interface} type veth peer name eth0 netns {namespace.name}\n"
            f"link set {interface} master cbr0 up\nlink set {interface} type bridge_slave hairpin on\n"
        )
        namespace.ip(
            f"link set lo up\naddress add {ip}/24 dev eth0\naddress add {ip6}/64 dev eth0 nodad\nlink set eth0 up\n"
            f"route add default via {self._place.pod_ip(1)}\nroute add default via {self._place.pod_ip6(1)}\n"
        )
        pod = Pod(name, self, interface, namespace, ip, ip6)
        self.pods.append(pod)
        await pod.serve(http=http, udp=udp, sctp=sctp)
        return pod

    def remove_pod(self, pod: Pod) -> None:
        """Remove a pod as a crash does: its packets are lost, and no connection is closed in order."""
        self.pods.remove(pod)
        # The kernel removes a namespace's interfaces some time after its name. Until then it would refuse connections.
        self.namespace.ip(f"link delete {pod.interface}\n")
        pod.close()

    async def kroute(
        self,
        *argv: str,
        environment: Mapping[str, str] | None = None,
        fork: bool = True,
        under: tuple[str, ...] = (),
    ) -> KrouteProcess:
        """Start `kroute ARGV...` as a process in this node. `--state-dir` is added with the node's own.

        The process is forked from one that has kroute imported. Without `fork` it is a new `python -m kroute`, which
        takes seconds longer and is otherwise the same; it may be started `under` another program, strace for example.
        """
        process = await KrouteProcess.start(
            [*argv, "--state-dir", str(self.state_dir)],
            namespace=self.namespace,
            state_dir=self.state_dir,
            log=self.state_dir.parent / f"kroute-{len(self.processes) + 1}.log",
            environment=environment or {},
            fork=fork,
            under=under,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End kroute, the pods and the node."""
        for process in self.processes:
            process.close()
        for pod in self.pods:
            pod.close()
        super().close()


class Cluster:
    """Nodes and a client on one wire.

    `nodes` are by name. `client` is outside of the cluster. `directory` is for temporary files. `wire` is the namespace
    with the bridge `wire`, which has a port for each host, named after it. Nodes that are not `connected` have neither
    bridges for pods nor routes to those of others.
    """

    alive: ClassVar[set["Cluster"]] = set()
    """The clusters that exist now."""

    def __init__(
        self,
        names: tuple[str, ...] = tuple(NODES),
        *,
        places: Mapping[str, Place] = NODES,
        client: Place = CLIENT,
        connected: bool = True,
    ) -> None:
        """Build a cluster of the nodes `names`. It is complete when this returns."""
        self._connected = connected
        self.traffic = Traffic()
        self.directory = Path(tempfile.mkdtemp(prefix="kroute-lab-"))
        self.prefix = f"kl-{os.getpid()}-{secrets.token_hex(2)}"
        self.nodes: dict[str, Node] = {}
        self._hosts: list[Host] = []
        self.api_server: ApiServer | None = None
        """The one that `tests/lab/feed.py` has started."""
        self.wire = self.namespace("wire")
        try:
            self.wire.ip("link add wire type bridge mcast_snooping 0\nlink set wire up\n")
            self.nodes = self._make_nodes({name: places[name] for name in names})
            self.client = self.host("client", client)
        except BaseException:
            self.close()
            raise
        self.alive.add(self)

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, *names: str) -> AsyncIterator[Self]:
        """A cluster of all three nodes, or of those in `names`, for the length of an `async with`."""
        cluster = cls(names or tuple(NODES))
        try:
            yield cluster
        finally:
            cluster.close()

    def node(self, name: str) -> Node:
        """Return the node `name`."""
        return self.nodes[name]

    def host(self, name: str, place: Place) -> Host:
        """Add a host to the wire that is not in the cluster and has no route into it."""
        host = Host(name, self.namespace(name), self.traffic, place.ip, place.ip6)
        self._hosts.append(host)
        self._plug_in(host)
        host.namespace.ip(_on_the_wire(place))
        return host

    def remove_host(self, host: Host) -> None:
        """Remove a host that `host` has added, and its port of the wire."""
        self._hosts.remove(host)
        self.wire.ip(f"link delete {host.name}\n")
        host.close()

    @property
    def host_names(self) -> list[str]:
        """The names of all hosts on the wire."""
        return [host.name for host in self._hosts]

    def namespace(self, name: str) -> Namespace:
        """Create a namespace. `ip netns` knows it as kl-PID-RANDOM-NAME."""
        namespace = Namespace(f"{self.prefix}-{name}")
        for sysctl, value in _FROM_THE_START.items():
            namespace.sysctl(sysctl, value)
        return namespace

    def close(self) -> None:
        """Remove everything."""
        self.alive.discard(self)
        if self.api_server is not None:
            self.api_server.stop()
        for host in self._hosts:
            host.close()
        self.wire.delete()
        self.traffic.close()
        shutil.rmtree(self.directory)

    def _make_nodes(self, places: Mapping[str, Place]) -> dict[str, Node]:
        """Connect the nodes to the wire, each with a bridge for its pods and routes to the pods of the other nodes."""
        nodes = {name: Node(name, place, self, self.namespace(name)) for name, place in places.items()}
        self._hosts += nodes.values()
        self._plug_in(*nodes.values())
        for name, node in nodes.items():
            others = [place for other, place in places.items() if other != name]
            pods = _pod_network(places[name], others) if self._connected else ""
            node.namespace.ip(_on_the_wire(places[name]) + pods)
            for sysctl, value in _ROUTER.items():
                node.sysctl(sysctl, value)
        return nodes

    def _plug_in(self, *hosts: Host) -> None:
        """Give each host an eth0 whose other end is a port of the wire."""
        self.wire.ip(
            "".join(
                f"link add {host.name} type veth peer name eth0 netns {host.namespace.name}\n"
                f"link set {host.name} master wire up\n"
                for host in hosts
            )
        )


def _on_the_wire(place: Place) -> str:
    """Return the `ip` commands that configure a host at its place."""
    return (
        "link set lo up\n"
        f"address add {place.ip}/24 broadcast + dev eth0\n"
        f"address add {place.ip6}/64 dev eth0 nodad\n"
        "link set eth0 up\n"
    )


def _pod_network(here: Place, others: list[Place]) -> str:
    """Return the `ip` commands for a node's bridge for pods, and its routes to the pods of the other nodes."""
    routes = [
        f"route add {network} via {gateway}\n"
        for other in others
        for network, gateway in zip(other.pod_networks, (other.ip, other.ip6), strict=True)
    ]
    # A bridge without its own MAC address takes that of a port. When that port is removed, the address changes, and its
    # pods' packets are lost.
    return (
        f"link add cbr0 address 02:00:00:00:00:{here.pods:02x} type bridge mcast_snooping 0\n"
        f"address add {here.pod_ip(1)}/24 broadcast + dev cbr0\n"
        f"address add {here.pod_ip6(1)}/64 dev cbr0 nodad\n"
        "link set cbr0 up\n" + "".join(routes)
    )
