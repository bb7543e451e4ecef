"""pyroute2 reads kroute's IPVS requests; `witness_ipvs` adds what pyroute2 does not know."""

import socket
import struct
from ipaddress import IPv4Network
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, ctrlmsg
from pyroute2.netlink.generic import ipvs

from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.messages import (
    CMD_DEL_DAEMON,
    CMD_GET_DAEMON,
    CMD_NEW_DAEMON,
    encode_change,
    encode_daemon,
    encode_dump,
    encode_real_server_dump,
    encode_timeouts,
    encode_timeouts_query,
)
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteMarkServer,
    DeleteRealServer,
    DeleteVirtualServer,
    SetRealServer,
    SetVirtualServer,
    SyncDaemon,
    SyncRole,
    VirtualServerKey,
    VirtualServerOptions,
)
from kroute.kernel.netlink.client import find_family
from tests.unit.kernel.witness import (
    Netlink,
    Reading,
    addresses,
    any_address,
    families,
    family_of,
    names,
    pairs,
    ports,
    read,
    u32s,
    witnessed,
    write,
)
from tests.unit.kernel.witness_ipvs import (
    CHOSEN_FLAGS,
    FORWARDING,
    PERSISTENT,
    Request,
    contents,
    packed_union,
    protocols,
)

genl_families = st.integers(16, 1023)
weights = st.integers(0, (1 << 31) - 1)
methods = st.sampled_from(["Masq", "Route"])
flags = st.sets(st.sampled_from(CHOSEN_FLAGS)).map(sum)
timeouts = st.just(0) | u32s
virtual_servers = st.tuples(protocols, any_address(), ports)
real_servers = st.tuples(
    st.sampled_from([AddRealServer, SetRealServer]), protocols, pairs(), ports, ports, weights, methods
)


def options_of(address: str) -> st.SearchStrategy[VirtualServerOptions]:
    prefixes = st.integers(1, 128) if ":" in address else st.integers(0, 32)
    return st.builds(VirtualServerOptions, names, flags, timeouts, prefixes)


def named(key: VirtualServerKey) -> dict[str, Any]:
    protocol, address, port = key
    return {
        "IPVS_SVC_ATTR_AF": family_of(address),
        "IPVS_SVC_ATTR_PROTOCOL": protocol,
        "IPVS_SVC_ATTR_ADDR": address,
        "IPVS_SVC_ATTR_PORT": port,
    }


def netmask(address: str, options: VirtualServerOptions) -> str:
    """Return the four bytes that make the kernel group clients for persistence, or keep each client separate."""
    prefix = options.persistence_prefix
    if ":" in address:
        return socket.inet_ntoa(struct.pack("=I", prefix if options.persistence_timeout else 128))
    return str(IPv4Network((0, prefix if options.persistence_timeout else 32)).netmask)


@witnessed
@given(genl_families, st.sampled_from([AddVirtualServer, SetVirtualServer]), virtual_servers, st.data())
def test_a_virtual_server_is_sent_with_all_of_its_options(
    family: int, kind: type[AddVirtualServer | SetVirtualServer], key: VirtualServerKey, data: st.DataObject
) -> None:
    options = data.draw(options_of(key[1]))
    command = ipvs.IPVS_CMD_NEW_SERVICE if kind is AddVirtualServer else ipvs.IPVS_CMD_SET_SERVICE
    persistent = PERSISTENT if options.persistence_timeout else 0
    service = named(key) | {
        "IPVS_SVC_ATTR_SCHED_NAME": options.scheduler,
        "IPVS_SVC_ATTR_FLAGS": {"flags": options.flags | persistent, "mask": 0xFFFFFFFF},
        "IPVS_SVC_ATTR_TIMEOUT": options.persistence_timeout,
        "IPVS_SVC_ATTR_NETMASK": netmask(key[1], options),
    }
    asked = read(Request, encode_change(family, kind(key, options)))
    assert asked == Reading(family, NLM_F_REQUEST, contents(command, SERVICE=service))


@witnessed
@given(genl_families, virtual_servers)
def test_a_virtual_server_is_named_by_protocol_address_and_port(family: int, key: VirtualServerKey) -> None:
    deletion = read(Request, encode_change(family, DeleteVirtualServer(key)))
    assert deletion == Reading(family, NLM_F_REQUEST, contents(ipvs.IPVS_CMD_DEL_SERVICE, SERVICE=named(key)))
    dump = read(Request, encode_real_server_dump(family, key))
    assert dump == Reading(family, NLM_F_REQUEST | NLM_F_DUMP, contents(ipvs.IPVS_CMD_GET_DEST, SERVICE=named(key)))


@witnessed
@given(genl_families, real_servers)
def test_a_real_server_is_sent_with_method_weight_and_no_thresholds(family: int, drawn: tuple[Any, ...]) -> None:
    kind, protocol, (vip, address), port, real_port, weight, method = drawn
    command = ipvs.IPVS_CMD_NEW_DEST if kind is AddRealServer else ipvs.IPVS_CMD_SET_DEST
    dest = {
        "IPVS_DEST_ATTR_ADDR": packed_union(address),
        "IPVS_DEST_ATTR_PORT": real_port,
        "IPVS_DEST_ATTR_FWD_METHOD": FORWARDING.index(method),
        "IPVS_DEST_ATTR_WEIGHT": weight,
        "IPVS_DEST_ATTR_U_THRESH": 0,
        "IPVS_DEST_ATTR_L_THRESH": 0,
    }
    key = (protocol, vip, port)
    asked = read(Request, encode_change(family, kind(key, (address, real_port), weight, method)))
    assert asked == Reading(family, NLM_F_REQUEST, contents(command, SERVICE=named(key), DEST=dest))


