"""A UDP client that keeps its socket, and thus its source port, as a DNS resolver or a telemetry sender does."""

import asyncio
import contextlib
import socket
from typing import Self

import msgspec

from tests.lab.calls import PATIENCE
from tests.lab.flows import End
from tests.lab.hosts import Host
from tests.lab.patience import patience
from tests.lab.servers import Answer


class UdpClient:
    """Sends datagrams to one address from one socket: `with UdpClient(host, address, port) as client`.

    A datagram that is not answered within `patience` seconds counts as lost.
    """

    def __init__(self, host: Host, address: str, port: int, *, patience: float = PATIENCE) -> None:
        self.host = host
        self.asked = End(address, port)
        self._patience = patience
        self._socket = host.namespace.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("", 0))

    def __repr__(self) -> str:
        return f"<UdpClient {self.host.name}:{self.port} to {self.asked}>"

    @property
    def port(self) -> int:
        """The source port."""
        return int(self._socket.getsockname()[1])

    async def ask(self, payload: bytes = b"who are you?") -> Answer:
        """Send a datagram and return its answer.

        Raises:
            ConnectionRefusedError: the answer was an ICMP port unreachable, to this datagram or to the one before.
            OSError: the datagram could not be sent, or another ICMP error came.
            TimeoutError: nothing came within the patience.
        """
        loop = asyncio.get_running_loop()
        with contextlib.suppress(BlockingIOError):  # late answers to earlier datagrams
            while True:
                self._socket.recv(2048)
        await loop.sock_connect(self._socket, self.asked)
        await loop.sock_sendall(self._socket, payload)
        async with patience(self._patience):
            return msgspec.json.decode(await loop.sock_recv(self._socket, 65535), type=Answer)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
