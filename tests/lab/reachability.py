"""Which pods reach which: three namespaces of three pods on three nodes, all of which call each other at once.

The pods are those of Kubernetes' own tests of NetworkPolicies, x/a to z/c. Each serves TCP, UDP and SCTP on two ports,
and has a Service of its own. A call is a way: from a pod, to a pod's address or Service, in a family, by a protocol, to
a port. 1,944 ways are called in some seconds, since a call is a few system calls of this process: the kernel answers
those of TCP and SCTP alone, and a pod's answer to a datagram is its name. A policy drops packets, so a refused call has
no answer at all, and any error of a call is one of the test.

Every call has another source port than the calls before it. Those to Services have odd ones: IPVS takes the answer to a
call of a pod's address for one to its Service, if a call to that had the same source port (docs/kernel-facts.md).
"""

import contextlib
import errno
import itertools
import os
import resource
import select
import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from tests.lab import objects, policy_state
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.patience import Looks
from tests.lab.servers import NO_LINGER
from tests.lab.topology import NODES
from tests.unit.planning.policies import cluster

NAMESPACES, NAMES = ("x", "y", "z"), ("a", "b", "c")
PORTS = (80, 81)
PROTOCOLS = {
    "TCP": (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    "UDP": (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
    "SCTP": (socket.SOCK_STREAM, socket.IPPROTO_SCTP),
}
FAMILIES = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}
POD, SERVICE = "pod", "Service"
"""What a way calls: the pod's address, or the Service of the pod."""

PATIENCE = 5.0
"""Seconds for which what is expected is awaited. Two lost SYNs take 3 s."""
TURN = 0.05
_SOURCE_PORTS = range(33000, 61000, 2)
"""The even ones. A pod makes 108 calls of each kind at once, and none lasts in a node's tables for 100 times that."""
_FILES = 8192


class Home(NamedTuple):
    """Where a pod is, and its addresses."""

    node: str
    ip: str
    ip6: str

    def of(self, family: str) -> str:
        return self.ip6 if family == "IPv6" else self.ip


def _homes() -> dict[str, Home]:
    """The pods in the order in which they are made: each node has one of each namespace, and one of each name.

    Those after x/a to z/c are for tests in which pods come later.
    """
    nodes = list(NODES)
    places = {
        f"{namespace}/{name}": nodes[(row + column) % 3]
        for row, namespace in enumerate(NAMESPACES)
        for column, name in enumerate(NAMES)
    } | {"x/d": "node1", "y-2/a": "node2", "y-2/b": "node3", "w/a": "node1"}
    numbers, found = Counter[str](), {}
    for pod, node in places.items():
        number = 2 + numbers[node]
        numbers[node] += 1
        found[pod] = Home(node, NODES[node].pod_ip(number), NODES[node].pod_ip6(number))
    return found


HOMES = _homes()
PODS = [f"{namespace}/{name}" for namespace in NAMESPACES for name in NAMES]


class Way(NamedTuple):
    """A call from one pod to another one."""

    source: str
    target: str
    family: str
    by: str
    protocol: str
    port: int

    @property
    def packet(self) -> tuple[str, str, int, str]:
        """What policies see of it, whether it calls the pod or the Service: source, destination, port, protocol."""
        return HOMES[self.source].of(self.family), HOMES[self.target].of(self.family), self.port, self.protocol

    def __str__(self) -> str:
        return f"{self.source} > {self.target} {self.protocol} {self.port} ({self.family}, by the {self.by})"


def ways(
    pods: Collection[str] = PODS,
    by: Iterable[str] = (POD, SERVICE),
    protocols: Iterable[str] = tuple(PROTOCOLS),
    families: Iterable[str] = tuple(FAMILIES),
) -> list[Way]:
    """All calls among these pods."""
    return [Way(*way) for way in itertools.product(pods, pods, families, by, protocols, PORTS)]


def available() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The protocols that this kernel has, and the families."""
    protocols = [name for name, (kind, number) in PROTOCOLS.items() if _has(socket.AF_INET, kind, number)]
    families = [name for name, number in FAMILIES.items() if _has(number, socket.SOCK_DGRAM, socket.IPPROTO_UDP)]
    return tuple(protocols), tuple(families)


def _has(family: int, kind: int, protocol: int) -> bool:
    try:
        socket.socket(family, kind, protocol).close()
    except OSError as error:
        if error.errno not in {errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ESOCKTNOSUPPORT}:
            raise
        return False
    return True


class Matrix:
    """The pods of a cluster, with their servers, as those who call each other."""

    def __init__(self, nodes: Iterable[Node], pods: Mapping[str, Pod]) -> None:
        self._nodes = tuple(nodes)
        self._pods = pods
        self.protocols, self.families = available()
        self._addresses = {
            (pod, family, by): address for pod in pods for family, by, address in _addresses(pod, HOMES[pod])
        }
        self._source_ports = {(pod, by): itertools.cycle(_SOURCE_PORTS) for pod in pods for by in (POD, SERVICE)}
        self._listeners: list[socket.socket] = []
        self._datagrams: dict[int, tuple[socket.socket, str, str, int]] = {}
        """The UDP servers by descriptor, each with its pod, family and port."""
        _allow_files()
        for name in pods:
            self._serve(name)

    @classmethod
    async def build(cls, lab: Cluster, *nodes: str) -> Self:
        """Make the pods in a cluster without any, and their servers. `nodes` are those with policies; none: all."""
        pods = {}
        for name, home in HOMES.items():
            pods[name] = await lab.node(home.node).pod(name.replace("/", "-"))
            assert (pods[name].ip, pods[name].ip6) == home[1:]
        return cls([lab.node(name) for name in nodes or lab.nodes], pods)

    def services(self) -> list[Object]:
        """The Services of all pods, each with its endpoint."""
        ports = [objects.port(port_name(*each), each[1], each[0]) for each in itertools.product(self.protocols, PORTS)]
        found = []
        for pod, host in self._pods.items():
            name = pod.replace("/", "-")
            addresses = [self._addresses[pod, family, SERVICE] for family in self.families]
            found += [service(name, *addresses, ports=ports), *endpoint_slices(name, [host], ports)]
        return found

    def ways(self, pods: Collection[str] = PODS, by: Iterable[str] = (POD, SERVICE)) -> list[Way]:
        """All calls among these pods that this kernel can make."""
        return ways(pods, by, self.protocols, self.families)

    def close(self) -> None:
        for made in (*self._listeners, *(made for made, *_ in self._datagrams.values())):
            made.close()

    # ---- calls ---------------------------------------------------------------------------------------------------

    def call(self, tried: Collection[Way], passing: Collection[Way], refused: Collection[Way]) -> set[Way]:
        """Call on all of these ways at once; returns those on which there was an answer.

        Waits for answers on those that pass, and until groups have dropped as many packets as calls are refused. At
        first the nodes forget all connections, so that none of the calls is taken for a part of an earlier one.
        """
        for node in self._nodes:
            node.run("conntrack", "-F")
        self._forget_datagrams()
        dropped = self.dropped() + len(refused)
        with contextlib.closing(_Calls(self, tried)) as calls:
            return calls.answered(set(passing), dropped)

    def dropped(self) -> int:
        """How many packets all groups of the nodes have dropped."""
        return sum(policy_state.dropped(node, family) for node in self._nodes for family in self.families)

    @contextlib.contextmanager
    def spraying(self, pods: Collection[str] = PODS) -> Iterator[set[Way]]:
        """Send datagrams on all ways of UDP, again and again, for the length of a `with`.

        Yields the ways on which one has arrived. As nobody answers, each of them begins a connection, for conntrack.
        """
        self._forget_datagrams()
        arrived: set[Way] = set()
        is_over = threading.Event()
        sender = threading.Thread(target=self._spray, args=(pods, arrived, is_over), name="lab-spray")
        sender.start()
        try:
            yield arrived
        finally:
            is_over.set()
            sender.join()

    def _spray(self, pods: Collection[str], arrived: set[Way], is_over: threading.Event) -> None:
        with contextlib.ExitStack() as opened:
            senders = [
                (opened.enter_context(self.socket(pod, family, by, "UDP")), pod, family, by)
                for pod, family, by in itertools.product(pods, self.families, (POD, SERVICE))
            ]
            while not is_over.is_set():
                for sender, pod, family, by in senders:
                    for target, port in itertools.product(pods, PORTS):
                        sender.sendto(f"{pod} {by}".encode(), (self._addresses[target, family, by], port))
                self._take_datagrams(arrived)
                is_over.wait(TURN)
            self._take_datagrams(arrived)

    def _take_datagrams(self, arrived: set[Way]) -> None:
        for made, target, family, port in self._datagrams.values():
            for datagram, _ in received(made):
                source, by = datagram.decode().split()
                arrived.add(Way(source, target, family, by, "UDP", port))

    def _forget_datagrams(self) -> None:
        """Leave out those of earlier calls."""
        for made, *_ in self._datagrams.values():
            for _ in received(made):
                pass

    def socket(self, pod: str, family: str, by: str, protocol: str) -> socket.socket:
        """A socket in a pod, bound to its address, for a call to a pod's address or to a Service.

        An association of SCTP then has no other address.
        """
        made = self._pods[pod].namespace.socket(FAMILIES[family], *PROTOCOLS[protocol])
        made.bind((self._addresses[pod, family, POD], next(self._source_ports[pod, by]) + (by == SERVICE)))
        return made

    def address(self, way: Way) -> tuple[str, int]:
        """The address and port that a way calls."""
        return self._addresses[way.target, way.family, way.by], way.port

    # ---- servers -------------------------------------------------------------------------------------------------

    def _serve(self, pod: str) -> None:
        for family, protocol, port in itertools.product(self.families, self.protocols, PORTS):
            kind, number = PROTOCOLS[protocol]
            made = self._pods[pod].namespace.socket(FAMILIES[family], kind, number)
            made.bind((self._addresses[pod, family, POD], port))
            if kind == socket.SOCK_DGRAM:
                self._datagrams[made.fileno()] = made, pod, family, port
            else:
                made.listen(socket.SOMAXCONN)
                self._listeners.append(made)

    def watch_datagrams(self, poll: "select.epoll") -> None:
        """Have a poll tell of datagrams, for `answer_datagrams`."""
        for descriptor in self._datagrams:
            poll.register(descriptor, select.EPOLLIN)

    def answer_datagrams(self, descriptor: int) -> bool:
        """Answer the datagrams that wait at a descriptor; returns whether it is that of a server."""
        if descriptor not in self._datagrams:
            return False
        made, pod, _, _ = self._datagrams[descriptor]
        for _, client in received(made):
            made.sendto(pod.encode(), client)
        return True

    def forget_connections(self) -> None:
        """Close what the kernel has accepted."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # EAGAIN, or the association has ended
                while True:
                    listener.accept()[0].close()


class _Asker(NamedTuple):
    """A socket from which a pod sends datagrams, and the ways by which end it asks."""

    made: socket.socket
    ways: dict[tuple[str, int], Way]


class _Calls:
    """Calls that are made at once: a socket for each of TCP and SCTP, and one for all datagrams of a pod."""

    def __init__(self, matrix: Matrix, tried: Collection[Way]) -> None:
        self._matrix = matrix
        self._poll = select.epoll()
        self._answered: set[Way] = set()
        self._errors: list[str] = []
        self._streams: dict[int, tuple[socket.socket, Way]] = {}
        self._askers: dict[tuple[str, str, str], _Asker] = {}
        """By the source, the family, and what is called."""
        matrix.watch_datagrams(self._poll)
        for way in tried:
            if way.protocol == "UDP":
                self._send(way)
            else:
                self._connect(way)

    def answered(self, expected: set[Way], dropped: int) -> set[Way]:
        patience = Looks(PATIENCE)
        while not patience.are_over():
            ready = self._poll.poll(TURN)
            for descriptor, _ in ready:
                if not self._matrix.answer_datagrams(descriptor):
                    self._look(descriptor)
            if not ready:
                if expected <= self._answered and self._matrix.dropped() >= dropped:
                    break
                self._send_again(expected)
        assert not self._errors, f"refused, but not by silence: {self._errors[:20]}"
        return self._answered

    def _connect(self, way: Way) -> None:
        made = self._matrix.socket(way.source, way.family, way.by, way.protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self._streams[made.fileno()] = made, way
        self._note(way, made.connect_ex(self._matrix.address(way)))
        self._poll.register(made.fileno(), select.EPOLLOUT | select.EPOLLONESHOT)

    def _send(self, way: Way) -> None:
        key = way.source, way.family, way.by
        if key not in self._askers:
            self._askers[key] = _Asker(self._matrix.socket(*key, "UDP"), {})
            self._poll.register(self._askers[key].made, select.EPOLLIN)
        end = self._matrix.address(way)
        self._askers[key].ways[end] = way
        self._askers[key].made.sendto(b"who are you?", end)

    def _send_again(self, expected: set[Way]) -> None:
        """Send the datagrams that have no answer yet once more, as TCP and SCTP do by themselves."""
        for way in expected - self._answered:
            if way.protocol == "UDP":
                self._send(way)

    def _look(self, descriptor: int) -> None:
        if descriptor in self._streams:
            made, way = self._streams[descriptor]
            self._note(way, made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            return
        asker = next(asker for asker in self._askers.values() if asker.made.fileno() == descriptor)
        for name, end in received(asker.made):
            way = asker.ways[end[:2]]
            self._answered.add(way)
            if name.decode() != way.target:
                self._errors.append(f"{way}: answered by {name.decode()}")

    def _note(self, way: Way, number: int) -> None:
        if number == 0:
            self._answered.add(way)
        elif number != errno.EINPROGRESS:
            self._errors.append(f"{way}: {os.strerror(number)}")

    def close(self) -> None:
        """End all calls; connections of TCP and SCTP are aborted, which the nodes forget soonest."""
        for made in (*(made for made, _ in self._streams.values()), *(asker.made for asker in self._askers.values())):
            made.close()
        self._poll.close()
        self._matrix.forget_connections()


def received(made: socket.socket) -> Iterator[tuple[bytes, Any]]:
    """The datagrams that wait at a socket, each with its sender."""
    with contextlib.suppress(BlockingIOError):
        while True:
            yield made.recvfrom(100)


def port_name(protocol: str, number: int) -> str:
    """The name of a pod's port, as in Kubernetes' own tests."""
    return f"serve-{number}-{protocol.lower()}"


def pod_object(pod: str, /, ports: Mapping[tuple[str, int], str] | None = None, **labels: str) -> Object:
    """The Pod object of a pod, with its name as the label `pod`. `ports` are the names of its ports."""
    namespace, name = pod.split("/")
    home = HOMES[pod]
    names = {each: port_name(*each) for each in itertools.product(PROTOCOLS, PORTS)} if ports is None else ports
    return cluster.pod(
        name,
        *(home.ip, home.ip6),
        namespace=namespace,
        on=home.node,
        ports=[cluster.port(port, number, protocol) for (protocol, number), port in names.items()],
        **{"pod": name, **labels},
    )


def namespace_object(name: str, **labels: str) -> Object:
    """A Namespace object, with its name as the label `ns` and as the one that the API server adds."""
    return cluster.namespace(name, **{"ns": name, "kubernetes.io/metadata.name": name, **labels})


def _addresses(pod: str, home: Home) -> Iterator[tuple[str, str, str]]:
    """A pod's addresses, and those of its Service: family, which of the two, address."""
    number = 1 + list(HOMES).index(pod)
    yield from (("IPv4", POD, home.ip), ("IPv6", POD, home.ip6))
    yield from (("IPv4", SERVICE, f"10.254.3.{number}"), ("IPv6", SERVICE, f"fd00:10:254::3{number:02}"))


def _allow_files() -> None:
    """Let this process have a descriptor for every call."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, max(_FILES, hard)))
