"""When draining real servers are polled, and which of them may be deleted."""

import errno
from collections.abc import Sequence

import pytest

from kroute.controllers.ipvs.drains import (
    FIRST_POLL,
    KEPT,
    LAST_POLL,
    LONGEST_WAIT,
    MOST_KEPT,
    POLLED_TOGETHER,
    SEARCHED_A_SECOND,
    Drains,
)
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import RealServerKey, RealServerState, StatesByServer
from kroute.kernel.ipvs.objects import VirtualServerKey as KernelKey
from kroute.model.plan import Protocol, VirtualServerKey

WEB = VirtualServerKey(Protocol.TCP, "10.96.0.1", 80)
OTHER = VirtualServerKey(Protocol.TCP, "10.96.0.2", 80)
ONE, TWO = ("10.1.0.1", 8080), ("10.1.0.2", 8080)
BUSY, IDLE = RealServerState(0, 1, 0), RealServerState(0, 0, 0)


def test_nothing_drains_and_nothing_is_due() -> None:
    drains = Drains(0)
    assert drains.next_due() is None
    drains.start(WEB, ONE, 100.0)
    drains.stop(WEB, [ONE])
    assert drains.next_due() is None


def look(drains: Drains, now: float, *connections: RealServerState) -> list[tuple[VirtualServerKey, RealServerKey]]:
    """Poll everything that is due; each virtual server has these connections on ONE and TWO."""
    over = []
    while keys := drains.to_poll(now):
        over += drains.drained({key: dict(zip((ONE, TWO), connections, strict=False)) for key in keys}, now)
    return over


def test_it_is_looked_at_soon_and_then_less_and_less() -> None:
    drains = Drains(0)
    drains.start(WEB, ONE, 100.0)
    assert drains.next_due() == 100.0 + FIRST_POLL
    assert drains.to_poll(100.0) == []
    assert drains.to_poll(200.0) == [WEB]
    assert drains.next_due() == 210.0
    assert drains.to_poll(10_000.0) == [WEB]
    assert drains.next_due() == 10_000.0 + LAST_POLL


def test_what_begins_to_drain_is_looked_at_soon_again() -> None:
    drains = Drains(0)
    drains.start(WEB, ONE, 100.0)
    assert look(drains, 1000.0, BUSY) == []
    drains.start(OTHER, TWO, 1010.0)
    assert drains.next_due() == 1000.0 + FIRST_POLL


def test_only_virtual_servers_with_something_that_drains_are_looked_at() -> None:
    drains = Drains(0)
    drains.start(WEB, ONE, 100.0)
    drains.start(OTHER, TWO, 100.0)
    drains.stop(OTHER, [TWO])
    assert drains.to_poll(102.0) == [WEB]


def test_a_long_look_goes_on_at_once_in_parts_and_ends() -> None:
    drains = Drains(0)
    keys = {VirtualServerKey(Protocol.TCP, f"10.96.1.{number}", 80) for number in range(POLLED_TOGETHER + 3)}
    for key in keys:
        drains.start(key, ONE, 100.0)
    first = drains.to_poll(102.0)
    assert len(first) == POLLED_TOGETHER
    due = drains.next_due()
    assert due is not None
    assert due <= 102.1
    drains.start(WEB, ONE, 102.1)  # the next poll visits it
    assert {*first, *drains.to_poll(102.1)} == keys
    assert drains.to_poll(102.2) == []
    assert drains.next_due() == 102.1 + FIRST_POLL


def test_what_has_no_connections_or_no_time_left_is_over() -> None:
    drains = Drains(60)
    drains.start(WEB, ONE, 100.0)
    drains.start(WEB, TWO, 130.0)
    assert look(drains, 159.0, BUSY, BUSY) == []
    assert drains.next_due() == 159.0 + FIRST_POLL
    assert look(drains, 161.0, BUSY, BUSY) == [(WEB, ONE)]
    assert look(drains, 163.0, BUSY, IDLE) == [(WEB, ONE), (WEB, TWO)]


def test_one_of_udp_is_over_after_a_while_with_its_connections() -> None:
    dns, drains = VirtualServerKey(Protocol.UDP, "10.96.0.1", 53), Drains(0)
    drains.start(WEB, ONE, 100.0)
    drains.start(dns, ONE, 101.0)
    assert look(drains, 100.0 + FIRST_POLL, BUSY) == []
    assert look(drains, 100.0 + 2 * FIRST_POLL, BUSY) == [(dns, ONE)]


def idle(drains: Drains, now: float) -> list[tuple[VirtualServerKey, RealServerKey]]:
    """Poll everything that is due, and delete what is over; nothing has a connection."""
    over = []
    while keys := drains.to_poll(now):
        found = drains.drained({key: dict.fromkeys(drains.of(key), IDLE) for key in keys}, now)
        for key, real_server in found:
            drains.stop(key, [real_server])
        over += found
    return over


def many(drains: Drains, count: int, now: float, *, each: int = 100) -> None:
    """Let so many real servers of TCP begin to drain."""
    for number in range(count):
        key = VirtualServerKey(Protocol.TCP, f"10.97.{number // each // 250}.{number // each % 250}", 80)
        drains.start(key, (f"10.1.{number // 250}.{number % 250}", 8080), now)


