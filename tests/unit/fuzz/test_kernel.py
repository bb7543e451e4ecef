"""Any answer of the kernel is read or left out, or it raises a KernelError."""

import asyncio
import contextlib
import errno
import struct
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.kernel.conntrack import CTA_ID, CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, encode_tuple, parse_connection, parse_flow
from kroute.kernel.errors import UNINTELLIGIBLE, KernelError
from kroute.kernel.inotify import IN_CREATE, DirectoryChanges
from kroute.kernel.ipset import (
    ATTR_ADT,
    SetDefinition,
    encode_create,
    encode_entry,
    parse_definition,
    parse_elements,
    parse_name,
    parse_type,
)
from kroute.kernel.iptables.nft_rules import _words
from kroute.kernel.ipvs import connections, messages, table
from kroute.kernel.ipvs.objects import AddRealServer, AddVirtualServer, SyncDaemon, SyncRole, VirtualServerOptions
from kroute.kernel.net import links, policy_routing, routes
from kroute.kernel.net.addresses import AddressArrivals, encode_bind, parse_address
from kroute.kernel.net.monitor import Monitor
from kroute.kernel.net.routes import parse_route, set_route
from kroute.kernel.netlink import client as netlink_client
from kroute.kernel.netlink import message as message_module
from kroute.kernel.netlink.client import GENERIC_HEADER
from kroute.kernel.netlink.message import (
    HEADER,
    HEADER_SIZE,
    NLM_F_DUMP,
    NLMSG_DONE,
    NLMSG_ERROR,
    attribute,
    iterate_attributes,
    iterate_messages,
    message,
    nested,
    text,
    u16,
    u32,
)
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE, NetlinkSocket
from kroute.kernel.netlink.rtnetlink import (
    IFLA_IFNAME,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    LINK_HEADER,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
)
from kroute.kernel.nftables.expressions import Header, VerdictCode, bitwise, compare, payload, verdict
from kroute.kernel.nftables.messages import Message as NftMessage
from kroute.kernel.nftables.messages import (
    decode_elements,
    elements_message,
    encode_element,
    new_chain,
    new_rule,
    new_set,
    parse_chain,
    parse_generation,
    parse_keys,
    parse_set,
)
from kroute.kernel.nftables.messages import parse_rule as parse_nft_rule
from kroute.kernel.nftables.objects import Chain, NftRule, NftSet, Table
from kroute.kernel.packet_log import PacketLog, parse_packet
from tests.unit.fuzz.strategies import damaged, fuzzed
from tests.unit.kernel.iptables.test_nft_rules import envelope
from tests.unit.kernel.test_packet_log import FRAGMENT6, PACKET, UDP6, logged
from tests.unit.kernel.test_packet_log import TCP4 as TCP4_PACKET

TCP4, TCP6 = (6, "10.96.0.1", 80), (6, "fd00::1", 80)
NFGEN = struct.pack("=BBH", 2, 0, 0)
NAMES = {1: "lo", 2: "eth0"}


class Everything:
    """A container that contains everything."""

    def __contains__(self, _it: object) -> bool:
        return True


def payload_of(request: bytes) -> bytes:
    """Return the request's attributes, with which the kernel answers."""
    return request[HEADER_SIZE:]


def virtual_server(key: tuple[int, str, int]) -> bytes:
    payload = payload_of(messages.encode_change(0x20, AddVirtualServer(key, VirtualServerOptions("mh", 8, 60, 32))))
    counters = b"".join(attribute(kind, bytes(8)) for kind in range(1, 11))
    inner = next(contents for _, contents in iterate_attributes(payload[GENERIC_HEADER.size :]))
    return payload[: GENERIC_HEADER.size] + nested(messages.ATTR_SERVICE, inner, nested(messages.SVC_STATS64, counters))


def real_server(key: tuple[int, str, int], address: str) -> bytes:
    payload = payload_of(messages.encode_change(0x20, AddRealServer(key, (address, 8080), 100)))
    found = dict(iterate_attributes(payload[GENERIC_HEADER.size :]))
    counts = u32(messages.DEST_ACTIVE_CONNS, 5) + u32(messages.DEST_INACT_CONNS, 7)
    return payload[: GENERIC_HEADER.size] + nested(messages.ATTR_DEST, found[messages.ATTR_DEST], counts)


def flow(source: str, destination: str) -> bytes:
    original = encode_tuple(CTA_TUPLE_ORIG, (source, 40000), (destination, 53), 17)
    reply = encode_tuple(CTA_TUPLE_REPLY, (destination, 53), (source, 40000), 17)
    return NFGEN + original + reply + attribute(CTA_ID, bytes(4))


