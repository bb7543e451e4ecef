"""The hosts of the lab's network: nodes, pods, and machines outside of the cluster."""

# ruff: noqa: ASYNC109 - how long a call is given is part of what a test says

import socket
from collections import Counter
from typing import Self

from tests.lab.calls import PATIENCE, Connection, Stream, ask_http, ask_status, ask_udp
from tests.lab.kernel_state import Snapshot, VirtualServer, addresses, local_routes, virtual_servers
from tests.lab.namespaces import COMMANDS_END_WITHIN, Namespace
from tests.lab.servers import Answer, Server
from tests.lab.traffic import Traffic

PINGS_END_WITHIN = "60"
"""Seconds in which a ping is answered, as busybox takes them: also in a machine that stands still meanwhile."""


class Host:
    """A namespace with addresses, from which calls are made and in which servers run.

    The servers of a host that `is_shared` by tests go on to its end.
    """

    is_shared = False

    def __init__(self, name: str, namespace: Namespace, traffic: Traffic, ip: str, ip6: str) -> None:
        self.name = name
        self.namespace = namespace
        self.ip = ip
        self.ip6 = ip6
        self.traffic = traffic
        self._server = Server(name, namespace)
        self._streams: list[Stream] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.ip}>"

    # ---- servers -------------------------------------------------------------------------------------------------

    async def serve(
        self, *, http: int | None = None, udp: int | None = None, sctp: int | None = None, address: str = "::"
    ) -> Self:
        """Start servers on the given ports, on every address of the host or on `address`."""
        if http is not None:
            await self.traffic.run(self._server.listen_http(http, address=address))
        if sctp is not None:
            await self.traffic.run(self._server.listen_http(sctp, socket.IPPROTO_SCTP, address))
        if udp is not None:
            await self.traffic.run(self._server.listen_udp(udp, address))
        return self

    async def stop_serving(self, *, reset: bool = False) -> None:
        """End the servers and their connections, in order or with a TCP reset."""
        assert not self.is_shared, f"{self} is for other tests, too: stop a host of your own"
        await self.traffic.run(self._server.close(reset=reset))

    # ---- calls ---------------------------------------------------------------------------------------------------

    async def http(
        self, address: str, port: int, *, source: tuple[str, int] | None = None, timeout: float = PATIENCE
    ) -> Answer:
        """Send one request over HTTP on a new TCP connection.

        `source` is (address, port or 0), else the kernel chooses.
        """
        return await self.traffic.run(
            ask_http(self.namespace, address, port, socket.IPPROTO_TCP, source, timeout),
        )

    async def sctp(
        self, address: str, port: int, *, source: tuple[str, int] | None = None, timeout: float = PATIENCE
    ) -> Answer:
        """Send one request over HTTP on a new SCTP association."""
        return await self.traffic.run(
            ask_http(self.namespace, address, port, socket.IPPROTO_SCTP, source, timeout),
        )

    async def udp(
        self,
        address: str,
        port: int,
        *,
        source: tuple[str, int] | None = None,
        timeout: float = PATIENCE,
        size: int = 0,
    ) -> Answer:
        """Send one datagram, of at least `size` bytes, and return the answer."""
        return await self.traffic.run(ask_udp(self.namespace, address, port, source, timeout, size))

    async def spread(self, address: str, port: int, calls: int, protocol: str = "http") -> Counter[str]:
        """Call `calls` times in sequence, by `http`, `udp` or `sctp`. Returns how often each host answered."""
        ask = {"http": self.http, "udp": self.udp, "sctp": self.sctp}[protocol]
        return Counter([(await ask(address, port)).host for _ in range(calls)])

    async def http_status(self, address: str, port: int, path: str = "/", timeout: float = PATIENCE) -> int:
        """Return the status of a server's answer to a GET."""
        return await self.traffic.run(ask_status(self.namespace, address, port, path, timeout))

    async def connect(self, address: str, port: int, protocol: int = socket.IPPROTO_TCP) -> "OpenConnection":
        """Open an HTTP connection for several requests."""
        opening = Connection.open(self.namespace, address, port, protocol)
        return OpenConnection(await self.traffic.run(opening), self.traffic)

    async def open_stream(
        self, address: str, port: int, *, interval: float = 0.1, patience: float = PATIENCE
    ) -> "OpenStream":
        """Open a connection that sends a byte to the server every `interval` seconds and expects its echo."""
        stream = await self.traffic.run(self._start_stream(address, port, interval, patience))
        self._streams.append(stream)
        return OpenStream(stream, self.traffic)

    async def _start_stream(self, address: str, port: int, interval: float, patience: float) -> Stream:
        connection = await Connection.open(self.namespace, address, port, socket.IPPROTO_TCP)
        await connection.request("/stream")
        return Stream(connection, interval, patience)

    @property
    def open_streams(self) -> int:
        """How many streams of this host still send."""
        return sum(not stream.is_over for stream in self._streams)

    # ---- the kernel ----------------------------------------------------------------------------------------------

    def run(self, *argv: str, stdin: str = "", timeout: float = COMMANDS_END_WITHIN) -> str:
        """Run a command here and return its stdout. Raises CommandError with its stderr."""
        return self.namespace.run(*argv, stdin=stdin, timeout=timeout)

    def sysctl(self, name: str, value: object = None) -> str:
        """Return a sysctl of this host, after setting it when `value` is given."""
        return self.namespace.sysctl(name, value)

    def ipvs(self) -> dict[str, VirtualServer]:
        """Return the IPVS table, keyed `TCP 10.254.0.10:8080`."""
        return virtual_servers(self.namespace)

    def addresses(self, interface: str) -> list[str]:
        """Return an interface's addresses, such as `10.254.0.10/32`."""
        return addresses(self.namespace, interface)

    def local_routes(self) -> dict[str, str]:
        """Return the preferred source of each local route, by destination."""
        return local_routes(self.namespace)

    def snapshot(self) -> Snapshot:
        """Return everything that kroute could have changed here, for a comparison with `diff`."""
        return Snapshot.of(self.namespace)

    def close(self) -> None:
        """End servers, streams and the namespace. No connection is closed: to others the host has vanished."""
        for stream in self._streams:
            self.traffic.call(stream.close())
        self.traffic.call(self._server.close())
        self.namespace.delete()


