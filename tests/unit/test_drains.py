"""When draining real servers are looked at, and which of them may go."""

from kroute.controllers.drains import FIRST_POLL, LAST_POLL, Drains
from kroute.kernel.ipvs import RealServerState
from kroute.planning.plan import Protocol, VirtualServerKey

WEB = VirtualServerKey(Protocol.TCP, "10.96.0.1", 80)
OTHER = VirtualServerKey(Protocol.TCP, "10.96.0.2", 80)
ONE, TWO = ("10.1.0.1", 8080), ("10.1.0.2", 8080)
BUSY, IDLE = RealServerState(0, 1, 0), RealServerState(0, 0, 0)


def test_nothing_drains_and_nothing_is_due() -> None:
    drains = Drains(0)
    assert drains.next_poll() is None
    drains.start(WEB, ONE, 100.0)
    drains.stop(WEB, ONE)
    assert drains.next_poll() is None


def test_it_is_looked_at_soon_and_then_less_and_less() -> None:
    drains = Drains(0)
    drains.start(WEB, ONE, 100.0)
    assert drains.next_poll() == 100.0 + FIRST_POLL
    assert drains.over({WEB: {ONE: BUSY}}, 200.0) == []
    assert drains.next_poll() == 210.0
    assert drains.over({WEB: {ONE: BUSY}}, 10_000.0) == []
    assert drains.next_poll() == 10_000.0 + LAST_POLL


def test_what_begins_to_drain_is_looked_at_soon_again() -> None:
    drains = Drains(0)
    drains.start(WEB, ONE, 100.0)
    drains.over({WEB: {ONE: BUSY}}, 1000.0)
    drains.start(OTHER, TWO, 1010.0)
    assert drains.next_poll() == 1000.0 + FIRST_POLL


def test_only_virtual_servers_with_something_that_drains_are_asked_for() -> None:
    drains = Drains(0)
    drains.start(WEB, ONE, 100.0)
    drains.start(OTHER, TWO, 100.0)
    drains.stop(OTHER, TWO)
    assert list(drains.virtual_servers) == [WEB]


def test_what_has_no_connections_or_no_time_left_is_over() -> None:
    drains = Drains(60)
    drains.start(WEB, ONE, 100.0)
    drains.start(WEB, TWO, 130.0)
    table = {WEB: {ONE: BUSY, TWO: BUSY}}
    assert drains.over(table, 159.0) == []
    assert drains.next_poll() == 159.0 + FIRST_POLL
    assert drains.over(table, 161.0) == [(WEB, ONE)]
    assert drains.over({WEB: {ONE: BUSY, TWO: IDLE}}, 162.0) == [(WEB, ONE), (WEB, TWO)]


def test_a_reading_keeps_the_time_of_what_drained_and_drops_what_does_not() -> None:
    drains = Drains(60)
    drains.start(WEB, ONE, 100.0)
    drains.start(OTHER, ONE, 100.0)
    drains.found(WEB, {ONE, TWO}, 140.0)
    drains.keep_only({WEB})
    assert list(drains.virtual_servers) == [WEB]
    assert drains.over({WEB: {ONE: BUSY, TWO: BUSY}}, 161.0) == [(WEB, ONE)]
    drains.found(WEB, (), 170.0)
    assert drains.next_poll() is None
