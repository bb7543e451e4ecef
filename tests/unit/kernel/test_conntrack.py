"""Conntrack's messages as bytes, and what kroute does when the kernel refuses one."""

import errno
import socket
from collections.abc import Callable

import pytest

from kroute.kernel.conntrack import (
    CTA_FILTER,
    CTA_FILTER_IP_DST,
    CTA_FILTER_IP_SRC,
    CTA_FILTER_ORIG_FLAGS,
    CTA_FILTER_PROTO_DST_PORT,
    CTA_FILTER_REPLY_FLAGS,
    CTA_ID,
    CTA_IP_V4_DST,
    CTA_IP_V4_SRC,
    CTA_PROTO_DST_PORT,
    CTA_PROTO_NUM,
    CTA_TUPLE_IP,
    CTA_TUPLE_MASTER,
    CTA_TUPLE_ORIG,
    CTA_TUPLE_PROTO,
    CTA_TUPLE_REPLY,
    CTA_TUPLE_ZONE,
    CTA_ZONE,
    MOST_FILTERS,
    NFNL_SUBSYS_CTNETLINK,
    UDP,
    Conntrack,
    DeleteFlow,
    Ends,
    Flow,
    encode_connection_delete,
    encode_delete,
    encode_dump,
    encode_listing,
    encode_tuple,
    pack_endpoint,
    parse_connection,
    parse_flow,
)
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.netlink.message import (
    HEADER,
    NLM_F_DUMP,
    address_family,
    attribute,
    attributes,
    be16,
    nfnetlink_message,
    pack_address,
    to_be16,
    to_u32,
)

FLOW = Flow("10.9.0.1", 4000, "10.0.0.1", 53, "10.1.0.1", 5353, "192.168.9.1", 61234, 0, 0xDEADBEEF)
FLOW6 = Flow("fd09::1", 4000, "fd00::1", 53, "fd01::1", 5353, "fd99::1", 61234, 0, 7)
EVERYWHERE = {pack_endpoint(flow[2:4]) for flow in (FLOW, FLOW6)}
BODY = HEADER.size + 4
"""The offset at which the attributes of a message begin."""


def listed(flow: Flow, *more: bytes, protocol: int = UDP, reply: bytes = b"") -> bytes:
    """Return an entry as the kernel lists it."""
    answer = nfnetlink_message(
        NFNL_SUBSYS_CTNETLINK,
        0,
        0,
        socket.AF_INET6 if ":" in flow.source else socket.AF_INET,
        encode_tuple(CTA_TUPLE_ORIG, flow[0:2], flow[2:4], protocol),
        reply or encode_tuple(CTA_TUPLE_REPLY, flow[4:6], flow[6:8], protocol),
        attribute(CTA_ID, flow.id.to_bytes(4, "big")),
        *more,
    )
    return answer[HEADER.size :]


@pytest.mark.parametrize("flow", [FLOW, FLOW6], ids=["IPv4", "IPv6"])
def test_a_listed_flow_is_parsed(flow: Flow) -> None:
    assert parse_flow(listed(flow), EVERYWHERE) == flow


@pytest.mark.parametrize(
    ("entry", "destinations"),
    [
        (listed(FLOW, protocol=6), EVERYWHERE),
        (listed(FLOW, protocol=132), EVERYWHERE),
        (listed(FLOW), {pack_endpoint(("10.0.0.1", 54))}),
        (listed(FLOW), {pack_endpoint(("10.0.0.2", 53))}),
        (listed(FLOW), {pack_endpoint(FLOW[0:2]), pack_endpoint(FLOW[4:6])}),
    ],
    ids=["TCP", "SCTP", "another port", "another address", "only its other ends"],
)
def test_what_is_not_asked_for_is_left_out(entry: bytes, destinations: set[tuple[bytes, bytes]]) -> None:
    assert parse_flow(entry, destinations) is None


def test_the_zone_of_both_directions_is_read() -> None:
    assert parse_flow(listed(FLOW, be16(CTA_ZONE, 9)), EVERYWHERE) == FLOW._replace(zone=9)


def test_the_zone_of_the_replies_alone_is_read() -> None:
    tuple_ = encode_tuple(CTA_TUPLE_REPLY, FLOW[4:6], FLOW[6:8])
    reply = attribute(CTA_TUPLE_REPLY, tuple_[4:] + be16(CTA_TUPLE_ZONE, 9))
    assert parse_flow(listed(FLOW, reply=reply), EVERYWHERE) == FLOW._replace(zone=9)


def test_the_kernel_is_asked_for_udp_alone() -> None:
    message = encode_dump(socket.AF_INET6)
    _, kind, flags, _, _ = HEADER.unpack_from(message)
    assert (kind, flags & NLM_F_DUMP, message[HEADER.size]) == (0x101, NLM_F_DUMP, socket.AF_INET6)
    asked = attributes(message, BODY)
    assert set(asked) == {CTA_TUPLE_ORIG, CTA_FILTER}
    assert attributes(attributes(asked[CTA_TUPLE_ORIG])[CTA_TUPLE_PROTO]) == {1: bytes((UDP,))}


