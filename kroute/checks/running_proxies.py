"""Find out which other service proxies are at work on this node: by their ports, their links and their processes.

None of this needs a privilege. A port of the node is visible to an agent in the node's network namespace; a process
only where the agent shares the node's process namespace (`hostPID`). What a proxy that has ended left in the kernel is
no sign of life.

Some programs serve Services only if they are configured so: kube-router, Cilium and Antrea. Of these a port alone is no
proof, and the caller decides by what the cluster says (`kroute.checks.cluster_proxies`).

Sources: kubernetes cmd/kube-proxy/app/server.go and pkg/proxy/healthcheck/proxy_health.go; kube-router
pkg/healthcheck/health_controller.go; cilium daemon (agent-health-port); antrea pkg/apis/ports.go; calico felix/config
(HealthPort) and felix/dataplane/linux (names of the eBPF links).
"""

import asyncio
import fcntl
import socket
import struct
from collections.abc import Collection, Iterator, Set
from pathlib import Path, PurePath
from typing import NamedTuple

from kroute.base.backoff import exhaustion
from kroute.checks.other_proxies import KUBE_PROXY, KUBE_ROUTER, OTHER_PROXIES
from kroute.kernel.netlink.rtnetlink import interface_index
from kroute.kernel.netlink.socket_diag import listening_ports

CILIUM, ANTREA, CALICO = "Cilium", "Antrea", "Calico's eBPF data plane"
UNKNOWN = "another service proxy"

SIOCGIFFLAGS, IFF_UP = 0x8913, 1
_INTERFACE_FLAGS = struct.Struct("=16sh")
"""The beginning of `struct ifreq`: name, flags."""

ANSWERS_WITHIN = 2.0
"""Seconds."""
LONGEST_ANSWER = 4096
"""Bytes of an answer that are read."""
LOOPBACK = ("127.0.0.1", "::1")
ROUTER_ONLY = frozenset({"--run-service-proxy=false", "--run-service-proxy=0", "--run-service-proxy=f"})
"""Arguments of a kube-router that goes on as a router or firewall, and does not serve Services."""
NO_FIREWALL = frozenset({"--run-firewall=false", "--run-firewall=0", "--run-firewall=f"})
"""Arguments of a kube-router that does not enforce network policies."""
NO_ROUTER = frozenset({"--run-router=false", "--run-router=0", "--run-router=f"})
"""Arguments of a kube-router that does not connect pods."""


class Sign(NamedTuple):
    """A sign that a proxy is at work. `why` is a clause. `is_proof`: the sign alone shows that it serves Services.

    Not `is_at_work`: kroute waits for the proxy all the same, and `why` says what for. `has_policies`: it is no proxy
    but enforces network policies.
    """

    proxy: str
    why: str
    is_proof: bool = True
    is_at_work: bool = True
    has_policies: bool = False

    def __str__(self) -> str:
        if self.has_policies:
            return f"{self.proxy} enforces network policies on this node ({self.why})"
        return f"{self.proxy} is at work on this node ({self.why})" if self.is_at_work else f"{self.proxy}: {self.why}"


class Listener(NamedTuple):
    """A TCP port of a proxy. `links`: one of these must exist, too. `path`: the HTTP request that is answered."""

    proxy: str
    port: int
    what: str
    path: str = ""
    is_proof: bool = True
    links: tuple[str, ...] = ()


LISTENERS = (
    Listener(KUBE_PROXY, 10249, "metrics port", "/proxyMode"),
    Listener(KUBE_PROXY, 10256, "health port", "/healthz"),
    Listener(KUBE_ROUTER, 20244, "health port", is_proof=False),
    Listener(CILIUM, 9879, "health port", is_proof=False),
    Listener(ANTREA, 10350, "API port", is_proof=False, links=("antrea-gw0",)),
    Listener(CALICO, 9099, "health port", links=("bpfin.cali", "bpfnatin")),
)
MODES = ("iptables", "ipvs", "nftables", "userspace", "kernelspace")
"""What kube-proxy answers to `/proxyMode`."""


async def signs_of_life(*, ours: Collection[int] = (), processes: Path | None = Path("/proc")) -> list[Sign]:
    """The signs of every other proxy, proofs first. Ports in `ours` are this process's own, and are left out.

    `processes` is where procfs is; None: processes are not looked at. An answer says more than a process, so it is
    before that.
    """
    of_processes, routers = _by_processes(processes) if processes is not None else ([], set())
    signs: list[Sign] = []
    open_ports = listening_ports()  # None: not known
    candidates = [listener for listener in LISTENERS if open_ports is None or listener.port in open_ports]
    for listener in candidates if candidates and _is_loopback_up() else ():
        is_without_link = listener.links and not any(map(interface_index, listener.links))
        if listener.proxy in routers or listener.port in ours or is_without_link:
            continue
        for host in LOOPBACK:
            if await listens(host, listener.port):
                signs += await _signs(host, listener)
                break
    return sorted([*signs, *of_processes], key=lambda sign: not sign.is_proof)


