"""What network policies refuse is logged with names: some packets with a line each, and the number of the others."""

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from kroute.firewall.nftables.policy_rules import Group
from kroute.inspect.policies import Enforced
from kroute.inspect.refusals import Refusals
from kroute.kernel.errors import KernelError
from kroute.kernel.packet_log import LoggedPacket
from kroute.model.policy_plan import Direction, GroupKey
from kroute.telemetry.policy_log import COUNTED_AFTER, LINES_A_SECOND, PolicyLog
from tests.unit.planning.policies.cluster import Cluster, egress, ingress, namespace, pod, pods_with
from tests.unit.watching import running
from tests.virtual_time import virtual

in_virtual_time = partial(virtual, settles_within=0)

WEB = pod("web", "10.0.0.1", "fd00::1", app="web")
API = pod("api", "10.0.1.1", on="node2", app="api")
CLIENTS = ingress(pods_with(app="friend"), name="clients")
OUT = egress(pods_with(app="friend"), name="out")


class Node:
    """A node with an isolated pod. Packets that a test logs come as PacketLog gives them, and the firewall counts.

    Stands in for PacketLog, which tests/kernel/test_packet_log.py holds against a kernel, and for PolicyTables.
    """

    def __init__(self) -> None:
        self.cluster = Cluster(namespace("shop"), WEB, API, CLIENTS, OUT)
        groups = self.cluster.catalog.pods["10.0.0.1"]
        self.ingress, self.egress = (Group.of(key).chain for key in groups if key is not None)
        self.counts: dict[str, int] = {self.ingress: 1000}
        self.refusals = Refusals(0)
        self.opened = 0
        self.reads = 0
        self.refusal: int | None = None
        """The errno with which the kernel refuses to send packets."""
        self.cannot_count = False
        self._packets = asyncio.Queue[list[LoggedPacket] | KernelError]()
        self.log = PolicyLog(Enforced(self.cluster.catalog, self, None, self.refusals), self.refusals, self.open)

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Node"]:
        if self.refusal is not None:
            raise KernelError("cannot read the packets that are logged; trying again", errno=self.refusal)
        self.opened += 1
        yield self

    async def next(self) -> list[LoggedPacket]:
        found = await self._packets.get()
        if isinstance(found, KernelError):
            raise found
        return found

    def group_name(self, key: GroupKey) -> str:
        return Group.of(key).chain

    async def refused(self) -> Mapping[str, int]:
        self.reads += 1
        if self.cannot_count:
            raise KernelError("the kernel's state changes faster than it can be read; trying later")
        return dict(self.counts)

    def refuse(self, packets: int = 1, logged: int | None = None, group: str = "") -> None:
        """Refuse so many packets to the pod, of which the firewall logs some."""
        group = group or self.ingress
        self.counts[group] = self.counts.get(group, 0) + packets
        packet = LoggedPacket(group, 6, "10.0.1.1", "10.0.0.1", 40000, 80)
        self._packets.put_nowait([packet] * (packets if logged is None else logged))

    def fail(self) -> None:
        self._packets.put_nowait(KernelError("cannot follow logged packets", errno=errno.EIO))

    def log_packet(self, packet: LoggedPacket) -> None:
        self._packets.put_nowait([packet])


def events(logs: list[EventDict], name: str) -> list[EventDict]:
    return [it for it in logs if it["event"] == name]


@in_virtual_time()
async def test_a_line_has_the_names_of_pods_and_policies() -> None:
    node = Node()
    with capture_logs() as logs:
        async with running(node.log.run()):
            node.refuse()
            node.log_packet(LoggedPacket(node.egress, 58, "fd00::1", "2001:db8::9"))
            await asyncio.sleep(1)
    into, out = events(logs, "policy.refused")
    assert into == {
        "event": "policy.refused", "log_level": "info", "direction": Direction.INGRESS, "protocol": "TCP",
        "source": "10.0.1.1", "source_port": 40000, "source_pod": "shop/api",
        "destination": "10.0.0.1", "destination_port": 80, "destination_pod": "shop/web",
        "namespace": "shop", "policies": ["clients"], "policies_total": 1, "group": node.ingress,
    }  # fmt: skip
    assert (out["direction"], out["policies"], out["protocol"]) == (Direction.EGRESS, ["out"], "ICMPv6")
    assert not {"source_port", "destination_port", "destination_pod"} & out.keys()
    assert [it.number for it in node.refusals.after(0).items] == [1, 2]