@pytest.mark.parametrize("flow", [FLOW, FLOW6], ids=["IPv4", "IPv6"])
def test_a_deletion_names_the_reply_and_the_id_and_no_zone_where_there_is_none(flow: Flow) -> None:
    message = encode_delete(flow)
    assert HEADER.unpack_from(message)[1] == 0x102
    named = attributes(message, BODY)
    reply = encode_tuple(CTA_TUPLE_REPLY, flow[4:6], flow[6:8])
    assert named == {CTA_TUPLE_REPLY: reply[4:], CTA_ID: flow.id.to_bytes(4, "big")}


def test_a_deletion_names_the_zone_of_an_entry_that_has_one() -> None:
    assert attributes(encode_delete(FLOW._replace(zone=9)), BODY)[CTA_ZONE] == (9).to_bytes(2, "big")


@pytest.mark.parametrize("kind", [CTA_TUPLE_ORIG, CTA_TUPLE_REPLY], ids=["begun", "answered"])
def test_the_kernel_is_asked_for_the_connections_that_an_address_has_begun_or_answers(kind: int) -> None:
    asked = attributes(encode_listing(socket.AF_INET, kind, pack_address("10.1.0.1")), BODY)
    assert set(asked) == {kind, CTA_FILTER}
    assert attributes(attributes(asked[kind])[CTA_TUPLE_IP]) == {CTA_IP_V4_SRC: pack_address("10.1.0.1")}
    flags = {number: to_u32(value) for number, value in attributes(asked[CTA_FILTER]).items()}
    kinds = {CTA_TUPLE_ORIG: CTA_FILTER_ORIG_FLAGS, CTA_TUPLE_REPLY: CTA_FILTER_REPLY_FLAGS}
    assert flags == {number: CTA_FILTER_IP_SRC if one == kind else 0 for one, number in kinds.items()}
    assert attributes(encode_listing(socket.AF_INET6), BODY) == {}


@pytest.mark.parametrize("flow", [FLOW, FLOW6], ids=["IPv4", "IPv6"])
def test_a_connection_is_named_as_a_flow_is(flow: Flow) -> None:
    for zone in (0, 9):
        entry = listed(flow, *([be16(CTA_ZONE, zone)] if zone else []))
        found = parse_connection(entry, {pack_address(flow.source)}, lambda _: True)
        assert found is not None
        assert found.ends == Ends(UDP, flow.source, flow.reply_source, flow.reply_source_port)
        assert found.called == (flow.destination, flow.destination_port)
        named = attributes(encode_connection_delete(found), BODY)
        assert named == attributes(encode_delete(flow._replace(zone=zone)), BODY)


def test_connections_of_others_that_belong_to_another_one_or_are_not_wanted_are_left_out() -> None:
    client, server = {pack_address(FLOW.source)}, {pack_address(FLOW.reply_source)}
    assert parse_connection(listed(FLOW), server, lambda _: True) is not None
    assert parse_connection(listed(FLOW), server, lambda _: False) is None
    assert parse_connection(listed(FLOW), {pack_address(FLOW.destination)}, lambda _: True) is None
    expected = attribute(CTA_TUPLE_MASTER, b"")
    assert parse_connection(listed(FLOW, expected), client, lambda _: True) is None


def test_a_protocol_without_ports_has_port_0() -> None:
    """As ping, whose entries have an identifier, a type and a code instead (CTA_PROTO_ICMP_ID and so on)."""
    addresses = attribute(CTA_IP_V4_SRC, pack_address("10.1.0.1")) + attribute(CTA_IP_V4_DST, pack_address("10.9.0.1"))
    parts = attribute(CTA_PROTO_NUM, b"\x01"), be16(4, 77), attribute(5, b"\0"), attribute(6, b"\0")
    reply = attribute(CTA_TUPLE_REPLY, attribute(CTA_TUPLE_IP, addresses) + attribute(CTA_TUPLE_PROTO, b"".join(parts)))
    found = parse_connection(listed(FLOW, reply=reply), {pack_address("10.1.0.1")}, lambda _: True)
    assert found is not None
    assert found.ends == Ends(1, "10.9.0.1", "10.1.0.1", 0)
    named = attributes(attributes(encode_connection_delete(found), BODY)[CTA_TUPLE_REPLY])
    assert named[CTA_TUPLE_PROTO] == b"".join(parts)