async def listens(host: str, port: int) -> bool:
    """Whether a socket listens there. One whose queue is full does not answer, and counts.

    Raises OSError if the resources for the question are exhausted.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            async with asyncio.timeout(ANSWERS_WITHIN):
                await asyncio.get_running_loop().sock_connect(probe, (host, port))
    except TimeoutError:
        return True
    except OSError as error:
        if exhaustion(error) is not None:
            raise
        return False
    return True


def _is_loopback_up() -> bool:
    """Whether the node reaches its own ports (SIOCGIFFLAGS of netdevice(7)): without, each would seem to be busy."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question:
        try:
            request = fcntl.ioctl(question, SIOCGIFFLAGS, _INTERFACE_FLAGS.pack(b"lo", 0))
        except OSError:
            return False
    return bool(_INTERFACE_FLAGS.unpack_from(request)[1] & IFF_UP)


async def _signs(host: str, listener: Listener) -> list[Sign]:
    """What the program at the port says it is; nothing if it is none of the proxies."""
    port = f"its {listener.what} {listener.port}"
    if not listener.path:
        return [Sign(listener.proxy, f"{port} is open", listener.is_proof)]
    answer = await _answer(host, listener)
    if answer is None:
        return [Sign(listener.proxy, f"{port} is open, and nothing answers there in time")]
    status, _, rest = answer.partition(b"\r\n")
    body = rest.partition(b"\r\n\r\n")[2].decode(errors="replace").strip()
    if not status.startswith(b"HTTP/") or b" 404 " in status:
        body = ""
    if listener.path == "/proxyMode":
        return [Sign(listener.proxy, f"{port} answers: mode {body}")] if body in MODES else []
    if '"lastUpdated"' in body:
        return [Sign(listener.proxy, f"{port} answers")]
    return [Sign(UNKNOWN, f"something holds the health port of service proxies, {listener.port}")]


async def _answer(host: str, listener: Listener) -> bytes | None:
    """The beginning of the answer, empty if the connection breaks; None if the answer does not come in time."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            reader, writer = await asyncio.open_connection(host, listener.port)
            writer.write(f"GET {listener.path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            return await reader.readexactly(LONGEST_ANSWER)
    except asyncio.IncompleteReadError as error:  # the whole answer
        return error.partial
    except TimeoutError:
        return None
    except OSError:
        return b""
    finally:
        if writer is not None:
            writer.close()


def _by_processes(processes: Path) -> tuple[list[Sign], set[str]]:
    """The signs, and the programs that run here and leave Services alone, so that their ports are no sign."""
    signs, idle = [], set()
    for pid, name, arguments in _command_lines(processes):
        if name in OTHER_PROXIES and ROUTER_ONLY & set(arguments):
            idle.add(name)
        elif name in OTHER_PROXIES:
            signs.append(Sign(name, f"process {pid}"))
    return signs, idle - {sign.proxy for sign in signs}


def firewall_at_work(processes: Path = Path("/proc")) -> str:
    """Why kube-router's firewall, or that of K3s, counts as running, as a clause; "" if it has ended.

    A process says what it does. Without one that can be seen, an open port counts, also a router's without firewall.
    """
    from kroute.checks.policy_enforcers import KUBE_ROUTERS_FIREWALL, open_port  # noqa: PLC0415  few nodes have policies

    process = _kube_router_without(NO_FIREWALL, processes)
    port = open_port(KUBE_ROUTERS_FIREWALL) if process is None else process
    return port if port is not None else "its ports cannot be looked at"


def routing_at_work(processes: Path = Path("/proc")) -> str:
    """The same of kube-router's routing."""
    process = _kube_router_without(NO_ROUTER, processes)
    if process is not None:
        return process
    [port] = [listener.port for listener in LISTENERS if listener.proxy == KUBE_ROUTER]
    listening = listening_ports()
    if listening is None:
        return "its port cannot be looked at"
    return f"kube-router's health port {port} is open" if port in listening else ""


def _kube_router_without(switched_off: Set[str], processes: Path) -> str | None:
    """The process of a kube-router that has none of these arguments, "" without one; None: no kube-router is seen."""
    routers = [(pid, set(arguments)) for pid, name, arguments in _command_lines(processes) if name == KUBE_ROUTER]
    if not routers:
        return None
    return next((f"process {pid}" for pid, arguments in routers if not arguments & switched_off), "")


def _command_lines(processes: Path) -> Iterator[tuple[str, str, list[str]]]:
    for directory in processes.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            program, *arguments = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # the process has ended
        yield directory.name, PurePath(program).name, arguments
