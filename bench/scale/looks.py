"""What the bench asks a node's kernel while a proxy works: cheap questions, which disturb little."""

import asyncio
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.phases.lengths import BenchError
from bench.workload import PORT, TARGET_PORT
from kroute.kernel.ipvs.outlines import OutlineReader, parse_outline, read_real_servers
from kroute.kernel.nftables.messages import NFNLGRP_NFTABLES
from tests.lab.namespaces import enter

_NETLINK_NETFILTER = 12
_POLL = 0.004
_SYNC_POLL = 0.5
_ARRIVES_WITHIN = 0.001
_IN_A_ROW = 3
_BUFFER = 1 << 24
_LAST_SYNC = re.compile(r'^kubeproxy_sync_proxy_rules_last_timestamp_seconds\{ip_family="IPv4"\} (\S+)$', re.MULTILINE)
_SERVICE = re.compile(r"\tchain service-[A-Z0-9]+-(\S+)/tcp/\S* \{\n(.*?)\n\t\}", re.DOTALL)
_ENDPOINT = re.compile(r" : ([0-9.]+) \. [0-9]+")


async def real_server(vip: str, address: str, within: float) -> float:
    """Wait until a virtual server has this real server, which takes new connections. Returns the Unix time."""
    key, wanted = (socket.IPPROTO_TCP, vip, PORT), (address, TARGET_PORT)
    async with asyncio.timeout(within):
        while (state := read_real_servers([key])[key].get(wanted)) is None or not state.weight:  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
    return time.time()


async def service_chain(name: str, within: float) -> float:
    """Wait until kube-proxy commits a change of the chain of a Service, NAMESPACE/NAME. Returns the Unix time."""
    wanted = f"-{name}/tcp/".encode()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as events:
        events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        events.bind((0, 0))  # one without an address gets no events
        events.setsockopt(270, 1, NFNLGRP_NFTABLES)  # SOL_NETLINK, NETLINK_ADD_MEMBERSHIP
        events.setblocking(False)
        async with asyncio.timeout(within):
            while wanted not in await asyncio.get_running_loop().sock_recv(events, _BUFFER):
                pass
    return time.time()


async def all_real_servers(servers: int, real_servers: int, within: float) -> float:
    """Wait until there are so many virtual and real servers of IPv4. Returns the Unix time."""
    reader = OutlineReader()
    async with asyncio.timeout(within):
        while True:
            counts = [parse_outline(it)[1] for it in reader.read().parsed().values()]
            if len(counts) >= servers and sum(counts) >= real_servers:
                return time.time()
            await asyncio.sleep(_SYNC_POLL)


async def first_sync(port: int, within: float) -> float:
    """Wait until kube-proxy says in its metrics that it has written everything once. Returns the Unix time of that."""
    async with asyncio.timeout(within):
        while True:
            found = _LAST_SYNC.search(await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/metrics"))
            if found and float(found[1]):
                return float(found[1])
            await asyncio.sleep(_SYNC_POLL)


async def datagrams(source: Sequence[str], destination: Sequence[str], passes: bool, within: float) -> float:
    """Send datagrams until some in a row pass, or do not. Returns the Unix time at which the first of these was sent.

    Each end is the path of a network namespace, and an address in it. Nobody answers, so each begins a connection.
    """
    agreeing: list[float] = []
    with _datagram_socket(*source) as sender, _datagram_socket(*destination) as receiver:
        async with asyncio.timeout(within):
            while len(agreeing) < _IN_A_ROW:
                sent = time.time()
                sender.sendto(b"", receiver.getsockname())
                await asyncio.sleep(_ARRIVES_WITHIN)
                agreeing = [*agreeing, sent] if _has_come(receiver) is passes else []
    return agreeing[0]


def nft_differences(expected: Mapping[str, Sequence[str]]) -> int:
    """How many of these Services have other endpoints than expected in kube-proxy's table. Keys are NAMESPACE/NAME."""
    command = ["nft", "list", "table", "ip", "kube-proxy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr}")
    found = {name: set(_ENDPOINT.findall(rules)) for name, rules in _SERVICE.findall(done.stdout)}
    return sum(found.get(name) != set(addresses) for name, addresses in expected.items())


def _datagram_socket(namespace: str, address: str) -> socket.socket:
    with Path("/proc/thread-self/ns/net").open() as home, Path(namespace).open() as place:
        enter(place.fileno())
        try:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        finally:
            enter(home.fileno())
    made.setblocking(False)
    made.bind((address, TARGET_PORT))
    return made


def _has_come(receiver: socket.socket) -> bool:
    try:
        receiver.recv(1)
    except BlockingIOError:
        return False
    return True


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return ""