LINK = (
    LINK_HEADER.pack(0, 1, 2, 0, 0) + text(IFLA_IFNAME, "eth0") + nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, "dummy"))
)
ADDRESSES = payload_of(encode_bind(2, "10.0.0.1")), payload_of(encode_bind(2, "fd00::1", 60))
ROUTES = payload_of(set_route(2, "10.96.0.1", "10.0.0.1")), payload_of(set_route(2, "fd00::1", "fd00::2"))
TIMEOUTS = GENERIC_HEADER.pack(1, 1, 0) + u32(4, 900) + u32(5, 120) + u32(6, 300)
DAEMON = payload_of(messages.encode_daemon(0x20, messages.CMD_NEW_DAEMON, SyncDaemon(SyncRole.MASTER, "eth0", 1)))
FAMILY = GENERIC_HEADER.pack(1, 1, 0) + u16(1, 0x20) + text(2, "IPVS")
MARK = GENERIC_HEADER.pack(1, 1, 0) + nested(
    messages.ATTR_SERVICE, u16(messages.SVC_AF, 2), u32(messages.SVC_FWMARK, 9)
)
SET = NFGEN + encode_create(SetDefinition("KROUTE", "hash:ip,port"), 5)
PORTS, NETS = ("ip", "port"), ("ip", "port", "net")
PORT4, PORT6 = encode_entry(PORTS, ("10.0.0.1", 6, 80)), encode_entry(PORTS, ("fd00::1", 6, 80))
NET4 = encode_entry(NETS, ("10.0.0.1", 6, 80, "10.0.0.0/8"))

NFT_TABLE, OF_NETWORKS = Table(AF_INET, "kroute"), NftSet("s", ("ip", "port", "net"))
NFT_SET = new_set(NFT_TABLE, OF_NETWORKS, 1)[HEADER_SIZE:]
NFT_CHAIN = new_chain(NFT_TABLE, Chain("input", "filter", "input", -5))[HEADER_SIZE:]
NFT_RULE = new_rule(NFT_TABLE, NftRule("input", (verdict(VerdictCode.GOTO, "x"),), "why"))[HEADER_SIZE:] + attribute(
    3, bytes(8)
)
XT_MATCHES = (("tcp", bytes(12)), ("ipvs", bytes(40)), ("comment", b"why".ljust(256, b"\0")))
XT_RULE = new_rule(
    NFT_TABLE,
    NftRule(
        "PREROUTING",
        (
            *(payload(1, Header.NETWORK, 16, 4), bitwise(1, b"\xff\xff\0\0", bytes(4)), compare(1, b"\x0a\0\0\0")),
            *(envelope("match", name, said) for name, said in XT_MATCHES),
            envelope("target", "MARK", bytes(8)),
        ),
    ),
)[HEADER_SIZE:] + attribute(3, bytes(8))
NFT_GENERATION = NFGEN + attribute(1, bytes(4)) + attribute(2, bytes(4)) + attribute(3, b"nft\0")
NFT_ELEMENT = encode_element(AF_INET, OF_NETWORKS.parts, ("10.0.0.1", 6, 80, "10.0.0.0/8"))
NFT_ELEMENTS = elements_message(NftMessage.NEWSETELEM, NFT_TABLE, "s", [NFT_ELEMENT])[HEADER_SIZE:]
LOGGED = tuple(logged(packet) for packet in (TCP4_PACKET, UDP6, FRAGMENT6))
Parse = Callable[[bytes], Any]
PARSERS: dict[str, tuple[Parse, tuple[bytes, ...]]] = {
    "virtual server": (messages.parse_virtual_server, (virtual_server(TCP4), virtual_server(TCP6))),
    "real server": (lambda it: messages.parse_real_server(it, TCP4), (real_server(TCP4, "172.20.1.1"),)),
    "IPv6 real server": (lambda it: messages.parse_real_server(it, TCP6), (real_server(TCP6, "fd00::5"),)),
    "timeouts": (messages.parse_timeouts, (TIMEOUTS,)),
    "traffic": (messages.parse_traffic, (virtual_server(TCP4), virtual_server(TCP6))),
    "daemon": (messages.parse_daemon, (DAEMON,)),
    "mark": (messages.parse_mark, (MARK, virtual_server(TCP4))),
    "family": (netlink_client._parse_family, (FAMILY,)),
    "flow": (lambda it: parse_flow(it, Everything()), (flow("10.0.0.1", "10.96.0.1"), flow("fd00::1", "fd00::2"))),
    "connection": (
        lambda it: parse_connection(it, Everything(), lambda _: True),
        (flow("10.0.0.1", "10.96.0.1"), flow("fd00::1", "fd00::2")),
    ),
    "set's name": (parse_name, (SET,)),
    "set": (parse_definition, (SET,)),
    "set's revision": (parse_type, (SET,)),
    "set's elements": (lambda it: parse_elements(PORTS, it), (NFGEN + nested(ATTR_ADT, PORT4, PORT6),)),
    "set's elements with networks": (lambda it: parse_elements(NETS, it), (NFGEN + nested(ATTR_ADT, NET4),)),
    "link": (links._parse_link, (LINK,)),
    "address": (lambda it: parse_address(it, NAMES), ADDRESSES),
    "route": (parse_route, ROUTES),
    "way": (routes._parse_way, ROUTES),
    "rule": (policy_routing._parse_rule, ROUTES),
    "nf_tables set": (parse_set, (NFT_SET,)),
    "nf_tables chain": (parse_chain, (NFT_CHAIN,)),
    "nf_tables rule": (parse_nft_rule, (NFT_RULE,)),
    "nf_tables rule in words": (lambda it: list(_words(NFT_TABLE.family, parse_nft_rule(it)[1])), (NFT_RULE, XT_RULE)),
    "nf_tables elements": (lambda it: list(decode_elements(NFT_TABLE, OF_NETWORKS, parse_keys(it))), (NFT_ELEMENTS,)),
    "nf_tables generation": (parse_generation, (NFT_GENERATION,)),
    "logged packet": (parse_packet, LOGGED),
    "table's route": (lambda it: policy_routing._parse_route(it, NAMES), ROUTES),
}