@in_virtual_time()
async def test_ten_thousand_packets_have_a_bounded_number_of_lines_and_are_all_counted() -> None:
    node = Node()
    with capture_logs() as logs:
        async with running(node.log.run()):
            await asyncio.sleep(0.5)
            for _ in range(10):
                node.refuse(1000, logged=20)
                await asyncio.sleep(0.5)
            await asyncio.sleep(2 * COUNTED_AFTER)
    lines = events(logs, "policy.refused")
    assert LINES_A_SECOND <= len(lines) <= 6 * LINES_A_SECOND
    assert [it["packets"] for it in events(logs, "policy.more_refused")] == [10_000 - len(lines)]
    found = node.refusals.after(0)
    assert (len(found.items), found.left_out) == (len(lines), 10_000 - len(lines))


@in_virtual_time()
async def test_counters_are_not_read_while_nothing_is_refused() -> None:
    node = Node()
    with capture_logs() as logs:
        async with running(node.log.run()):
            await asyncio.sleep(10 * COUNTED_AFTER)
            assert node.reads == 1
            node.refuse()
            await asyncio.sleep(10 * COUNTED_AFTER)
            assert node.reads == 2
    assert events(logs, "policy.more_refused") == [], "what was refused before the agent began is not said"


@in_virtual_time()
async def test_what_is_refused_after_a_look_and_not_logged_is_counted_by_the_next() -> None:
    node = Node()
    with capture_logs() as logs:
        async with running(node.log.run()):
            await asyncio.sleep(1)
            node.refuse(50, logged=1)
            await asyncio.sleep(COUNTED_AFTER + 1)
            node.refuse(7, logged=0)
            await asyncio.sleep(COUNTED_AFTER)
    assert [it["packets"] for it in events(logs, "policy.more_refused")] == [49, 7]


@in_virtual_time()
async def test_a_group_that_was_written_anew_counts_from_nothing() -> None:
    node = Node()
    with capture_logs() as logs:
        async with running(node.log.run()):
            await asyncio.sleep(1)
            node.counts[node.ingress] = 0
            node.refuse(7, logged=2)
            await asyncio.sleep(2 * COUNTED_AFTER)
    assert [it["packets"] for it in events(logs, "policy.more_refused")] == [5]


@in_virtual_time()
async def test_counters_that_cannot_be_read_are_read_later() -> None:
    node = Node()
    with capture_logs() as logs:
        async with running(node.log.run()):
            await asyncio.sleep(1)
            node.cannot_count = True
            node.refuse(100, logged=1)
            await asyncio.sleep(1.5 * COUNTED_AFTER)
            node.cannot_count = False
            await asyncio.sleep(2 * COUNTED_AFTER)
    assert [it["packets"] for it in events(logs, "policy.more_refused")] == [99]
    assert events(logs, "policy_log.unavailable") == []


@in_virtual_time()
async def test_a_packet_that_has_a_line_before_it_is_counted_is_counted_once() -> None:
    node = Node()
    with capture_logs() as logs:
        async with running(node.log.run()):
            await asyncio.sleep(1)
            node.counts[node.ingress] -= 3
            node.refuse(3)
            await asyncio.sleep(2 * COUNTED_AFTER)
            node.refuse(8, logged=5)
            await asyncio.sleep(2 * COUNTED_AFTER)
    assert events(logs, "policy.more_refused") == []


@in_virtual_time()
async def test_what_no_group_has_logged_has_no_line() -> None:
    node = Node()
    with capture_logs() as logs:
        async with running(node.log.run()):
            node.log_packet(LoggedPacket("of another program", 6, "10.0.0.1", "10.0.0.2"))
            await asyncio.sleep(1)
    assert events(logs, "policy.refused") == []


@in_virtual_time()
async def test_a_new_group_is_known() -> None:
    node = Node()
    with capture_logs() as logs:
        async with running(node.log.run()):
            node.refuse()
            await asyncio.sleep(1)
            node.cluster.after(pod("db", "10.0.0.2"), ingress(name="db"))
            key = node.cluster.catalog.pods["10.0.0.2"].ingress
            assert key is not None
            node.refuse(group=Group.of(key).chain)
            await asyncio.sleep(1)
    assert [it["policies"] for it in events(logs, "policy.refused")] == [["clients"], ["clients", "db"]]


@pytest.mark.parametrize(
    ("refusal", "next_step"), [(errno.EPERM, "--policy-log-group"), (errno.EINVAL, "nfnetlink_log"), (None, "again")]
)
def test_a_log_that_cannot_be_read_is_said_once_and_opened_again(refusal: int | None, next_step: str) -> None:
    """None: it could be read at first."""

    @in_virtual_time()
    async def watched() -> None:
        node = Node()
        node.refusal = refusal
        with capture_logs() as logs:
            async with running(node.log.run()):
                if refusal is None:
                    node.fail()
                await asyncio.sleep(100)
                node.refusal = None
                await asyncio.sleep(100)
                node.refuse()
                await asyncio.sleep(1)
        [said] = events(logs, "policy_log.unavailable")
        assert next_step in said["next_step"]
        assert len(events(logs, "policy.refused")) == 1
        assert node.opened == (2 if refusal is None else 1)

    watched()