class OpenConnection:
    """A connection for several requests of a test."""

    def __init__(self, connection: Connection, traffic: Traffic) -> None:
        self._connection = connection
        self._traffic = traffic

    async def ask(self) -> Answer:
        """Send one more request. Raises ConnectionError when the connection has ended."""
        return await self._traffic.run(self._connection.ask())

    async def close(self) -> None:
        """Close the connection."""
        self._traffic.loop.call_soon_threadsafe(self._connection.close)

    async def reset(self) -> None:
        """End the connection with a TCP reset. Kernels on the path forget it sooner than after an orderly end."""
        self._traffic.loop.call_soon_threadsafe(self._connection.reset)


class OpenStream:
    """A stream that a test observes."""

    def __init__(self, stream: Stream, traffic: Traffic) -> None:
        self._stream = stream
        self._traffic = traffic

    @property
    def echoed(self) -> int:
        """How many bytes have come back."""
        return self._stream.echoed

    @property
    def longest(self) -> float:
        """Seconds that the slowest echo took."""
        return self._stream.longest

    @property
    def failure(self) -> str | None:
        """How the stream broke, or None."""
        return self._stream.failure

    async def close(self, *, reset: bool = False) -> None:
        """End the stream, in order or with a TCP reset. Raises AssertionError if it had broken before."""
        await self._traffic.run(self._stream.close(reset=reset))
        assert self.failure is None, f"the stream {self.failure}"
