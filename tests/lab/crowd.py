"""Many clients behind one host: each call comes from an address or port of its own, and IPVS says where it went."""

import asyncio
import contextlib
import ipaddress
import itertools
import socket
from collections.abc import Iterable, Iterator

from tests.lab.cluster import Node, Pod
from tests.lab.flows import End, ipvs_connections
from tests.lab.patience import patience
from tests.lab.servers import NO_LINGER

NETWORKS = ("198.18.0.0/20", "fd00:198:18::/116")
"""The addresses of the clients: RFC 2544's benchmarks, and an own network. 4,096 each."""
AT_ONCE = 100
_IPV6_FREEBIND = 78
"""linux/in6.h: bind to an address that no interface has. IPv4 has no need of it, since a local route is enough."""

Targets = dict[End, str | None]
"""The real server that each client reached, as `ip:port`; None if it was refused."""


def clients(family: str, count: int) -> Iterator[tuple[str, int]]:
    """The first addresses of the family's network, each with a port that the kernel chooses."""
    network = ipaddress.ip_network(NETWORKS[family == "IPv6"])
    return ((str(address), 0) for address in itertools.islice(network, 1, count + 1))


@contextlib.contextmanager
def crowd(pod: Pod) -> Iterator[Pod]:
    """Let a pod have all addresses of the networks, for the length of a `with`."""
    try:
        for network, gateway in zip(NETWORKS, (pod.ip, pod.ip6), strict=True):
            pod.run("ip", "route", "replace", "local", network, "dev", "lo")
            pod.node.run("ip", "route", "replace", network, "via", gateway)
        yield pod
    finally:
        for network in NETWORKS:
            pod.run("ip", "route", "del", "local", network, "dev", "lo")
            pod.node.run("ip", "route", "del", network)


async def targets(pod: Pod, address: str, port: int, sources: Iterable[tuple[str, int]]) -> Targets:
    """Connect from each source over TCP, and return where the pod's node sent each; the connections are reset."""
    found: Targets = {}
    waiting = list(sources)
    while waiting:
        some, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        found |= await pod.traffic.run(_some_targets(pod, pod.node, End(address, port), some))
    return found


async def _some_targets(pod: Pod, node: Node, asked: End, sources: list[tuple[str, int]]) -> Targets:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(_socket(pod, asked.address, source)) for source in sources]
        opened = await asyncio.gather(*(_connect(it, asked) for it in made), return_exceptions=True)
        went = {it.client: f"{_host(it.real_server.address)}:{it.real_server.port}"
                for it in ipvs_connections(node.namespace) if it.asked == asked}  # fmt: skip
        found: Targets = {}
        for one, outcome in zip(made, opened, strict=True):
            client = End(*one.getsockname()[:2])
            if outcome is not None and not isinstance(outcome, ConnectionRefusedError):
                raise outcome
            found[client] = went[client] if outcome is None else None
    return found


def _socket(pod: Pod, address: str, source: tuple[str, int]) -> socket.socket:
    made = pod.namespace.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    if ":" in address:
        made.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
    made.bind(source)
    return made


async def _connect(made: socket.socket, asked: End) -> None:
    async with patience(30):
        await asyncio.get_running_loop().sock_connect(made, asked)


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
