"""When draining real servers are polled, and which of them may be deleted."""

from kroute.controllers.service_proxy.drains import FIRST_POLL, LAST_POLL, LOOKED_AT_TOGETHER, Drains
from kroute.kernel.ipvs.client import RealServerKey, RealServerState
from kroute.model.plan import Protocol, VirtualServerKey

WEB = VirtualServerKey(Protocol.TCP, "10.96.0.1", 80)
OTHER = VirtualServerKey(Protocol.TCP, "10.96.0.2", 80)
ONE, TWO = ("10.1.0.1", 8080), ("10.1.0.2", 8080)
BUSY, IDLE = RealServerState(0, 1, 0), RealServerState(0, 0, 0)


def test_nothing_drains_and_nothing_is_due() -> None:
    drains = Drains(0)
    assert drains.next_due() is None
    drains.start(WEB, ONE, 100.0)
    drains.stop(WEB, ONE)
    assert drains.next_due() is None


def look(drains: Drains, now: float, *connections: RealServerState) -> list[tuple[VirtualServerKey, RealServerKey]]:
    """Poll everything that is due; each virtual server has these connections on ONE and TWO."""
    over = []
    while keys := drains.to_look_at(now):
        over += drains.over({key: dict(zip((ONE, TWO), connections, strict=False)) for key in keys}, now)
    return over


def test_it_is_looked_at_soon_and_then_less_and_less() -> None:
    drains = Drains(0)
    drains.start(WEB, ONE, 100.0)
    assert drains.next_due() == 100.0 + FIRST_POLL
    assert drains.to_look_at(100.0) == []
    assert drains.to_look_at(200.0) == [WEB]
    assert drains.next_due() == 210.0
    assert drains.to_look_at(10_000.0) == [WEB]
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
    drains.stop(OTHER, TWO)
    assert drains.to_look_at(102.0) == [WEB]


def test_a_long_look_goes_on_at_once_in_parts_and_ends() -> None:
    drains = Drains(0)
    keys = {VirtualServerKey(Protocol.TCP, f"10.96.1.{number}", 80) for number in range(LOOKED_AT_TOGETHER + 3)}
    for key in keys:
        drains.start(key, ONE, 100.0)
    first = drains.to_look_at(102.0)
    assert len(first) == LOOKED_AT_TOGETHER
    due = drains.next_due()
    assert due is not None
    assert due <= 102.1
    drains.start(WEB, ONE, 102.1)  # the next poll visits it
    assert {*first, *drains.to_look_at(102.1)} == keys
    assert drains.to_look_at(102.2) == []
    assert drains.next_due() == 102.1 + FIRST_POLL


def test_what_has_no_connections_or_no_time_left_is_over() -> None:
    drains = Drains(60)
    drains.start(WEB, ONE, 100.0)
    drains.start(WEB, TWO, 130.0)
    assert look(drains, 159.0, BUSY, BUSY) == []
    assert drains.next_due() == 159.0 + FIRST_POLL
    assert look(drains, 161.0, BUSY, BUSY) == [(WEB, ONE)]
    assert look(drains, 163.0, BUSY, IDLE) == [(WEB, ONE), (WEB, TWO)]


def test_a_reading_keeps_the_time_of_what_drained_and_drops_what_does_not() -> None:
    drains = Drains(60)
    drains.start(WEB, ONE, 100.0)
    drains.start(OTHER, ONE, 100.0)
    drains.found(WEB, {ONE, TWO}, 140.0)
    drains.keep_only({WEB})
    assert look(drains, 161.0, BUSY, BUSY) == [(WEB, ONE)]
    drains.found(WEB, (), 170.0)
    assert drains.next_due() is None
