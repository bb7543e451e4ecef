"""ctnetlink requests and answers about UDP flows (include/uapi/linux/netfilter/nfnetlink_conntrack.h).

An answer holds two tuples: the original one is what the client wrote, the reply one is what an answer to it looks like.
Its source is therefore the real server, and its destination whom the real server saw.
"""

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
CTA_FILTER_PROTO_NUM = 1 << 3

UDP = 17

Endpoint: TypeAlias = tuple[str, int]
"""Address and port."""

PackedEndpoint: TypeAlias = tuple[bytes, bytes]
"""Address and port as they are in packets."""

_NFGEN = struct.Struct("=BBH")
"""family, version, resource id."""
_BE32 = struct.Struct("!I")


class Flow(NamedTuple):
    """One UDP entry of conntrack, with what names exactly this one.

    `zone` is the zone of its replies, 0 for the default one. `id` is the kernel's number for the entry, made of its
    place in memory and of what the client wrote: an entry that is made anew may lie there again and have it again.
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


def encode_dump(family: int) -> bytes:
    """The request for all UDP entries of a family.

    Kernels before 5.8 ignore CTA_FILTER, and answer with the entries of all protocols.
    """
    return conntrack_message(
        MSG_CT_GET,
        NLM_F_DUMP,
        family,
        nested(CTA_TUPLE_ORIG, nested(CTA_TUPLE_PROTO, u8(CTA_PROTO_NUM, UDP))),
        nested(CTA_FILTER, u32(CTA_FILTER_ORIG_FLAGS, CTA_FILTER_PROTO_NUM), u32(CTA_FILTER_REPLY_FLAGS, 0)),
    )


def encode_delete(flow: Flow) -> bytes:
    """The message that deletes the flow.

    It names the flow by its reply tuple: an entry that the same client has meanwhile made through another real server
    has the same original tuple, and may have the same id, but not the same reply. The message always holds a tuple:
    without one it would empty the table. A kernel built without zones refuses the mention of one.
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
    """One direction of a flow."""
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
    """What `parse_flow` compares destinations with."""
    address, port = endpoint
    return pack_address(address), port.to_bytes(2, "big")


def parse_flow(payload: bytes, destinations: Container[PackedEndpoint]) -> Flow | None:
    """One answer to `encode_dump`; None when it is no UDP flow whose original destination is one of these.

    Flows of other destinations are dropped as early as possible: there may be 100,000 flows and one virtual server to
    look at.
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
    # An entry whose zone holds in one direction only has it in that direction's tuple.
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
