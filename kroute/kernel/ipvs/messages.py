"""Netlink messages of IPVS (include/uapi/linux/ip_vs.h). Changes are encoded for speed.

The changes of a virtual server's real servers come one after the other, and their messages are equal up to the real
server's address. So that head is cached. The rest is one pack() and a tail that hundreds of messages share. Caching the
encoded form of every real server would cost more memory than the saved time is worth.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Network
from socket import AF_INET, AF_INET6, inet_pton

from kroute.base.forwarding import DIRECT_ROUTING, MASQUERADING, TUNNEL
from kroute.kernel.ipvs.objects import (
    FLAG_PERSISTENT,
    OPTION_FLAGS,
    AddRealServer,
    AddVirtualServer,
    DeleteMarkServer,
    DeleteRealServer,
    DeleteVirtualServer,
    IpvsChange,
    RealServerKey,
    RealServerState,
    RealServerTraffic,
    SetRealServer,
    SetVirtualServer,
    SyncDaemon,
    SyncRole,
    Traffic,
    VirtualServerKey,
    VirtualServerOptions,
)
from kroute.kernel.netlink.client import GENERIC_HEADER, generic_message
from kroute.kernel.netlink.message import (
    HEADER,
    NLA_F_NESTED,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    address_family,
    attribute,
    attributes,
    be16,
    nested,
    pack_address,
    text,
    to_be16,
    to_text,
    to_u16,
    to_u32,
    to_u64,
    u16,
    u32,
    unpack_address,
)

FAMILY_NAME = "IPVS"

CMD_NEW_SERVICE, CMD_SET_SERVICE, CMD_DEL_SERVICE, CMD_GET_SERVICE = 1, 2, 3, 4
CMD_NEW_DEST, CMD_SET_DEST, CMD_DEL_DEST, CMD_GET_DEST = 5, 6, 7, 8
CMD_NEW_DAEMON, CMD_DEL_DAEMON, CMD_GET_DAEMON = 9, 10, 11
CMD_SET_CONFIG, CMD_GET_CONFIG = 12, 13

ATTR_SERVICE, ATTR_DEST, ATTR_DAEMON = 1, 2, 3
ATTR_TIMEOUT_TCP, ATTR_TIMEOUT_TCP_FIN, ATTR_TIMEOUT_UDP = 4, 5, 6

SVC_AF, SVC_PROTOCOL, SVC_ADDR, SVC_PORT, SVC_FWMARK, SVC_SCHED, SVC_FLAGS, SVC_TIMEOUT, SVC_NETMASK = range(1, 10)
DEST_ADDR, DEST_PORT, DEST_FWD_METHOD, DEST_WEIGHT, DEST_U_THRESH, DEST_L_THRESH = range(1, 7)
DEST_ACTIVE_CONNS, DEST_INACT_CONNS = 7, 8
DAEMON_STATE, DAEMON_INTERFACE, DAEMON_SYNC_ID = 1, 2, 3
SVC_STATS64 = DEST_STATS64 = 12
STATS_CONNS, STATS_IN_PACKETS, STATS_OUT_PACKETS, STATS_IN_BYTES, STATS_OUT_BYTES = range(1, 6)

FORWARDING = {MASQUERADING: 0, TUNNEL: 2, DIRECT_ROUTING: 3}
"""IP_VS_CONN_F_MASQ, IP_VS_CONN_F_TUNNEL and IP_VS_CONN_F_DROUTE."""
FORWARDING_MASK = 0x7
FORWARDING_NAMES = {0: MASQUERADING, 1: "Local", 2: TUNNEL, 3: DIRECT_ROUTING}
ALL_FLAGS = 0xFFFFFFFF
CACHED_HEADS = 64
"""How many heads are cached. Few are in use at a time, because the messages of a virtual server are consecutive."""

_COMMANDS: dict[type[object], int] = {
    AddVirtualServer: CMD_NEW_SERVICE,
    SetVirtualServer: CMD_SET_SERVICE,
    DeleteVirtualServer: CMD_DEL_SERVICE,
    AddRealServer: CMD_NEW_DEST,
    SetRealServer: CMD_SET_DEST,
    DeleteRealServer: CMD_DEL_DEST,
}
_WITH_WEIGHT = (AddRealServer, SetRealServer)
_NEST = struct.Struct("=HH")
_ENDPOINT = struct.Struct("!4s16s4sHxx")
"""The attributes of an address (IPv4 is padded to IPv6's length) and of a port, each after its header."""
_DEST_ADDR, _DEST_PORT = _NEST.pack(20, DEST_ADDR), _NEST.pack(6, DEST_PORT)
_FLAGS = struct.Struct("=II")


def encode_change(family: int, change: IpvsChange) -> bytes:
    """The message that makes the change; `family` is the number of the IPVS family."""
    command = _COMMANDS[type(change)]
    if isinstance(change, _WITH_WEIGHT):  # first, as these are almost all
        tail = _encode_weight(change.weight, change.method)
    elif isinstance(change, DeleteRealServer):
        tail = b""
    else:
        service = _encode_key(change.key)
        if not isinstance(change, DeleteVirtualServer):
            service += _encode_options(":" in change.key[1], change.options)
        return generic_message(family, 0, command, nested(ATTR_SERVICE, service))
    address, port = change.real_server
    packed = inet_pton(AF_INET6 if ":" in address else AF_INET, address)
    endpoint = _ENDPOINT.pack(_DEST_ADDR, packed, _DEST_PORT, port)
    return _encode_head(family, command, change.key, len(tail)) + endpoint + tail


def encode_dump(family: int, command: int = CMD_GET_SERVICE) -> bytes:
    """The request for all virtual servers, without their real servers, or for all daemons (CMD_GET_DAEMON)."""
    return generic_message(family, NLM_F_DUMP, command)


def encode_query(family: int, key: VirtualServerKey) -> bytes:
    """The request for one virtual server, without its real servers. The kernel refuses with ESRCH if there is none."""
    return generic_message(family, 0, CMD_GET_SERVICE, nested(ATTR_SERVICE, _encode_key(key)))


def parse_virtual_server(payload: bytes) -> tuple[VirtualServerKey, VirtualServerOptions] | None:
    """One answer to `encode_dump` or `encode_query`; None for a virtual server of a firewall mark."""
    service = attributes(attributes(payload, GENERIC_HEADER.size)[ATTR_SERVICE])
    key = parse_key(service)
    if key is None:
        return None
    flags, _mask = _FLAGS.unpack(service[SVC_FLAGS])
    timeout = to_u32(service[SVC_TIMEOUT]) if flags & FLAG_PERSISTENT else 0
    netmask = service[SVC_NETMASK]
    # IPv4: a mask in network byte order; IPv6: a prefix length in the host's
    prefix = to_u32(netmask) if ":" in key[1] else int.from_bytes(netmask, "big").bit_count()
    options = VirtualServerOptions(to_text(service[SVC_SCHED]), flags & OPTION_FLAGS, timeout, prefix if timeout else 0)
    return key, options


def parse_key(service: Mapping[int, bytes]) -> VirtualServerKey | None:
    """The key in the attributes of a virtual server; None if it has a firewall mark instead."""
    if SVC_FWMARK in service:
        return None
    is_ipv6 = to_u16(service[SVC_AF]) == AF_INET6
    address = unpack_address(service[SVC_ADDR][: 16 if is_ipv6 else 4])
    return to_u16(service[SVC_PROTOCOL]), address, to_be16(service[SVC_PORT])


def encode_real_server_dump(family: int, key: VirtualServerKey) -> bytes:
    """The request for the real servers of one virtual server. If that does not exist, the answer is empty."""
    return generic_message(family, NLM_F_DUMP, CMD_GET_DEST, nested(ATTR_SERVICE, _encode_key(key)))


def parse_real_server(payload: bytes, key: VirtualServerKey) -> tuple[RealServerKey, RealServerState]:
    """One answer to `encode_real_server_dump`."""
    dest = attributes(attributes(payload, GENERIC_HEADER.size)[ATTR_DEST])
    address = unpack_address(dest[DEST_ADDR][: 16 if ":" in key[1] else 4])
    method = FORWARDING_NAMES.get(to_u32(dest[DEST_FWD_METHOD]) & FORWARDING_MASK, "")
    counts = to_u32(dest[DEST_ACTIVE_CONNS]), to_u32(dest[DEST_INACT_CONNS])
    return (address, to_be16(dest[DEST_PORT])), RealServerState(to_u32(dest[DEST_WEIGHT]), *counts, method)


def encode_mark_deletion(family: int, deletion: DeleteMarkServer) -> bytes:
    service = nested(ATTR_SERVICE, u16(SVC_AF, deletion.family), u32(SVC_FWMARK, deletion.mark))
    return generic_message(family, 0, CMD_DEL_SERVICE, service)


def parse_mark(payload: bytes) -> tuple[int, int] | None:
    """One answer to `encode_dump`: address family and firewall mark; None for a virtual server without a mark."""
    service = attributes(attributes(payload, GENERIC_HEADER.size)[ATTR_SERVICE])
    return (to_u16(service[SVC_AF]), to_u32(service[SVC_FWMARK])) if SVC_FWMARK in service else None


def encode_timeouts(family: int, tcp: int, tcpfin: int, udp: int) -> bytes:
    """The message that sets the connection timeouts, in seconds. One of 0 is left out: the kernel keeps its own."""
    wanted = ((ATTR_TIMEOUT_TCP, tcp), (ATTR_TIMEOUT_TCP_FIN, tcpfin), (ATTR_TIMEOUT_UDP, udp))
    return generic_message(family, 0, CMD_SET_CONFIG, b"".join(u32(kind, value) for kind, value in wanted if value))


def encode_timeouts_query(family: int) -> bytes:
    """The request for the connection timeouts."""
    return generic_message(family, 0, CMD_GET_CONFIG)


def parse_timeouts(payload: bytes) -> tuple[int, int, int]:
    """The answer to `encode_timeouts_query`: tcp, tcpfin, udp in seconds."""
    found = attributes(payload, GENERIC_HEADER.size)
    return to_u32(found[ATTR_TIMEOUT_TCP]), to_u32(found[ATTR_TIMEOUT_TCP_FIN]), to_u32(found[ATTR_TIMEOUT_UDP])


@lru_cache(CACHED_HEADS)
def _encode_key(key: VirtualServerKey) -> bytes:
    protocol, address, port = key
    family = u16(SVC_AF, address_family(address))
    packed = pack_address(address).ljust(16, b"\0")
    return family + u16(SVC_PROTOCOL, protocol) + attribute(SVC_ADDR, packed) + be16(SVC_PORT, port)


@lru_cache(CACHED_HEADS)
def _encode_head(family: int, command: int, key: VirtualServerKey, tail: int) -> bytes:
    """A message about a real server, up to its address. `tail` is how many bytes follow the address and port."""
    service = nested(ATTR_SERVICE, _encode_key(key))
    dest = _NEST.pack(_NEST.size + _ENDPOINT.size + tail, ATTR_DEST | NLA_F_NESTED)
    body = GENERIC_HEADER.pack(command, 1, 0) + service + dest
    return HEADER.pack(HEADER.size + len(body) + _ENDPOINT.size + tail, family, NLM_F_REQUEST, 0, 0) + body


@lru_cache(1024)
def _encode_weight(weight: int, method: str) -> bytes:
    thresholds = u32(DEST_U_THRESH, 0) + u32(DEST_L_THRESH, 0)
    return u32(DEST_FWD_METHOD, FORWARDING[method]) + u32(DEST_WEIGHT, weight) + thresholds


@lru_cache(1024)
def _encode_options(is_ipv6: bool, options: VirtualServerOptions) -> bytes:
    flags, prefix = options.flags, options.persistence_prefix
    if options.persistence_timeout:
        flags |= FLAG_PERSISTENT
    else:
        prefix = 128 if is_ipv6 else 32
    netmask = u32(SVC_NETMASK, prefix) if is_ipv6 else attribute(SVC_NETMASK, IPv4Network((0, prefix)).netmask.packed)
    chosen = text(SVC_SCHED, options.scheduler) + attribute(SVC_FLAGS, _FLAGS.pack(flags, ALL_FLAGS))
    return chosen + u32(SVC_TIMEOUT, options.persistence_timeout) + netmask


def encode_daemon(family: int, command: int, daemon: SyncDaemon) -> bytes:
    """The message that starts a daemon (CMD_NEW_DAEMON), or stops the one of its role (CMD_DEL_DAEMON)."""
    fields = (
        u32(DAEMON_STATE, daemon.role),
        text(DAEMON_INTERFACE, daemon.interface),
        u32(DAEMON_SYNC_ID, daemon.sync_id),
    )
    return generic_message(family, 0, command, nested(ATTR_DAEMON, *fields))


def parse_daemon(payload: bytes) -> SyncDaemon:
    """One answer to `encode_dump` for daemons."""
    found = attributes(attributes(payload, GENERIC_HEADER.size)[ATTR_DAEMON])
    role, interface = SyncRole(to_u32(found[DAEMON_STATE])), to_text(found[DAEMON_INTERFACE])
    return SyncDaemon(role, interface, to_u32(found[DAEMON_SYNC_ID]))


def parse_traffic(payload: bytes) -> tuple[VirtualServerKey, Traffic] | None:
    """One answer to `encode_dump`; None for a virtual server of a firewall mark."""
    service = attributes(attributes(payload, GENERIC_HEADER.size)[ATTR_SERVICE])
    key = parse_key(service)
    return None if key is None else (key, _traffic(service[SVC_STATS64]))


def parse_real_server_traffic(payload: bytes, key: VirtualServerKey) -> tuple[RealServerKey, RealServerTraffic] | None:
    """One answer to `encode_real_server_dump`; None for a real server whose answers bypass this machine."""
    real_server, state = parse_real_server(payload, key)
    if state.method != MASQUERADING:
        return None
    dest = attributes(attributes(payload, GENERIC_HEADER.size)[ATTR_DEST])
    return real_server, RealServerTraffic(_traffic(dest[DEST_STATS64]), state.active)


def _traffic(stats: bytes) -> Traffic:
    counters = attributes(stats)
    fields = (STATS_CONNS, STATS_IN_PACKETS, STATS_OUT_PACKETS, STATS_IN_BYTES, STATS_OUT_BYTES)
    return Traffic(*(to_u64(counters[field]) for field in fields))