class FilteringNetlink:
    """A kernel with flows that knows CTA_FILTER, except for the flags `refused`.

    `answered` counts the entries of its answers.
    """

    def __init__(self, flows: list[Flow], refused: int = 0) -> None:
        self.flows, self.refused = flows, refused
        self.dumps = self.answered = 0

    async def request(self, message: bytes, parse: Callable[[bytes], Flow | None]) -> list[Flow]:
        self.dumps += 1
        asked = attributes(message, BODY)
        flags = to_u32(attributes(asked[CTA_FILTER])[CTA_FILTER_ORIG_FLAGS])
        if flags & self.refused:
            raise KernelError("the kernel refused a request", errno=errno.EOPNOTSUPP)
        original = attributes(asked[CTA_TUPLE_ORIG])
        ports, addresses = attributes(original[CTA_TUPLE_PROTO]), attributes(original.get(CTA_TUPLE_IP, b""))
        matching = [
            flow
            for flow in self.flows
            if address_family(flow.source) == message[HEADER.size]
            and (not flags & CTA_FILTER_IP_DST or addresses[CTA_IP_V4_DST] == pack_address(flow.destination))
            and (not flags & CTA_FILTER_PROTO_DST_PORT or to_be16(ports[CTA_PROTO_DST_PORT]) == flow.destination_port)
        ]
        self.answered += len(matching)
        return [found for flow in matching if (found := parse(listed(flow))) is not None]


OTHERS = [
    flow._replace(destination=address, destination_port=port)
    for flow, address in ((FLOW, "10.0.0.9"), (FLOW6, "fd00::9"))
    for port in range(5000, 5500)
]


def filtering(
    monkeypatch: pytest.MonkeyPatch, *flows: Flow, refused: int = 0, version: tuple[int, int] = (6, 1)
) -> tuple[Conntrack, FilteringNetlink]:
    kernel, conntrack = FilteringNetlink([*flows, *OTHERS], refused), Conntrack()
    monkeypatch.setattr(conntrack, "netlink", kernel)
    monkeypatch.setattr("kroute.kernel.conntrack.kernel_version", lambda: version)
    return conntrack, kernel


@pytest.mark.parametrize("flow", [FLOW, FLOW6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("ports", [1, 5])
async def test_a_few_destinations_cost_answers_about_their_own_flows_alone(
    flow: Flow, ports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [flow._replace(destination_port=53 + number) for number in range(ports)]
    conntrack, kernel = filtering(monkeypatch, *wanted)
    assert sorted(await conntrack.udp_flows(address_family(flow.source), [one[2:4] for one in wanted])) == wanted
    assert kernel.answered == ports


async def test_the_flows_of_many_destinations_are_listed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    conntrack, kernel = filtering(monkeypatch, FLOW)
    many = [(f"10.0.2.{number}", 53) for number in range(MOST_FILTERS)]
    assert await conntrack.udp_flows(socket.AF_INET, [*many, FLOW[2:4]]) == [FLOW]
    assert kernel.dumps == 1


@pytest.mark.parametrize("flow", [FLOW, FLOW6], ids=["IPv4", "IPv6"])
async def test_where_the_kernel_refuses_a_filter_all_flows_are_listed(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    conntrack, kernel = filtering(monkeypatch, FLOW, FLOW6, refused=CTA_FILTER_IP_DST | CTA_FILTER_PROTO_DST_PORT)
    assert await conntrack.udp_flows(address_family(flow.source), [flow[2:4]]) == [flow]
    assert kernel.dumps == 2


async def test_a_kernel_that_ignores_filters_is_asked_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    conntrack, kernel = filtering(monkeypatch, FLOW, version=(5, 4))
    assert await conntrack.udp_flows(socket.AF_INET, [FLOW[2:4], ("10.0.0.2", 53)]) == [FLOW]
    assert kernel.dumps == 1


class Netlink:
    """A kernel that refuses everything with one errno."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def request(self, *_: object) -> list[Flow]:
        raise KernelError("the kernel refused a request", errno=self.number)

    async def transact(self, messages: list[bytes]) -> dict[int, int]:
        return dict.fromkeys(range(len(messages)), self.number)


def refusing(number: int, monkeypatch: pytest.MonkeyPatch) -> Conntrack:
    conntrack = Conntrack()
    monkeypatch.setattr(conntrack, "netlink", Netlink(number))
    return conntrack


async def test_a_kernel_without_ctnetlink_is_told_of_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match="load the module nf_conntrack_netlink") as refused:
        await refusing(errno.EINVAL, monkeypatch).udp_flows(socket.AF_INET, [("10.0.0.1", 53)])
    assert refused.value.errno == errno.EINVAL


async def test_another_refusal_of_the_list_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match="refused a request") as refused:
        await refusing(errno.EINTR, monkeypatch).udp_flows(socket.AF_INET, [("10.0.0.1", 53)])
    assert refused.value.errno == errno.EINTR


async def test_each_refused_deletion_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [FLOW._replace(source_port=number) for number in range(300)]
    failures = await refusing(errno.EBUSY, monkeypatch).delete(many)
    assert failures == [Failure(DeleteFlow(flow), errno.EBUSY) for flow in many]
    assert str(failures[0]) == "cannot delete UDP flow 10.9.0.1:0 > 10.0.0.1:53: Device or resource busy"


async def test_a_flow_that_is_gone_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await refusing(errno.ENOENT, monkeypatch).delete([FLOW]) == []


def test_a_flow_is_named_by_its_ends() -> None:
    assert str(FLOW6) == "UDP flow [fd09::1]:4000 > [fd00::1]:53"
