"""Which UDP flows are ended, and when the kernel's are listed."""

import errno
import time
from collections.abc import AsyncIterator, Collection

import pytest
from structlog.testing import capture_logs

from kroute.controllers.service_proxy.udp_flows import UdpFlows
from kroute.kernel.conntrack import DeleteFlow, Flow
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.pass_status import PassStatus
from kroute.reconcile.resync_schedule import LEAST_PAUSE, PAUSE_FOR_WORK
from tests.fakes.conntrack import FakeConntrack
from tests.fakes.kernel import FakeKernel, Operation
from tests.unit.fake_node import Clock

DNS = VirtualServerKey(Protocol.UDP, "10.96.0.10", 53)
DNS6 = VirtualServerKey(Protocol.UDP, "fd00:96::10", 53)
SIP = VirtualServerKey(Protocol.UDP, "10.96.0.20", 5060)
FIRST, SECOND = ("10.244.1.1", 5353), ("10.244.2.2", 5353)
FIRST6 = ("fd00:244::1", 5353)


class Node:
    """A kernel with flows, and the `UdpFlows` that ends them. `serving` has each virtual server's real servers."""

    def __init__(self) -> None:
        self.kernel = FakeKernel()
        self.clock = Clock()
        self.status = PassStatus("service_proxy", self.clock)
        self.conntrack = FakeConntrack(self.kernel)
        self.udp_flows = UdpFlows(self.status, self.conntrack)
        self.serving: dict[VirtualServerKey, Collection[tuple[str, int]]] = {}
        self._next_port = 40000

    def flow(self, key: VirtualServerKey, real_server: tuple[str, int], protocol: int = Protocol.UDP) -> Flow:
        """Add a client's flow through a real server, and return it as the kernel has it."""
        client = "fd00:9::9" if ":" in key.address else "10.9.9.9"
        self._next_port += 1
        made = Flow(client, self._next_port, key.address, key.port, *real_server, client, self._next_port)
        self.conntrack.add_flows(made, protocol=protocol)
        return self.kernel.flows[-1][1]

    async def end_stale(self, *suspects: VirtualServerKey) -> None:
        self.udp_flows.suspect(suspects)
        await self.udp_flows.end_stale(lambda key: self.serving.get(key, ()))

    @property
    def ended(self) -> list[Flow]:
        return [change.flow for change in self.kernel.writes if isinstance(change, DeleteFlow)]

    @property
    def left(self) -> list[Flow]:
        return [flow for _, flow in self.kernel.flows]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    async with made.conntrack:
        yield made


@pytest.mark.parametrize(
    ("key", "gone", "serving"),
    [(DNS, FIRST, SECOND), (DNS6, FIRST6, ("fd00:244::2", 5353))],
    ids=["IPv4", "IPv6"],
)
async def test_only_flows_of_real_servers_that_serve_no_longer_end(
    node: Node, key: VirtualServerKey, gone: tuple[str, int], serving: tuple[str, int]
) -> None:
    stale, fresh = node.flow(key, gone), node.flow(key, serving)
    node.serving[key] = [serving]
    await node.end_stale(key)
    assert (node.ended, node.left) == ([stale], [fresh])
    assert node.status.counters.writes == 1


async def test_another_port_of_the_same_pod_is_another_real_server(node: Node) -> None:
    stale = node.flow(DNS, (FIRST[0], 53))
    node.serving[DNS] = [FIRST]
    await node.end_stale(DNS)
    assert node.ended == [stale]


async def test_flows_begun_without_a_virtual_server_end(node: Node) -> None:
    untouched = node.flow(DNS, (DNS.address, DNS.port))
    node.serving[DNS] = [FIRST]
    await node.end_stale(DNS)
    assert node.ended == [untouched]


async def test_all_flows_to_a_virtual_server_that_is_gone_end(node: Node) -> None:
    flows = [node.flow(DNS, FIRST), node.flow(DNS, SECOND)]
    await node.end_stale(DNS)
    assert node.ended == flows


