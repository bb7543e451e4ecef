"""A port with source ranges is served only once the rules keep other clients out; other ports do not wait."""

import errno
from pathlib import Path

import msgspec
from structlog.testing import capture_logs

from kroute.controllers.service_proxy.readiness import LONGEST_PATIENCE, PATIENCE
from kroute.kernel.ipset import AddEntry
from kroute.model.plan import AddressSet, ServicePlan, SetEntry
from tests.unit.fake_node import DUMMY, FakeNode, plan, server

BALANCED, BALANCED6, CLUSTER_IP = "203.0.113.10", "2001:db8::10", "10.96.0.1"
KEY, KEY6, CLUSTER_KEY = (6, BALANCED, 443), (6, BALANCED6, 443), (6, CLUSTER_IP, 80)
BACKEND = ("10.1.0.1", 8080)
BACKENDS, BACKENDS6 = ("10.1.0.1",), ("fd00:1::1",)


def open_to_all(generation: int) -> ServicePlan:
    return plan("web", generation, server(BALANCED, 443, *BACKENDS), server(CLUSTER_IP, 80, *BACKENDS))


def restricted(plan_: ServicePlan, *keys: tuple[int, str, int]) -> ServicePlan:
    """Return the plan with these ports for clients in 192.0.2.0/24 and 2001:db8:1::/48 only."""
    ports = [(address, protocol, port) for protocol, address, port in keys or (KEY,)]
    own = [SetEntry(AddressSet.RESTRICTED, port) for port in ports]
    own += [
        SetEntry(AddressSet.SOURCE_RANGE, (*port, "2001:db8:1::/48" if ":" in port[0] else "192.0.2.0/24"))
        for port in ports
    ]
    return msgspec.structs.replace(plan_, set_entries=(*plan_.set_entries, *own))


def for_some(generation: int) -> ServicePlan:
    return restricted(open_to_all(generation))


def weights(node: FakeNode, key: tuple[int, str, int]) -> list[int]:
    """Return the weights of a virtual server's real servers; [] if it does not exist."""
    state = node.kernel.virtual_servers.get(key)
    return [real.weight for real in state.real_servers.values()] if state else []


def hold_the_lock(node: FakeNode) -> None:
    """Have every commit of rules fail, as while another program holds the lock."""
    node.kernel.refuse(lambda change: "commit table" in str(change), errno.EAGAIN)


def refuse_the_entry(node: FakeNode, set_: str = "RESTRICTED") -> None:
    """Have the kernel refuse the set's entries, as a full set does."""
    node.kernel.refuse(lambda change: isinstance(change, AddEntry) and change.set == f"KROUTE-{set_}", 4352)


