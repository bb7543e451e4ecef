"""Find out whether the other proxy still runs on this node, by its process and its ports.

Two running proxies would undo each other's work. The process is visible only among the node's processes (`hostPID`).
The ports are visible in the node's network namespace. They are evidence only while no kroute agent uses them.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

from kroute.checks.known_proxies import KUBE_PROXY, KUBE_ROUTER, OtherProxy

ANSWERS_WITHIN = 2.0
ROUTER_ONLY = frozenset({"--run-service-proxy=false", "--run-service-proxy=0", "--run-service-proxy=f"})
"""Arguments of a kube-router that goes on as a router or firewall, and does not serve Services."""


class Listener(NamedTuple):
    """An HTTP port of a proxy, which answers while the proxy runs."""

    port: int
    path: str
    what: str


LISTENERS = {
    KUBE_PROXY: (Listener(10249, "/proxyMode", "metrics port"), Listener(10256, "/healthz", "health port")),
    KUBE_ROUTER: (Listener(20244, "/healthz", "health port"),),
}


async def signs_of_life(proxy: OtherProxy, *, look_at_ports: bool, processes: Path = Path("/proc")) -> list[str]:
    """Why the proxy seems to run, a few words each; empty if it does not."""
    running = list(_command_lines(proxy.name, processes))
    serving = [pid for pid, arguments in running if not ROUTER_ONLY & set(arguments)]
    signs = [f"process {pid}" for pid in serving]
    if look_at_ports and len(serving) == len(running):  # else the port may be that of a mere router
        signs += [f"something answers at its {it.what} {it.port}" for it in LISTENERS[proxy.name] if await _answers(it)]
    return signs


def _command_lines(name: str, processes: Path) -> Iterator[tuple[int, list[str]]]:
    for directory in processes.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            program, *arguments = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # the process has ended
        if PurePath(program).name == name:
            yield int(directory.name), arguments


async def _answers(listener: Listener) -> bool:
    """Whether something answers there with any status but 404, or is too slow, as a proxy on a busy node may be."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(f"GET {listener.path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            status = await reader.readline()
    except TimeoutError:
        return True  # where nobody listens, the kernel refuses at once
    except (OSError, ValueError):  # ValueError: a line that is longer than any status
        return False
    finally:
        if writer is not None:
            writer.close()
    return status.startswith(b"HTTP/") and b" 404 " not in status