class Kernel:
    """A netlink socket that returns these datagrams, then reports that some were lost, then returns nothing."""

    def __init__(self, datagrams: list[bytes]) -> None:
        self._datagrams = list(datagrams)
        self._lost = False

    def send(self, buffer: bytes) -> int:
        return len(buffer)

    def recv(self, size: int) -> bytes:
        if self._datagrams:
            return self._datagrams.pop(0)[:size]
        if self._lost:
            raise BlockingIOError
        self._lost = True
        raise OSError(errno.ENOBUFS, "No buffer space available")


def connected(*datagrams: bytes) -> NetlinkSocket:
    netlink = NetlinkSocket(NETLINK_ROUTE)
    netlink._socket = Kernel(list(datagrams))  # type: ignore[assignment]
    return netlink


def answer(kind: int, payload: bytes, sequence: int = 1) -> bytes:
    padding = bytes(-len(payload) & 3)
    return HEADER.pack(HEADER_SIZE + len(payload), kind, 0, sequence, 0) + payload + padding


DONE = answer(NLMSG_DONE, bytes(4))
ACK = answer(NLMSG_ERROR, bytes(4) + HEADER.pack(16, 16, 0, 1, 0))
REFUSAL = answer(NLMSG_ERROR, struct.pack("=i", -errno.ENOENT) + HEADER.pack(16, 16, 0, 1, 0))


@pytest.mark.parametrize(("parse", "valid"), PARSERS.values(), ids=PARSERS)
def test_the_samples_are_valid(parse: Parse, valid: tuple[bytes, ...]) -> None:
    assert all(len(ask(parse, DONE, payload)) <= 1 for payload in valid)


def ask(parse: Parse, end: bytes, *payloads: bytes) -> list[Any]:
    netlink = connected(b"".join(answer(16, payload) for payload in payloads) + end)
    return asyncio.run(netlink.request(message(18, NLM_F_DUMP, b""), parse))


@pytest.mark.parametrize(("parse", "valid"), PARSERS.values(), ids=PARSERS)
@fuzzed
@given(data=st.data())
def test_an_answer_is_understood_or_a_kernel_error(parse: Parse, valid: tuple[bytes, ...], data: st.DataObject) -> None:
    payload = data.draw(damaged(*valid))
    with contextlib.suppress(*UNINTELLIGIBLE):
        parse(payload)
    with contextlib.suppress(KernelError):
        ask(parse, DONE, valid[0], payload)


DATAGRAMS = damaged(*(answer(16, payload) + DONE for payload in (LINK, *ADDRESSES)), ACK, REFUSAL, DONE, ACK + REFUSAL)


@fuzzed
@given(st.lists(DATAGRAMS, max_size=4))
def test_whatever_comes_a_request_ends(datagrams: list[bytes]) -> None:
    for flags in (0, NLM_F_DUMP):
        with contextlib.suppress(KernelError):
            asyncio.run(connected(*datagrams).request(message(18, flags, b""), lambda payload: payload))
    with contextlib.suppress(KernelError):
        refused = asyncio.run(connected(*datagrams).transact([message(16, 0, b""), message(16, 0, b"")]))
        assert refused.keys() <= {0, 1}