@witnessed
@given(genl_families, protocols, pairs(), ports, ports)
def test_a_real_server_is_deleted_by_address_and_port(
    family: int, protocol: int, both: tuple[str, str], port: int, real_port: int
) -> None:
    key = (protocol, both[0], port)
    dest = {"IPVS_DEST_ATTR_ADDR": packed_union(both[1]), "IPVS_DEST_ATTR_PORT": real_port}
    asked = read(Request, encode_change(family, DeleteRealServer(key, (both[1], real_port))))
    assert asked == Reading(
        family,
        NLM_F_REQUEST,
        contents(ipvs.IPVS_CMD_DEL_DEST, SERVICE=named(key), DEST=dest),
    )


@witnessed
@given(genl_families, timeouts, timeouts, timeouts)
def test_timeouts_of_zero_are_not_sent(family: int, tcp: int, tcpfin: int, udp: int) -> None:
    wanted = {"TIMEOUT_TCP": tcp, "TIMEOUT_TCP_FIN": tcpfin, "TIMEOUT_UDP": udp}
    sent = {name: value for name, value in wanted.items() if value}
    asked = read(Request, encode_timeouts(family, tcp, tcpfin, udp))
    assert asked == Reading(family, NLM_F_REQUEST, contents(ipvs.IPVS_CMD_SET_CONFIG, **sent))


@witnessed
@given(genl_families, st.builds(SyncDaemon, st.sampled_from(SyncRole), names, st.integers(1, 255)))
def test_a_daemon_is_sent_with_role_interface_and_synchronization_id(family: int, daemon: SyncDaemon) -> None:
    told = {
        "IPVS_DAEMON_ATTR_STATE": int(daemon.role),
        "IPVS_DAEMON_ATTR_MCAST_IFN": daemon.interface,
        "IPVS_DAEMON_ATTR_SYNC_ID": daemon.sync_id,
    }
    for message, command in (
        (encode_daemon(family, CMD_NEW_DAEMON, daemon), ipvs.IPVS_CMD_NEW_DAEMON),
        (encode_daemon(family, CMD_DEL_DAEMON, daemon), ipvs.IPVS_CMD_DEL_DAEMON),
    ):
        asked = read(Request, message)
        assert asked == Reading(family, NLM_F_REQUEST, contents(command, DAEMON=told))


@witnessed
@given(genl_families)
def test_what_is_asked_for_as_a_whole_is_asked_for_without_attributes(family: int) -> None:
    for message, request_flags, command in (
        (encode_dump(family), NLM_F_REQUEST | NLM_F_DUMP, ipvs.IPVS_CMD_GET_SERVICE),
        (encode_dump(family, CMD_GET_DAEMON), NLM_F_REQUEST | NLM_F_DUMP, ipvs.IPVS_CMD_GET_DAEMON),
        (encode_timeouts_query(family), NLM_F_REQUEST, ipvs.IPVS_CMD_GET_CONFIG),
    ):
        assert read(Request, message) == Reading(family, request_flags, contents(command))


@witnessed
@given(genl_families, names)
async def test_a_family_is_asked_for_by_name_and_known_by_number(family: int, name: str) -> None:
    answer = {"cmd": 1, "version": 2, "CTRL_ATTR_FAMILY_NAME": name, "CTRL_ATTR_FAMILY_ID": family}
    netlink = Netlink([write(ctrlmsg, answer)])
    assert await find_family(netlink, name) == family
    [asked] = [read(ctrlmsg, message) for message in netlink.sent]
    assert asked[:2] == (16, NLM_F_REQUEST)  # GENL_ID_CTRL
    assert asked.contents == {"cmd": 3, "version": 1, "reserved": 0, "CTRL_ATTR_FAMILY_NAME": name}


@witnessed
@given(genl_families, families, st.integers(1, (1 << 32) - 1), addresses(socket.AF_INET))
async def test_a_virtual_server_of_a_mark_is_read_and_deleted_by_family_and_mark(
    genl: int, family: int, mark: int, address: str
) -> None:
    marked = {"IPVS_SVC_ATTR_AF": family, "IPVS_SVC_ATTR_FWMARK": mark}
    listing = [
        write(ipvs.ipvsmsg, contents(ipvs.IPVS_CMD_NEW_SERVICE, SERVICE=service))
        for service in (marked, named((6, address, 80)))
    ]
    client = Ipvs()
    client.netlink, client._family = (netlink := Netlink(listing)), genl
    assert await client.marks() == [(family, mark)]
    assert await client.delete_marks([DeleteMarkServer(family, mark)]) == []
    asked = read(Request, netlink.sent[-1])
    assert asked == Reading(genl, NLM_F_REQUEST, contents(ipvs.IPVS_CMD_DEL_SERVICE, SERVICE=marked))
