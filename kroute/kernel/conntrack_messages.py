"""ctnetlink requests and answers about UDP flows (include/uapi/linux/netfilter/nfnetlink_conntrack.h).

An answer holds two tuples: the original one has the addresses of the client's packets, the reply one those of the
replies. So the reply tuple's source is the real server, and its destination is the client as the real server sees it.
"""

import socket
import struct
from collections.abc import Container
from typing import NamedTuple, TypeAlias

from kroute.kernel.netlink.message import (
    NLM_F_DUMP,
    address_family,
    attribute,
    attributes,
    be16,
    message,
    nested,
    pack_address,
    to_be16,
    u8,
    u32,
    unpack_address,
)

NFNL_SUBSYS_CTNETLINK = 1
MSG_CT_GET, MSG_CT_DELETE = 1, 2

CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, CTA_ID, CTA_ZONE, CTA_FILTER = 1, 2, 12, 18, 25
CTA_TUPLE_IP, CTA_TUPLE_PROTO, CTA_TUPLE_ZONE = 1, 2, 3
CTA_IP_V4_SRC, CTA_IP_V4_DST, CTA_IP_V6_SRC, CTA_IP_V6_DST = 1, 2, 3, 4
CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT = 1, 2, 3
CTA_FILTER_ORIG_FLAGS, CTA_FILTER_REPLY_FLAGS = 1, 2
CTA_FILTER_IP_DST, CTA_FILTER_PROTO_NUM, CTA_FILTER_PROTO_DST_PORT = 1 << 1, 1 << 3, 1 << 5

UDP = 17

Endpoint: TypeAlias = tuple[str, int]
"""Address and port."""

PackedEndpoint: TypeAlias = tuple[bytes, bytes]
"""Address and port as bytes, as in a packet."""

_NFGEN = struct.Struct("=BBH")
"""family, version, resource id."""
_BE32 = struct.Struct("!I")


class Flow(NamedTuple):
    """One UDP entry of conntrack, with the fields that identify it.

    `zone` is the zone of its replies; 0 is the default. `id` is the kernel's number for the entry, made of its place in
    memory and its original tuple. A later entry with the same original tuple may get the same place, and so the same
    id.
    """

    source: str
    source_port: int
    destination: str
    destination_port: int
    reply_source: str
    reply_source_port: int
    reply_destination: str
    reply_destination_port: int
    zone: int = 0
    id: int = 0

    def __str__(self) -> str:
        client, server = _bracketed(self.source), _bracketed(self.destination)
        return f"UDP flow {client}:{self.source_port} > {server}:{self.destination_port}"


def conntrack_message(command: int, flags: int, family: int, *parts: bytes) -> bytes:
    return message(NFNL_SUBSYS_CTNETLINK << 8 | command, flags, _NFGEN.pack(family, 0, 0) + b"".join(parts))


def encode_dump(family: int, address: bytes = b"", port: bytes = b"") -> bytes:
    """The request for the UDP entries of a family: for all, or those with this original destination.

    An empty `address` or `port` stands for any. The kernel walks its whole table in any case, but answers with what
    matches only. Kernels before 5.8 ignore CTA_FILTER, and answer with the entries of all protocols. Many later ones
    (6.1, 6.18) answer a request for an IPv6 address with the entries of all other addresses.
    """
    flags = CTA_FILTER_PROTO_NUM
    by_address = by_port = b""
    if address:
        flags |= CTA_FILTER_IP_DST
        kind = CTA_IP_V4_DST if family == socket.AF_INET else CTA_IP_V6_DST
        by_address = nested(CTA_TUPLE_IP, attribute(kind, address))
    if port:
        flags |= CTA_FILTER_PROTO_DST_PORT
        by_port = attribute(CTA_PROTO_DST_PORT, port)
    return conntrack_message(
        MSG_CT_GET,
        NLM_F_DUMP,
        family,
        nested(CTA_TUPLE_ORIG, by_address, nested(CTA_TUPLE_PROTO, u8(CTA_PROTO_NUM, UDP), by_port)),
        nested(CTA_FILTER, u32(CTA_FILTER_ORIG_FLAGS, flags), u32(CTA_FILTER_REPLY_FLAGS, 0)),
    )