async def test_flows_to_what_is_not_suspect_stay(node: Node) -> None:
    unsuspected = node.flow(SIP, FIRST)
    other_port = node.flow(DNS._replace(port=54), FIRST)
    direct = node.flow(VirtualServerKey(Protocol.UDP, *FIRST), FIRST)
    await node.end_stale(DNS)
    assert node.left == [unsuspected, other_port, direct]


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.SCTP])
async def test_other_protocols_are_never_suspect_and_never_end(node: Node, protocol: Protocol) -> None:
    kept = node.flow(DNS, FIRST, protocol)
    node.udp_flows.suspect([DNS._replace(protocol=protocol)])
    assert not node.udp_flows.is_due
    await node.end_stale(DNS)
    assert node.left == [kept]


async def test_a_restart_with_everything_suspect_ends_nothing_that_serves(node: Node) -> None:
    flows = [node.flow(DNS, FIRST), node.flow(SIP, SECOND), node.flow(DNS6, FIRST6)]
    node.serving = {DNS: [FIRST, SECOND], SIP: [SECOND], DNS6: [FIRST6]}
    with capture_logs() as logs:
        await node.end_stale(DNS, SIP, DNS6)
    assert node.left == flows
    assert (node.kernel.writes, node.status.counters.writes, logs) == ([], 0, [])


