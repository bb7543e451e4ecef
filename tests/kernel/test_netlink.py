"""The batching socket on a real kernel."""

import errno
import socket

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.message import HEADER, NLM_F_DUMP, NLM_F_REQUEST, message
from kroute.kernel.netlink.netlink_socket import CHUNK_MESSAGES, LEAST_MESSAGES, NETLINK_ROUTE, NetlinkSocket
from kroute.kernel.netlink.rtnetlink import LINK_HEADER, RTM_DELLINK, RTM_GETLINK
from tests.kernel.nodes import RealNode

NOOP = HEADER.pack(HEADER.size, 1, NLM_F_REQUEST, 0, 0)
ALL_LINKS = message(RTM_GETLINK, NLM_F_DUMP, LINK_HEADER.pack(0, 0, 0, 0, 0))
NO_LINK = LINK_HEADER.pack(0, 0, 999999, 0, 0)


def index_of(link: bytes) -> int:
    return int(LINK_HEADER.unpack_from(link)[2])


async def test_a_dump_is_parsed_and_none_left_out(node: RealNode) -> None:
    netlink = NetlinkSocket(NETLINK_ROUTE)
    await netlink.open()
    links = await netlink.request(ALL_LINKS, index_of)
    nothing: list[int] = await netlink.request(ALL_LINKS, lambda _: None)
    await netlink.close()
    assert links == [index for index, _ in socket.if_nameindex()]
    assert nothing == []


async def test_refusals_are_matched_to_their_messages_over_many_chunks(node: RealNode) -> None:
    messages = [NOOP] * (CHUNK_MESSAGES * 2 + 10)
    places = [0, 5, CHUNK_MESSAGES - 1, CHUNK_MESSAGES, CHUNK_MESSAGES * 2 + 9]
    for place in places:
        messages[place] = message(RTM_DELLINK, 0, NO_LINK)
    netlink = NetlinkSocket(NETLINK_ROUTE)
    await netlink.open()
    refused = await netlink.transact(messages)
    again = await netlink.transact([NOOP])
    await netlink.close()
    assert refused == dict.fromkeys(places, errno.ENODEV)
    assert again == {}
    assert netlink.statistics.messages == len(messages) + 1
    assert 4 <= netlink.statistics.sends <= 2 + len(messages) / LEAST_MESSAGES, "the slower, the smaller a chunk"


async def test_a_refused_request_carries_its_errno(node: RealNode) -> None:
    netlink = NetlinkSocket(NETLINK_ROUTE)
    await netlink.open()
    with pytest.raises(KernelError, match="No such device") as refused:
        await netlink.request(message(RTM_GETLINK, 0, NO_LINK), index_of)
    await netlink.close()
    assert refused.value.errno == errno.ENODEV


async def test_answers_to_a_cancelled_request_are_passed_over(node: RealNode) -> None:
    """The request is cancelled between its sending and its answers; the next one must not take them for its own."""
    netlink = NetlinkSocket(NETLINK_ROUTE)
    await netlink.open()

    def abandon(_payload: bytes) -> int:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await netlink.request(ALL_LINKS, abandon)
    refused = await netlink.transact([NOOP, message(RTM_DELLINK, 0, NO_LINK), NOOP])
    links = await netlink.request(ALL_LINKS, index_of)
    await netlink.close()
    assert refused == {1: errno.ENODEV}
    assert links == [index for index, _ in socket.if_nameindex()]