async def test_without_rules_at_a_first_start_it_is_not_served_for_as_long_as_it_takes(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    hold_the_lock(node)
    await node.start(for_some(1), plan("free", 2, server("10.96.0.9", 80, "10.1.0.9")))
    for _ in range(5):
        await node.wait(LONGEST_PATIENCE)
    assert weights(node, KEY) == []
    assert not node.kernel.has_address(BALANCED)
    assert weights(node, CLUSTER_KEY) == weights(node, (6, "10.96.0.9", 80)) == [1]
    assert node.kernel.has_address(CLUSTER_IP)
    assert node.service_proxy.live.is_set()
    [(owner, problem)] = node.problems
    assert (str(owner), problem.reason) == ("default/web", "SourceRangesNotEnforced")
    assert problem.message.startswith("TCP 203.0.113.10:443 not served on this node")
    node.kernel.accept_all()
    await node.resync()
    assert weights(node, KEY) == [1]
    assert node.kernel.has_address(BALANCED)


async def test_rules_that_could_not_be_written_are_tried_again_before_the_next_resync(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    hold_the_lock(node)
    await node.start(for_some(1))
    node.kernel.accept_all()
    await node.wait(1)
    assert weights(node, KEY) == [1]


async def test_a_set_that_refuses_the_port_keeps_it_from_being_served(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    refuse_the_entry(node)
    await node.start(for_some(1))
    await node.wait(LONGEST_PATIENCE)
    assert (weights(node, KEY), weights(node, CLUSTER_KEY)) == ([], [1])
    node.kernel.accept_all()
    await node.resync()
    assert weights(node, KEY) == [1]


async def test_a_range_that_a_set_refuses_opens_nothing_and_is_not_waited_for(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    refuse_the_entry(node, "SOURCE-RANGE")
    await node.start(for_some(1))
    await node.wait(PATIENCE)
    assert weights(node, KEY) == [1]
    assert node.kernel.sets["KROUTE-RESTRICTED"].elements == {(BALANCED, 6, 443)}


async def test_a_live_port_whose_new_restriction_is_refused_drains_until_it_holds(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(open_to_all(1))
    node.ipvs.set_connections(KEY, BACKEND, 1, 0)
    refuse_the_entry(node)
    await node.apply(for_some(2))
    assert weights(node, KEY) == [1]
    await node.wait(PATIENCE)
    assert weights(node, KEY) == [0], "open connections stay, new ones find nothing"
    assert weights(node, CLUSTER_KEY) == [1]
    assert [problem.reason for _, problem in node.problems] == ["SourceRangesNotEnforced"]
    node.kernel.accept_all()
    with capture_logs() as logs:
        await node.resync()
    assert weights(node, KEY) == [1]
    assert "source_ranges.enforced" in [line["event"] for line in logs]


async def test_without_its_ranges_it_is_served_again(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    refuse_the_entry(node)
    await node.start(for_some(1))
    await node.wait(LONGEST_PATIENCE)
    await node.apply(open_to_all(2))
    assert weights(node, KEY) == [1]
    assert node.kernel.has_address(BALANCED)


async def test_what_was_enforced_before_serves_on_while_nobody_can_write_rules_or_entries(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(for_some(1))
    hold_the_lock(node)
    refuse_the_entry(node)
    more = restricted(plan("web", 2, server(BALANCED, 443, *BACKENDS, "10.1.0.2"), server(CLUSTER_IP, 80, *BACKENDS)))
    await node.apply(more)
    await node.wait(LONGEST_PATIENCE)
    assert weights(node, KEY) == [1, 1]
    assert node.problems == []


async def test_a_restart_while_nobody_can_write_rules_takes_nothing_away(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(for_some(1))
    node = node.restarted()
    hold_the_lock(node)
    await node.start(
        for_some(1), restricted(plan("new", 2, server("203.0.113.11", 443, "10.1.0.3")), (6, "203.0.113.11", 443))
    )
    await node.wait(LONGEST_PATIENCE)
    assert weights(node, KEY) == [1]
    assert weights(node, (6, "203.0.113.11", 443)) == [1], "the rules stand: an entry is all that is new"


async def test_rules_that_somebody_takes_away_for_good_close_what_they_guarded(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(for_some(1))
    node.kernel.tables.clear()
    hold_the_lock(node)
    await node.resync()
    await node.wait(PATIENCE)
    assert not any(weights(node, KEY))
    assert weights(node, CLUSTER_KEY) == [1]
    assert BALANCED in node.kernel.links[DUMMY].addresses


async def test_an_entry_that_somebody_takes_away_is_put_back_and_nothing_closes(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(for_some(1))
    node.kernel.sets["KROUTE-RESTRICTED"].elements.clear()
    await node.resync()
    await node.wait(LONGEST_PATIENCE)
    assert node.kernel.sets["KROUTE-RESTRICTED"].elements == {(BALANCED, 6, 443)}
    assert weights(node, KEY) == [1]
    assert node.problems == []


async def test_a_family_without_the_rules_closes_no_port_of_the_other(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.kernel.ipv6 = False
    both = restricted(plan("web", 1, server(BALANCED, 443, *BACKENDS), server(BALANCED6, 443, *BACKENDS6)), KEY, KEY6)
    await node.start(both)
    await node.wait(LONGEST_PATIENCE)
    assert (weights(node, KEY), weights(node, KEY6)) == ([1], [])


async def test_a_service_that_goes_is_forgotten_though_it_was_never_served(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    hold_the_lock(node)
    await node.start(for_some(1))
    await node.apply(plan("web", 2))
    await node.wait(LONGEST_PATIENCE)
    assert not any(
        str(key) == "default/web" for passage in node.stage_gate._passages.values() for key in passage.passed
    )