def test_of_very_many_as_many_are_deleted_as_the_kernel_is_to_keep_and_then_as_it_forgets_them() -> None:
    drains = Drains(0)
    many(drains, MOST_KEPT + 1000, 100.0)
    assert len(idle(drains, 150.0)) == MOST_KEPT
    assert len(idle(drains, 160.0)) == pytest.approx(MOST_KEPT * 10 / KEPT, rel=0.05)
    assert len(idle(drains, 160.0 + KEPT)) == pytest.approx(1000 - MOST_KEPT * 10 / KEPT, rel=0.05)
    assert drains.next_due() is None


def test_while_very_many_begin_to_drain_fewer_are_deleted() -> None:
    """As in a minute of a thousand changes a second: with the kernel's search each would take longer than it may."""
    drains, deleted, a_second = Drains(0), 0, 1000
    for second in range(0, 60, 2):
        for number in range(2 * a_second):
            drains.start(WEB, (f"10.2.{second}.{number % 250}", 1 + number // 250), 100.0 + second)
        gone = len(idle(drains, 102.0 + second))
        deleted += gone
        assert gone * a_second <= SEARCHED_A_SECOND
    assert deleted < SEARCHED_A_SECOND / a_second + 60 * 60 * a_second / LONGEST_WAIT
    assert len(idle(drains, 164.0)) == pytest.approx(MOST_KEPT - deleted, rel=0.5), "they have ended"


def test_none_waits_for_very_long_however_many_there_are() -> None:
    drains, left = Drains(0), 20 * MOST_KEPT
    many(drains, left, 100.0)
    for now in (150.0, 180.0, 210.0):
        left -= len(idle(drains, now))
    assert len(idle(drains, 240.0)) == pytest.approx(30 * left / LONGEST_WAIT, abs=1)


def test_one_of_udp_does_not_wait_for_those_of_tcp() -> None:
    dns, drains = VirtualServerKey(Protocol.UDP, "10.96.0.1", 53), Drains(0)
    many(drains, 2 * MOST_KEPT, 100.0)
    assert len(idle(drains, 150.0)) == MOST_KEPT
    drains.start(dns, ONE, 151.0)
    assert (dns, ONE) in idle(drains, 160.0)


def test_those_with_connections_do_not_keep_others_from_being_deleted() -> None:
    drains = Drains(0)
    many(drains, 2 * MOST_KEPT, 100.0)
    drains.start(WEB, ONE, 101.0)
    busy, over = set[VirtualServerKey](), list[tuple[VirtualServerKey, RealServerKey]]()
    for now in (150.0, 160.0, 170.0, 180.0):
        while keys := drains.to_poll(now):
            busy |= set(keys) - {WEB}
            over += drains.drained(
                {key: dict.fromkeys(drains.of(key), IDLE if key == WEB else BUSY) for key in keys}, now
            )
    assert len(busy) == 2 * MOST_KEPT / 100
    assert (WEB, ONE) in over


def test_a_reading_keeps_the_time_of_what_drained_and_drops_what_does_not() -> None:
    drains = Drains(60)
    drains.start(WEB, ONE, 100.0)
    drains.start(OTHER, ONE, 100.0)
    drains.found(WEB, {ONE, TWO}, 140.0)
    drains.keep_only({WEB})
    assert look(drains, 161.0, BUSY, BUSY) == [(WEB, ONE)]
    drains.found(WEB, (), 170.0)
    assert drains.next_due() is None


class Table:
    """Answers with BUSY for every virtual server, and notes how it was asked."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.asked: dict[str, list[KernelKey]] = {}
        self._refuses = refuses

    async def real_servers(self, keys: Sequence[KernelKey]) -> StatesByServer:
        self.asked["netlink"] = list(keys)
        return {key: {ONE: BUSY} for key in keys}

    async def ipv4_real_servers(self, keys: Sequence[KernelKey]) -> StatesByServer:
        self.asked["one call"] = list(keys)
        if self._refuses:
            raise KernelError("no", errno=errno.ENOPROTOOPT)
        return {key: {ONE: BUSY} for key in keys}


IPV6 = VirtualServerKey(Protocol.TCP, "fd00::1", 80)


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ([WEB, OTHER], {"one call": [WEB, OTHER]}),
        ([IPV6], {"netlink": [IPV6]}),
        ([WEB, IPV6], {"one call": [WEB], "netlink": [IPV6]}),
    ],
    ids=["ipv4", "ipv6", "both"],
)
async def test_ipv4_needs_no_dumps(keys: list[VirtualServerKey], asked: dict[str, list[KernelKey]]) -> None:
    table = Table()
    assert await Drains(0).read(table, keys) == {key: {ONE: BUSY} for key in keys}  # type: ignore[arg-type]
    assert table.asked == asked


async def test_a_draining_real_server_of_ipv6_behind_an_ipv4_address_is_not_overlooked() -> None:
    drains, table = Drains(0), Table()
    drains.start(WEB, ("fd00::2", 8080), 100.0)
    await drains.read(table, [WEB, OTHER])  # type: ignore[arg-type]
    assert table.asked == {"one call": [OTHER], "netlink": [WEB]}


async def test_where_the_kernel_refuses_the_call_it_is_asked_by_netlink() -> None:
    table = Table(refuses=True)
    assert await Drains(0).read(table, [WEB, IPV6]) == {WEB: {ONE: BUSY}, IPV6: {ONE: BUSY}}  # type: ignore[arg-type]
    assert table.asked == {"one call": [WEB], "netlink": [WEB, IPV6]}
