"""Conntrack's messages as bytes, and what kroute does when the kernel refuses one."""

import errno
import socket

import pytest

from kroute.kernel.conntrack import Conntrack, DeleteFlow, Flow
from kroute.kernel.conntrack_messages import (
    CTA_FILTER,
    CTA_ID,
    CTA_TUPLE_ORIG,
    CTA_TUPLE_PROTO,
    CTA_TUPLE_REPLY,
    CTA_TUPLE_ZONE,
    CTA_ZONE,
    UDP,
    conntrack_message,
    encode_delete,
    encode_dump,
    encode_tuple,
    pack_endpoint,
    parse_flow,
)
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.netlink.message import HEADER, NLM_F_DUMP, attribute, attributes, be16

FLOW = Flow("10.9.0.1", 4000, "10.0.0.1", 53, "10.1.0.1", 5353, "192.168.9.1", 61234, 0, 0xDEADBEEF)
FLOW6 = Flow("fd09::1", 4000, "fd00::1", 53, "fd01::1", 5353, "fd99::1", 61234, 0, 7)
EVERYWHERE = {pack_endpoint(flow[2:4]) for flow in (FLOW, FLOW6)}
BODY = HEADER.size + 4
"""The offset at which the attributes of a message begin."""


def listed(flow: Flow, *more: bytes, protocol: int = UDP, reply: bytes = b"") -> bytes:
    """Return an entry as the kernel lists it."""
    answer = conntrack_message(
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
    monkeypatch.setattr(conntrack, "_netlink", Netlink(number))
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
