"""What the kernel's counters say of a real server; the figures are those of real pods on Linux 7.3 in the lab."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.controllers.ipvs.ejections import Evidence, Fault, fault_between
from kroute.kernel.ipvs.objects import RealServerTraffic, Traffic

POD1, POD2, POD3 = ("10.1.0.1", 80), ("10.1.0.2", 80), ("10.1.0.3", 80)
NOTHING = RealServerTraffic()


@pytest.mark.parametrize(
    ("ipv6", "passed", "active", "fault"),
    [
        pytest.param(False, (2, 12, 8, 698, 702), 0, None, id="two requests over HTTP"),
        pytest.param(True, (2, 12, 8, 938, 888), 0, None, id="the same over IPv6"),
        pytest.param(False, (2, 8, 0, 480, 0), 2, Fault.SILENCE, id="SYNs, each sent four times, are dropped"),
        pytest.param(True, (2, 8, 0, 640, 0), 2, Fault.SILENCE, id="the same over IPv6"),
        pytest.param(False, (2, 2, 2, 120, 80), 0, Fault.REFUSAL, id="resets"),
        pytest.param(True, (2, 2, 2, 160, 120), 0, Fault.REFUSAL, id="resets over IPv6"),
        pytest.param(False, (2, 2, 2, 120, 176), 2, Fault.UNREACHABLE, id="a firewall rejects with ICMP"),
        pytest.param(False, (2, 8, 8, 480, 704), 2, Fault.UNREACHABLE, id="the pod's node is down"),
        pytest.param(True, (2, 8, 8, 640, 1024), 2, Fault.UNREACHABLE, id="the same over IPv6"),
        pytest.param(False, (2, 8, 6, 480, 528), 2, Fault.UNREACHABLE, id="some SYNs were dropped before"),
        pytest.param(False, (2, 8, 8, 480, 704), 0, None, id="the connections have ended as others do"),
        pytest.param(False, (3, 3, 3, 180, 180), 3, None, id="clients that only connect get a SYN-ACK"),
        pytest.param(False, (3, 3, 3, 180, 132), 3, None, id="a SYN-ACK with nothing but an MSS"),
        pytest.param(False, (3, 6, 4, 360, 44 + 3 * 40), 0, None, id="one SYN-ACK among resets"),
        pytest.param(False, (0, 10, 10, 900, 400), 0, Fault.REFUSAL, id="a long upload, without a new connection"),
    ],
)
def test_what_is_counted_says_how_a_real_server_answers(
    ipv6: bool, passed: tuple[int, ...], active: int, fault: Fault | None
) -> None:
    assert fault_between(NOTHING, RealServerTraffic(Traffic(*passed), active), is_ipv6=ipv6) is fault


def test_counters_that_were_set_to_zero_say_nothing() -> None:
    assert fault_between(RealServerTraffic(Traffic(5, 5, 0, 300, 0)), NOTHING, is_ipv6=False) is None


@given(st.integers(1, 100), st.integers(44, 80), st.integers(0, 100), st.integers(0, 10**6), st.booleans())
def test_one_that_sends_a_syn_ack_is_never_silent_and_never_refuses(
    connections: int, syn_ack: int, more: int, size: int, ipv6: bool
) -> None:
    bare = 60 if ipv6 else 40
    out = connections * (syn_ack + bare - 40) + more * (bare + size)
    passed = Traffic(connections, 2 * connections, connections + more, 112 * connections, out)
    fault = fault_between(NOTHING, RealServerTraffic(passed), is_ipv6=ipv6)
    assert fault not in {Fault.SILENCE, Fault.REFUSAL}


class Counters:
    """Real servers that count as the kernel does, and what has been seen of them."""

    def __init__(self) -> None:
        self.evidence = Evidence(is_ipv6=False)
        self.counts = dict.fromkeys((POD1, POD2, POD3), NOTHING)
        self.look(0.0)

    def look(self, now: float, **passed: tuple[int, ...]) -> list[tuple[str, int]]:
        """Look at the counters after more has passed. Returns who fails for five seconds."""
        for number, (pod, (traffic, active)) in enumerate(self.counts.items(), 1):
            more = passed.get(f"pod{number}", (0,) * 5)
            summed = Traffic(*(a + b for a, b in zip(traffic, more, strict=True)))
            self.counts[pod] = RealServerTraffic(summed, active + more[0])
        self.evidence.take(self.counts, now)
        return list(self.evidence.failing((POD1, POD2, POD3), 5, now))


GOOD, SILENT = (1, 6, 4, 349, 349), (1, 2, 0, 120, 0)


def test_one_fails_that_is_silent_for_so_long_while_most_others_accept() -> None:
    counters = Counters()
    assert counters.look(2, pod1=SILENT, pod2=GOOD, pod3=GOOD) == []
    assert counters.look(4, pod1=SILENT, pod2=GOOD) == []
    assert counters.look(6, pod1=SILENT, pod3=GOOD) == [], "only for four seconds"
    assert counters.look(8, pod1=SILENT) == [POD1]


def test_too_few_connections_are_no_evidence() -> None:
    counters = Counters()
    for now in range(2, 60, 2):
        found = counters.look(now, pod1=SILENT if now < 6 else (0, 1, 0, 60, 0), pod2=GOOD, pod3=GOOD)
        assert found == []


def test_an_answer_clears_it() -> None:
    counters = Counters()
    for now in (2, 4, 6):
        counters.look(now, pod1=SILENT, pod2=GOOD, pod3=GOOD)
    assert counters.look(8, pod1=GOOD, pod2=GOOD, pod3=GOOD) == []
    assert counters.look(10, pod1=SILENT, pod2=GOOD, pod3=GOOD) == []


def test_a_syn_ack_that_is_counted_later_than_its_connection_is_an_answer() -> None:
    counters = Counters()
    for now in range(2, 30, 4):
        assert counters.look(now, pod1=(2, 2, 0, 120, 0), pod2=GOOD, pod3=GOOD) == []
        assert counters.look(now + 2, pod1=(0, 4, 4, 200, 300)) == []


def test_nobody_fails_where_all_are_alike_or_most_are() -> None:
    counters = Counters()
    for now in (2, 4, 6, 8, 10):
        assert counters.look(now, pod1=SILENT, pod2=SILENT, pod3=SILENT) == []
    other = Counters()
    for now in (2, 4, 6, 8, 10):
        assert other.look(now, pod1=SILENT, pod2=SILENT, pod3=GOOD) == []


def test_nobody_fails_where_no_other_is_asked() -> None:
    counters = Counters()
    for now in (2, 4, 6, 8, 10):
        assert counters.look(now, pod1=SILENT) == []


def test_a_long_quiet_connection_is_no_evidence() -> None:
    counters = Counters()
    counters.look(2, pod1=(1, 3, 2, 164, 112), pod2=GOOD, pod3=GOOD)
    for now in range(4, 600, 2):
        keepalive = (0, 1, 1, 52, 52) if now % 60 == 0 else (0,) * 5
        assert counters.look(now, pod1=keepalive, pod2=GOOD, pod3=GOOD) == []


def test_a_client_that_sends_into_an_old_connection_is_no_evidence() -> None:
    counters = Counters()
    for now in range(2, 60, 2):
        assert counters.look(now, pod1=(0, 1, 0, 900, 0), pod2=GOOD, pod3=GOOD) == []


UNREACHABLE = (1, 4, 4, 240, 352)


def held_as_unreachable() -> Counters:
    """Errors that quoted SYNs were all that came back from the first pod, which gets no new connections now."""
    counters = Counters()
    for now in (2, 4, 6):
        assert counters.look(now, pod1=UNREACHABLE, pod2=GOOD, pod3=GOOD) == []
    assert counters.look(8, pod1=UNREACHABLE) == [POD1]
    counters.evidence.hold(POD1)
    return counters


def test_an_error_that_quotes_a_packet_of_an_older_connection_is_no_answer() -> None:
    """A client that gave its connection up repeats its FIN, and its request, for minutes."""
    counters = held_as_unreachable()
    for now, passed in enumerate([(0, 1, 1, 52, 80), (0, 1, 0, 140, 0), (0, 0, 1, 0, 168)]):
        counters.look(10 + now, pod1=passed, pod2=GOOD, pod3=GOOD)
        assert not counters.evidence.has_answered(POD1)


def test_errors_that_come_later_than_the_look_are_errors() -> None:
    """The kernel looks for the pod's address for three seconds first: those of earlier SYNs come now."""
    counters = Counters()
    counters.look(2, pod2=GOOD, pod3=GOOD)
    assert counters.look(4, pod1=(1, 1, 2, 60, 176), pod2=GOOD, pod3=GOOD) == []
    assert counters.look(6, pod1=(1, 1, 1, 60, 88), pod2=GOOD, pod3=GOOD) == []
    assert counters.look(9, pod1=(1, 1, 1, 60, 88)) == [POD1]