@fuzzed
@given(st.lists(DATAGRAMS, max_size=4))
def test_no_message_is_longer_than_its_datagram(datagrams: list[bytes]) -> None:
    for datagram in datagrams:
        found = [payload for *_, payload in iterate_messages(datagram)]
        assert sum(map(len, found)) + HEADER_SIZE * len(found) <= len(datagram)
        contents = [it for _, it in iterate_attributes(datagram)]
        assert sum(map(len, contents)) + 4 * len(contents) <= len(datagram)


EVENTS = damaged(
    *(answer(RTM_NEWADDR, payload, 0) for payload in ADDRESSES),
    *(answer(RTM_NEWROUTE, payload, 0) for payload in ROUTES),
    answer(RTM_NEWLINK, LINK, 0),
    answer(RTM_NEWLINK, LINK_HEADER.pack(0, 1, 3, 0, 0) + attribute(IFLA_IFNAME, b"\xff\xfe\0"), 0),
)


@fuzzed
@given(st.lists(EVENTS, max_size=5))
def test_what_cannot_be_understood_of_the_node_is_read_again(datagrams: list[bytes]) -> None:
    monitor = Monitor()
    monitor.netlink, monitor._names = connected(*datagrams), dict(NAMES)
    assert asyncio.run(monitor.next())
    arrivals = AddressArrivals(2)
    arrivals.netlink = connected(*datagrams)
    assert asyncio.run(arrivals.next()) is None


@fuzzed
@given(st.lists(damaged(*(answer(PACKET, payload, 0) for payload in LOGGED)), max_size=5))
def test_a_logged_packet_is_read_or_left_out_whatever_its_sender_wrote(datagrams: list[bytes]) -> None:
    log = PacketLog(1)
    log.netlink = connected(*datagrams)
    for packet in asyncio.run(log.next()):
        assert 0 <= packet.protocol <= 255
        assert all(port is None or 0 <= port <= 65535 for port in packet[4:])
        assert ip_address(packet.source).version == ip_address(packet.destination).version


TABLE = b"""\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:0050 rr persistent 60 FFFFFFFF
  -> AC140101:1F90      Masq    100    3          0
  -> AC140102:1F90      Masq    100    0          0
UDP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0035 mh ops
  -> [fd00:0000:0000:0000:0000:0000:0000:0005]:0035      Masq    100    0          0
FWM  00000001 rr
  -> AC140101:1F90      Route   1      0          0
"""
CONNECTIONS = b"""\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C0A87B01 8F2C 0A600001 0050 AC140101 1F90 ESTABLISHED     899
UDP FD000000000000000000000000000001 8F2C 0A600001 0035 AC140101 0035 UDP 299
"""


@fuzzed
@given(text=damaged(TABLE), size=st.integers(1, 400), slice_size=st.integers(1, 300))
def test_the_table_is_read_or_a_kernel_error(text: bytes, size: int, slice_size: int) -> None:
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KernelError):
        patch.setattr(table, "BYTES_A_SLICE", slice_size)
        pieces = (text[start : start + size] for start in range(0, len(text), size))
        sections = [section for part in table.parse_table(pieces) for section in part]
        assert len(sections) <= text.count(b"\n") + 1


@fuzzed
@given(servers=st.lists(st.integers(0, 12), max_size=6), size=st.integers(1, 400), slice_size=st.integers(1, 300))
def test_the_table_is_the_same_however_it_is_read(servers: list[int], size: int, slice_size: int) -> None:
    heading = b"".join(TABLE.splitlines(keepends=True)[:3])
    real = [b"  -> AC14%04X:1F90      Masq    100    0          0\n" % number for number in range(12)]
    parts = [b"TCP  0A60%04X:0050 rr\n" % at + b"".join(real[:count]) for at, count in enumerate(servers)]
    text = heading + b"".join(parts)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "BYTES_A_SLICE", slice_size)
        found = [len(section.state.real_servers) for part in table.parse_table(pieces) for section in part]
    assert found == servers


@fuzzed
@given(text=damaged(CONNECTIONS))
def test_the_connections_are_read_or_a_kernel_error(text: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "ip_vs_conn"
    path.write_bytes(text)
    with contextlib.suppress(KernelError):
        connections._read(frozenset({TCP4}), path)


@fuzzed
@given(damaged(struct.pack("=iIII", 1, IN_CREATE, 0, 16) + b"a.yaml".ljust(16, b"\0")))
def test_changes_of_a_directory_are_names(events: bytes) -> None:
    found = DirectoryChanges(Path("/nonexistent"))._parse(events)
    assert found is None or all(isinstance(name, str) for name in found)


def test_a_name_of_an_interface_need_not_be_text() -> None:
    odd = b"eth\xff"
    assert message_module.to_text(odd + b"\0") == "eth\udcff"
    assert text(IFLA_IFNAME, "eth\udcff") == attribute(IFLA_IFNAME, odd + b"\0")