def encode_delete(flow: Flow) -> bytes:
    """The message that deletes the flow.

    It names the flow by its reply tuple. The same client may have made a new entry through another real server since
    then: that has the same original tuple, and perhaps the same id, but another reply tuple. The message always holds a
    tuple, because the kernel empties its whole table without one. It holds a zone only if that is not 0, because a
    kernel built without zones refuses the attribute.
    """
    return conntrack_message(
        MSG_CT_DELETE,
        0,
        address_family(flow.source),
        encode_tuple(CTA_TUPLE_REPLY, flow[4:6], flow[6:8]),
        be16(CTA_ZONE, flow.zone) if flow.zone else b"",
        attribute(CTA_ID, _BE32.pack(flow.id)),
    )


def encode_tuple(kind: int, source: Endpoint, destination: Endpoint, protocol: int = UDP) -> bytes:
    """The tuple of one direction of a flow."""
    is_ipv6 = ":" in source[0]
    return nested(
        kind,
        nested(
            CTA_TUPLE_IP,
            attribute(CTA_IP_V6_SRC if is_ipv6 else CTA_IP_V4_SRC, pack_address(source[0])),
            attribute(CTA_IP_V6_DST if is_ipv6 else CTA_IP_V4_DST, pack_address(destination[0])),
        ),
        nested(
            CTA_TUPLE_PROTO,
            u8(CTA_PROTO_NUM, protocol),
            be16(CTA_PROTO_SRC_PORT, source[1]),
            be16(CTA_PROTO_DST_PORT, destination[1]),
        ),
    )


def pack_endpoint(endpoint: Endpoint) -> PackedEndpoint:
    """The form of an endpoint in which `parse_flow` looks it up."""
    address, port = endpoint
    return pack_address(address), port.to_bytes(2, "big")


def parse_flow(payload: bytes, destinations: Container[PackedEndpoint]) -> Flow | None:
    """One answer to `encode_dump`; None if it is no UDP flow, or its original destination is not among `destinations`.

    Flows to other destinations are dropped as early as possible: there may be 100,000 flows and one virtual server that
    matters.
    """
    found = attributes(payload, _NFGEN.size)
    original = attributes(found[CTA_TUPLE_ORIG])
    ports = attributes(original[CTA_TUPLE_PROTO])
    if ports[CTA_PROTO_NUM][0] != UDP:
        return None
    addresses = attributes(original[CTA_TUPLE_IP])
    if (_destination(addresses), ports[CTA_PROTO_DST_PORT]) not in destinations:
        return None
    reply = attributes(found[CTA_TUPLE_REPLY])
    # If an entry's zone applies to one direction only, it is in that direction's tuple.
    zone = found.get(CTA_ZONE) or reply.get(CTA_TUPLE_ZONE)
    return Flow(
        *_endpoints(addresses, ports),
        *_endpoints(attributes(reply[CTA_TUPLE_IP]), attributes(reply[CTA_TUPLE_PROTO])),
        to_be16(zone) if zone else 0,
        int.from_bytes(found[CTA_ID], "big"),
    )


def _endpoints(addresses: dict[int, bytes], ports: dict[int, bytes]) -> tuple[str, int, str, int]:
    source = addresses.get(CTA_IP_V4_SRC) or addresses[CTA_IP_V6_SRC]
    source_port, destination_port = to_be16(ports[CTA_PROTO_SRC_PORT]), to_be16(ports[CTA_PROTO_DST_PORT])
    return unpack_address(source), source_port, unpack_address(_destination(addresses)), destination_port


def _destination(addresses: dict[int, bytes]) -> bytes:
    return addresses.get(CTA_IP_V4_DST) or addresses[CTA_IP_V6_DST]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
