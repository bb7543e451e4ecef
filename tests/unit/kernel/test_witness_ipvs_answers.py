"""kroute parses IPVS's answers as pyroute2 writes them; `witness_ipvs` adds what pyroute2 does not know."""

import struct
from ipaddress import IPv4Network
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.generic import ipvs

from kroute.kernel.ipvs.messages import (
    parse_daemon,
    parse_real_server,
    parse_timeouts,
    parse_traffic,
    parse_virtual_server,
)
from kroute.kernel.ipvs.objects import RealServerState, SyncDaemon, SyncRole, Traffic, VirtualServerOptions
from tests.unit.kernel.witness import (
    any_address,
    families,
    family_of,
    names,
    pairs,
    ports,
    u32s,
    u64s,
    witnessed,
    write,
)
from tests.unit.kernel.witness_ipvs import (
    FORWARDING,
    HASHED,
    ONE_PACKET,
    PERSISTENT,
    SCHEDULER_1,
    SCHEDULER_2,
    SCHEDULER_3,
    Answer,
    contents,
    packed_union,
    protocols,
)

flags = st.sets(st.sampled_from([PERSISTENT, HASHED, ONE_PACKET, SCHEDULER_1, SCHEDULER_2, SCHEDULER_3])).map(sum)
counters = st.tuples(u64s, u64s, u64s, u64s, u64s)


def answer(command: int, **attributes: Any) -> bytes:
    """Return an answer of the kernel, with its command and version."""
    return write(Answer, contents(command, **attributes))


def service(protocol: int, address: str, port: int) -> dict[str, Any]:
    return {
        "IPVS_SVC_ATTR_AF": family_of(address),
        "IPVS_SVC_ATTR_PROTOCOL": protocol,
        "IPVS_SVC_ATTR_ADDR": packed_union(address),
        "IPVS_SVC_ATTR_PORT": port,
    }


def stats(counted: tuple[int, ...]) -> dict[str, int]:
    return dict(zip((name for name, _ in ipvs.ipvsstats.stats64.nla_map[1:]), counted, strict=False))


def pack_netmask(address: str, prefix: int) -> bytes:
    return struct.pack("=I", prefix) if ":" in address else IPv4Network((0, prefix)).netmask.packed


@witnessed
@given(protocols, any_address(), ports, names, flags, u32s, st.data())
def test_a_virtual_server_is_read_with_the_options_that_are_a_choice(
    protocol: int, address: str, port: int, scheduler: str, bits: int, timeout: int, data: st.DataObject
) -> None:
    prefix = data.draw(st.integers(1, 128) if ":" in address else st.integers(0, 32))
    told = service(protocol, address, port) | {
        "IPVS_SVC_ATTR_SCHED_NAME": scheduler,
        "IPVS_SVC_ATTR_FLAGS": {"flags": bits, "mask": 0xFFFFFFFF},
        "IPVS_SVC_ATTR_TIMEOUT": timeout,
        "IPVS_SVC_ATTR_NETMASK": pack_netmask(address, prefix),
        "IPVS_SVC_ATTR_STATS64": stats((1, 2, 3, 4, 5)),
    }
    persistence = (timeout, prefix) if bits & PERSISTENT and timeout else (0, 0)
    options = VirtualServerOptions(scheduler, bits & ~(PERSISTENT | HASHED), *persistence)
    found = parse_virtual_server(answer(ipvs.IPVS_CMD_NEW_SERVICE, SERVICE=told))
    assert found == ((protocol, address, port), options)


@witnessed
@given(families, st.integers(1, (1 << 32) - 1))
def test_a_virtual_server_of_a_mark_is_left_out(family: int, mark: int) -> None:
    told = {"IPVS_SVC_ATTR_AF": family, "IPVS_SVC_ATTR_FWMARK": mark, "IPVS_SVC_ATTR_SCHED_NAME": "rr"}
    payload = answer(ipvs.IPVS_CMD_NEW_SERVICE, SERVICE=told)
    assert parse_virtual_server(payload) is None
    assert parse_traffic(payload) is None


@witnessed
@given(protocols, any_address(), ports, counters)
def test_traffic_is_read_from_the_64_bit_counters(
    protocol: int, address: str, port: int, counted: tuple[int, int, int, int, int]
) -> None:
    told = service(protocol, address, port) | {
        "IPVS_SVC_ATTR_STATS": stats((9, 9, 9, 9, 9)),
        "IPVS_SVC_ATTR_STATS64": stats(counted),
    }
    connections, packets_in, packets_out, bytes_in, bytes_out = counted
    traffic = Traffic(connections, packets_in, packets_out, bytes_in, bytes_out)
    assert parse_traffic(answer(ipvs.IPVS_CMD_NEW_SERVICE, SERVICE=told)) == ((protocol, address, port), traffic)


@witnessed
@given(pairs(), ports, st.sampled_from(range(4)), st.sampled_from([0, 0x8, 0x100]), st.tuples(u32s, u32s, u32s))
def test_a_real_server_is_read_with_method_weight_and_connections(
    both: tuple[str, str], port: int, method: int, more_flags: int, numbers: tuple[int, int, int]
) -> None:
    weight, active, inactive = numbers
    told = {
        "IPVS_DEST_ATTR_ADDR": packed_union(both[1]),
        "IPVS_DEST_ATTR_PORT": port,
        "IPVS_DEST_ATTR_FWD_METHOD": method | more_flags,
        "IPVS_DEST_ATTR_WEIGHT": weight,
        "IPVS_DEST_ATTR_U_THRESH": 1,
        "IPVS_DEST_ATTR_L_THRESH": 2,
        "IPVS_DEST_ATTR_ACTIVE_CONNS": active,
        "IPVS_DEST_ATTR_INACT_CONNS": inactive,
        "IPVS_DEST_ATTR_PERSIST_CONNS": 3,
        "IPVS_DEST_ATTR_ADDR_FAMILY": family_of(both[1]),
    }
    found = parse_real_server(answer(ipvs.IPVS_CMD_NEW_DEST, DEST=told), (6, both[0], 80))
    assert found == ((both[1], port), RealServerState(weight, active, inactive, FORWARDING[method]))


@witnessed
@given(u32s, u32s, u32s)
def test_timeouts_are_read(tcp: int, tcpfin: int, udp: int) -> None:
    payload = answer(ipvs.IPVS_CMD_SET_CONFIG, TIMEOUT_TCP=tcp, TIMEOUT_TCP_FIN=tcpfin, TIMEOUT_UDP=udp)
    assert parse_timeouts(payload) == (tcp, tcpfin, udp)


@witnessed
@given(st.builds(SyncDaemon, st.sampled_from(SyncRole), names, st.integers(1, 255)))
def test_daemons_are_read(daemon: SyncDaemon) -> None:
    told = {
        "IPVS_DAEMON_ATTR_STATE": int(daemon.role),
        "IPVS_DAEMON_ATTR_MCAST_IFN": daemon.interface,
        "IPVS_DAEMON_ATTR_SYNC_ID": daemon.sync_id,
    }
    assert parse_daemon(answer(ipvs.IPVS_CMD_NEW_DAEMON, DAEMON=told)) == daemon


def test_the_kernel_calls_the_roles_one_and_two() -> None:
    """The roles are IP_VS_STATE_MASTER and IP_VS_STATE_BACKUP."""
    assert {role.name: role.value for role in SyncRole} == {"MASTER": 1, "BACKUP": 2}