async def test_the_kernel_is_asked_once_a_family_and_only_when_something_is_suspect(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = node.conntrack.udp_flows

    async def noted(family: int, destinations: list[tuple[str, int]]) -> list[Flow]:
        asked.append(family)
        return await ask(family, destinations)

    monkeypatch.setattr(node.conntrack, "udp_flows", noted)
    await node.end_stale()
    assert asked == []
    await node.end_stale(DNS, SIP, DNS6)
    assert sorted(asked) == [2, 10]
    assert not node.udp_flows.is_due
    await node.end_stale()
    assert len(asked) == 2


async def test_what_becomes_suspect_during_the_look_is_looked_for_next(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = node.conntrack.udp_flows

    async def meanwhile(family: int, destinations: list[tuple[str, int]]) -> list[Flow]:
        node.udp_flows.suspect([SIP])
        return await ask(family, destinations)

    monkeypatch.setattr(node.conntrack, "udp_flows", meanwhile)
    await node.end_stale(DNS)
    due = node.udp_flows.next_due()
    assert due is not None
    node.clock.now = due
    assert node.udp_flows.is_due


async def test_the_pause_after_a_look_is_a_multiple_of_the_processor_time_that_it_took(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = node.conntrack.udp_flows
    spent = 0.0

    async def expensive(family: int, destinations: list[tuple[str, int]]) -> list[Flow]:
        nonlocal spent
        begun = time.thread_time()
        while spent <= LEAST_PAUSE / PAUSE_FOR_WORK:
            spent = time.thread_time() - begun
        return await ask(family, destinations)

    monkeypatch.setattr(node.conntrack, "udp_flows", expensive)
    await node.end_stale(DNS)
    stale = node.flow(SIP, FIRST)
    await node.end_stale(SIP)
    due = node.udp_flows.next_due()
    assert due is not None
    assert due - node.clock() >= PAUSE_FOR_WORK * spent > LEAST_PAUSE
    assert node.left == [stale]
    node.clock.now = due
    await node.end_stale()
    assert node.ended == [stale]


async def test_one_line_tells_of_each_virtual_server(node: Node) -> None:
    for key in (DNS, DNS, SIP):
        node.flow(key, FIRST)
    with capture_logs() as logs:
        await node.end_stale(DNS, SIP)
    told = [(line["event"], line["virtual_server"], line["flows"]) for line in logs]
    assert told == [("flows.ended", "UDP 10.96.0.10:53", 2), ("flows.ended", "UDP 10.96.0.20:5060", 1)]


async def test_a_kernel_that_cannot_tell_is_asked_again_later_and_later_with_one_warning(node: Node) -> None:
    node.kernel.missing_modules.add("nf_conntrack_netlink")
    stale = [node.flow(DNS, FIRST), node.flow(DNS6, FIRST6)]
    waits = []
    with capture_logs() as logs:
        await node.end_stale(DNS, DNS6)
        for _ in range(8):
            assert not node.udp_flows.is_due
            due = node.udp_flows.next_due()
            assert due is not None
            waits.append(due - node.clock())
            node.clock.now = due
            assert node.udp_flows.is_due
            await node.end_stale()
    assert waits[:6] == [0.5, 1, 2, 4, 8, 16]
    assert all(15 < wait <= 30 for wait in waits[6:]), waits
    assert [(line["event"], line["log_level"], line["virtual_servers"]) for line in logs] == [
        ("flows.not_ended", "warning", 2)
    ]
    assert "nf_conntrack_netlink" in logs[0]["error"]
    assert node.status.counters.failures == 18

    node.kernel.missing_modules.clear()
    node.clock.now += 30
    await node.end_stale()
    assert node.ended == stale
    assert node.udp_flows.next_due() is None


async def test_a_family_that_cannot_be_read_keeps_its_suspects_and_the_other_goes_on(node: Node) -> None:
    stale, stale6 = node.flow(DNS, FIRST), node.flow(DNS6, FIRST6)
    node.kernel.refuse(lambda change: change == Operation("list UDP flows", "10"), errno.EINTR)
    await node.end_stale(DNS, DNS6)
    assert node.ended == [stale]
    node.kernel.accept_all()
    node.clock.now += 1
    await node.end_stale()
    assert node.ended == [stale, stale6]


async def test_a_refused_deletion_stops_no_other_and_is_tried_again(node: Node) -> None:
    offloaded, other = node.flow(DNS, FIRST), node.flow(SIP, FIRST)
    node.kernel.refuse(lambda change: change == DeleteFlow(offloaded), errno.EBUSY)
    with capture_logs() as logs:
        await node.end_stale(DNS, SIP)
    assert node.ended == [other]
    assert [line["event"] for line in logs] == ["flows.ended", "flows.not_ended"]
    assert "Device or resource busy" in logs[1]["error"]
    assert (node.status.counters.writes, node.status.counters.failures) == (1, 1)
    node.kernel.accept_all()
    node.clock.now += 1
    await node.end_stale()
    assert node.ended == [other, offloaded]


async def test_a_cleanup_ends_all_flows_of_what_it_deletes(node: Node) -> None:
    ended = [node.flow(DNS, FIRST), node.flow(DNS, SECOND), node.flow(DNS6, FIRST6)]
    kept = node.flow(SIP, FIRST)
    report = CleanupReport()
    await node.udp_flows.forget_all([DNS, DNS6, SIP._replace(protocol=Protocol.TCP)], report)
    assert set(node.ended) == set(ended)
    assert node.left == [kept]
    assert sorted(report.undone) == [
        "end the UDP flows of virtual server UDP 10.96.0.10:53 (2)",
        "end the UDP flows of virtual server UDP [fd00:96::10]:53 (1)",
    ]
    assert report.failed == []


async def test_a_cleanup_with_nothing_to_end_says_nothing(node: Node) -> None:
    report = CleanupReport()
    await node.udp_flows.forget_all([DNS], report)
    assert (report.undone, report.failed) == ([], [])


async def test_a_cleanup_goes_on_where_the_kernel_cannot_tell_of_flows(node: Node) -> None:
    node.kernel.missing_modules.add("nf_conntrack_netlink")
    report = CleanupReport()
    with capture_logs() as logs:
        await node.udp_flows.forget_all([DNS], report)
    assert (report.undone, report.failed) == ([], [])
    assert [line["event"] for line in logs] == ["flows.left"]
