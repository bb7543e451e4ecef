"""What a pod serves: over HTTP (on TCP or SCTP) and UDP it says who answered and whom it saw.

GET /        -> {"host": ..., "address": ..., "port": ..., "peer": ..., "peer_port": ...}; the connection is kept alive
GET /stream  -> after the head of the answer every byte is echoed, for as long as the connection lasts
UDP          -> any datagram is answered with the same JSON, from the address it was sent to. `after SECONDS` is
                answered so much later, if the server still listens then
"""

import asyncio
import contextlib
import ipaddress
import socket
import struct
from typing import Protocol

import msgspec

_IN6_PKTINFO = 50
"""IPV6_PKTINFO of linux/in6.h, which the socket module does not have."""
NO_LINGER = struct.pack("ii", 1, 0)
AFTER = b"after "
"""With this a datagram begins whose answer is to take a while."""


class Answer(msgspec.Struct, frozen=True):
    """A lab server's answer to a call.

    `host` is the server's name. `address` and `port` are where the packet has reached it. `peer` and `peer_port` are
    the source as the server saw it, which shows network address translation.
    """

    host: str
    address: str
    port: int
    peer: str
    peer_port: int


class SocketFactory(Protocol):
    """Creates sockets in a namespace."""

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Return a new non-blocking socket."""
        ...


def plain(address: str) -> str:
    """Return an address as people write it: `::ffff:10.0.0.1` is 10.0.0.1, and a zone is removed."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def reset_on_close(writer: asyncio.StreamWriter) -> None:
    """Make a TCP connection end with a reset when it is closed."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)


class Server:
    """The servers of one host, under its name, each on every address of both families."""

    def __init__(self, host: str, namespace: SocketFactory) -> None:
        self.host = host
        self._namespace = namespace
        self._listeners: list[asyncio.Server] = []
        self._datagrams: list[socket.socket] = []
        self._connections: set[asyncio.StreamWriter] = set()

    async def listen_http(self, port: int, protocol: int = socket.IPPROTO_TCP, address: str = "::") -> None:
        """Serve HTTP on `port`. `protocol` may be IPPROTO_SCTP."""
        listener = self._bound(socket.SOCK_STREAM, protocol, address, port)
        self._listeners.append(await asyncio.start_server(self._serve, sock=listener))

    async def listen_udp(self, port: int, address: str = "::") -> None:
        """Answer datagrams on `port`."""
        bound = self._bound(socket.SOCK_DGRAM, socket.IPPROTO_UDP, address, port)
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        self._datagrams.append(bound)
        asyncio.get_running_loop().add_reader(bound, self._answer_datagram, bound)

    async def close(self, *, reset: bool = False) -> None:
        """Stop listening and end all connections, in order or with a TCP reset."""
        for listener in self._listeners:
            listener.close()
        for bound in self._datagrams:
            asyncio.get_running_loop().remove_reader(bound)
            bound.close()
        for writer in list(self._connections):
            if reset:
                reset_on_close(writer)
            writer.transport.abort()
        self._listeners.clear()
        self._datagrams.clear()
        await asyncio.sleep(0)  # lets the transports close their sockets

    def _bound(self, kind: int, protocol: int, address: str, port: int) -> socket.socket:
        made = self._namespace.socket(socket.AF_INET6, kind, protocol)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address if ":" in address else f"::ffff:{address}", port))
        return made

    def _answer(self, address: str, port: int, peer: tuple[str, int]) -> bytes:
        return msgspec.json.encode(Answer(self.host, plain(address), port, plain(peer[0]), peer[1]))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # the client, or the path to it, is gone
                while await self._serve_request(reader, writer):
                    pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Returns whether another may follow."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"get /stream "):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while received := await reader.read(4096):
                writer.write(received)
            return False
        body = self._answer(*writer.get_extra_info("sockname")[:2], writer.get_extra_info("peername"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        return b"\r\nconnection: close\r\n" not in head

    def _answer_datagram(self, bound: socket.socket) -> None:
        with contextlib.suppress(OSError):  # an ICMP error for an earlier answer, or the client is gone
            asked, ancillary, _, peer = bound.recvmsg(2048, 256)
            (packet_info,) = (value for _, kind, value in ancillary if kind == _IN6_PKTINFO)
            local = socket.inet_ntop(socket.AF_INET6, packet_info[:16])
            # Only the source address is set, not the interface: the kernel routes the answer.
            source = packet_info[:16] + struct.pack("I", 0)
            answer = self._answer(local, bound.getsockname()[1], peer)
            chosen = [(socket.IPPROTO_IPV6, _IN6_PKTINFO, source)]
            if asked.startswith(AFTER):
                seconds = float(asked.removeprefix(AFTER))
                asyncio.get_running_loop().call_later(seconds, _send, bound, answer, chosen, peer)
            else:
                bound.sendmsg([answer], chosen, 0, peer)


def _send(bound: socket.socket, answer: bytes, chosen: list[tuple[int, int, bytes]], peer: tuple[str, int]) -> None:
    with contextlib.suppress(OSError):  # the server or the client is gone
        bound.sendmsg([answer], chosen, 0, peer)
