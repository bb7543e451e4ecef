"""`kroute director` on machines on the nodes' wire, outside of the cluster."""

import asyncio
import contextlib
import socket
import struct
from pathlib import Path
from typing import Self

from tests.lab.cluster import Cluster
from tests.lab.hosts import Host
from tests.lab.kroute_process import KrouteProcess
from tests.lab.topology import Place

_ETH_P_ALL = 3


class DirectorMachine:
    """A machine for a director. `process` is the newest one on it."""

    def __init__(self, cluster: Cluster, name: str, last: int, kubeconfig: Path) -> None:
        self.name = name
        self.host: Host = cluster.host(name, Place(last))
        self.state_dir = cluster.directory / name / "state"
        self.state_dir.mkdir(parents=True)
        self.process: KrouteProcess | None = None
        self._wire = cluster.wire
        self._kubeconfig = kubeconfig
        self._runs = 0

    async def start(self, *flags: str, wait: bool = True) -> KrouteProcess:
        """Start a director. With `wait`, return when it has its virtual servers."""
        arguments = (
            "director",
            "--kubeconfig",
            str(self._kubeconfig),
            "--vip-interface",
            "eth0",
            "--identity",
            self.name,
        )
        self.process = await self.run(*arguments, "--log-level", "debug", *flags)
        if wait:
            await self.process.ready()
        return self.process

    async def cleanup(self) -> str:
        """Run `kroute cleanup`. Returns its output."""
        cleanup = await self.run("cleanup")
        assert await cleanup.wait() == 0, cleanup.tail()
        return cleanup.log.read_text()

    async def run(self, *arguments: str) -> KrouteProcess:
        """Start `kroute ARGUMENTS...` on the machine."""
        self._runs += 1
        return await KrouteProcess.start(
            [*arguments, "--state-dir", str(self.state_dir)],
            namespace=self.host.namespace,
            state_dir=self.state_dir,
            log=self.state_dir.parent / f"kroute-{self._runs}.log",
            environment={},
        )

    def has(self, address: str) -> bool:
        """Whether the machine has the address on its interface to the wire."""
        return any(each.split("/")[0] == address for each in self.host.addresses("eth0"))

    def unplug(self) -> None:
        """Disconnect the machine from the wire, without notifying it."""
        self._wire.ip(f"link set {self.name} nomaster\n")

    def plug_in(self) -> None:
        """Connect the machine to the wire again, if it is not."""
        self._wire.ip(f"link set {self.name} master wire\n")

    def mac(self) -> str:
        """The MAC address of the machine on the wire."""
        words = self.host.run("ip", "-o", "link", "show", "eth0").split()
        return words[words.index("link/ether") + 1]

    def close(self) -> None:
        """End the processes that still run."""
        if self.process is not None:
            self.process.close()


class Capture:
    """Captures what a host's interface on the wire receives, for the length of a `with`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.frames: list[bytes] = []

    def __enter__(self) -> Self:
        self._socket = self._host.namespace.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._socket.bind(("eth0", _ETH_P_ALL))
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        """Send a frame to the wire."""
        self._socket.send(frame)

    def received(self) -> list[bytes]:
        """Every frame received so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, (_, _, kind, _, _) = self._socket.recvfrom(65536)
                if kind != socket.PACKET_OUTGOING:
                    self.frames.append(frame)
        return self.frames

    def packets(self, *, source: str = "", destination: str = "") -> list[bytes]:
        """The received IP packets with this source, destination, or both."""
        found = self.received()
        for address, at in ((source, 0), (destination, 1)):
            if address:
                packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
                kind, first = (b"\x86\xdd", 22) if ":" in address else (b"\x08\x00", 26)
                start = first + at * len(packed)
                found = [it for it in found if it[12:14] == kind and it[start : start + len(packed)] == packed]
        return found


async def who_has(host: Host, address: str, within: float = 1.0) -> set[str]:
    """The MAC addresses that reply to an ARP request of this host for the address."""
    with Capture(host) as capture:
        mac = host.namespace.run("ip", "-o", "link", "show", "eth0").split("link/ether ")[1].split()[0]
        own = bytes.fromhex(mac.replace(":", ""))
        sender, target = socket.inet_aton(host.ip), socket.inet_aton(address)
        request = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, own, sender, bytes(6), target)
        capture.send(b"\xff" * 6 + own + b"\x08\x06" + request)
        await asyncio.sleep(within)
        answers = [it for it in capture.received() if it[12:14] == b"\x08\x06" and it[20:22] == b"\x00\x02"]
    return {it[22:28].hex(":") for it in answers if it[28:32] == target}
