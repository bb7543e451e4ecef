"""The backend on a fake kernel: a family that is not supported, refusals, and what others change."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from structlog.testing import capture_logs

from kroute.firewall.nftables.firewall import NftablesFirewall
from kroute.firewall.nftables.names import DEFINITIONS, TABLES
from kroute.firewall.sets import Room
from kroute.kernel.nftables.objects import (
    AddChain,
    AddElements,
    AddRule,
    AddTable,
    Chain,
    DeleteElements,
    DeleteTable,
    FlushChain,
    Table,
)
from kroute.kernel.nftables.table_monitor import UNKNOWN
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet, SetEntry
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings
from tests.fakes.kernel import FakeKernel
from tests.fakes.nftables import FakeNftables
from tests.kernel.contracts_firewall import NODE, ONE_OF_EACH, PORT, everything
from tests.unit.watching import PATIENCE

FOUR, SIX = ([it for it in ONE_OF_EACH if it.family is family] for family in Family)
NETWORKS = [SetEntry(AddressSet.POD_NETWORK, (it,)) for it in ("10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16")]
ALL, FIRST, SECOND = NETWORKS
OTHER = ("172.20.1.0/24",)
"""The pod network of ONE_OF_EACH."""


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


async def client(kernel: FakeKernel) -> FakeNftables:
    found = FakeNftables(kernel)
    await found.open()
    return found


async def firewall_on(kernel: FakeKernel, room: Room | None = None) -> NftablesFirewall:
    nftables = await client(kernel)
    return NftablesFirewall(Settings("node1"), nftables, **({"room": room} if room else {}))


async def written(kernel: FakeKernel) -> NftablesFirewall:
    firewall = await firewall_on(kernel)
    await firewall.ensure_sets()
    assert await everything(firewall) == []
    assert await firewall.change_elements(dict.fromkeys(ONE_OF_EACH, True)) == {}
    assert await firewall.ensure_rules(NODE) == []
    return firewall


async def test_a_family_that_the_kernel_lacks_is_reported_once_and_stops_nothing_of_the_other(
    kernel: FakeKernel,
) -> None:
    kernel.nft.lacking.add("ip6")
    firewall = await firewall_on(kernel)
    with capture_logs() as logs:
        for _ in range(3):
            await firewall.ensure_sets()
            refused = await firewall.change_elements(dict.fromkeys(ONE_OF_EACH, True))
            assert sorted(refused) == sorted(SIX)
            assert await everything(firewall) == sorted(FOUR)
            assert await firewall.ensure_rules(NODE) == []
            assert not await firewall.is_untouched(), "the next resync tries again"
    [log] = [it for it in logs if it["event"] == "rules.failed"]
    assert (log["family"], "ip6 kroute" in log["error"]) == ("IPv6", True)
    assert [firewall.enforces(family) for family in Family] == [True, False]
    assert firewall.capacity(Family.IPV6, AddressSet.VIP) is None
    missing = (await firewall.prerequisites()).missing
    assert missing[Family.IPV4] == []
    [sentence] = missing[Family.IPV6]
    assert sentence.endswith("; load the module nf_tables, or set `--firewall iptables`")


async def test_a_missing_prerequisite_is_named_by_what_needs_it_and_nothing_is_made(kernel: FakeKernel) -> None:
    kernel.nft.lacking.add("masq")
    firewall = await firewall_on(kernel)
    missing = (await firewall.prerequisites()).missing
    for family in Family:
        assert all('add a rule "' in sentence and "; " in sentence for sentence in missing[family])
        assert len(missing[family]) == 2
    assert not await firewall.is_present()


async def test_rules_that_the_kernel_refuses_leave_the_sets_and_are_reported_once(kernel: FakeKernel) -> None:
    kernel.refuse(lambda change: isinstance(change, AddRule), errno.ENOENT)
    firewall = await firewall_on(kernel)
    await firewall.ensure_sets()
    assert await firewall.change_elements(dict.fromkeys(ONE_OF_EACH, True)) == {}
    with capture_logs() as logs:
        for _ in range(2):
            assert await firewall.ensure_rules(NODE) == []
    assert [it["family"] for it in logs if it["event"] == "rules.failed"] == ["IPv4", "IPv6"]
    assert not any(firewall.enforces(family) for family in Family)
    assert firewall.rules_hindered_by() == ""
    kernel.accept_all()
    await firewall.ensure_rules(NODE)
    assert all(firewall.enforces(family) for family in Family)


async def test_rules_that_somebody_keeps_from_being_written_are_worth_another_attempt(kernel: FakeKernel) -> None:
    firewall = await firewall_on(kernel)
    await firewall.ensure_sets()
    kernel.refuse(lambda change: isinstance(change, AddRule), errno.EBUSY)
    await firewall.ensure_rules(NODE)
    assert "ip kroute" in firewall.rules_hindered_by() or "ip6 kroute" in firewall.rules_hindered_by()


async def test_a_right_table_is_not_written_again_by_the_next_run(kernel: FakeKernel) -> None:
    await written(kernel)
    kernel.writes.clear()
    following = await firewall_on(kernel)
    assert await following.ensure_sets() == []
    assert await everything(following) == sorted(ONE_OF_EACH)
    assert await following.ensure_rules(NODE) == []
    assert kernel.writes == []


async def test_a_repair_replaces_all_rules_of_one_family_at_one_moment(kernel: FakeKernel) -> None:
    firewall = await written(kernel)
    foreign = await client(kernel)
    assert await foreign.transact(TABLES[Family.IPV4], [FlushChain("nat-postrouting")]) == []
    generation = kernel.nft.generation
    assert await firewall.ensure_rules(NODE) == ["table ip kroute: chain nat-postrouting has other rules"]
    assert kernel.nft.generation == generation + 1
    assert await firewall.ensure_rules(NODE) == []


async def test_changes_by_others_are_followed_and_its_own_are_not(kernel: FakeKernel) -> None:
    firewall = await written(kernel)
    changed = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(firewall.follow(changed.set))
        await asyncio.sleep(0)
        await firewall.change_elements({FOUR[0]: False})
        with suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), 0.01)
        assert not changed.is_set()
        await (await client(kernel)).transact(TABLES[Family.IPV6], [DeleteTable()])
        await asyncio.wait_for(changed.wait(), PATIENCE)
        task.cancel()


async def test_only_a_whole_resync_makes_it_untouched(kernel: FakeKernel) -> None:
    firewall = await written(kernel)
    assert await firewall.is_untouched()
    await firewall.ensure_sets()
    assert not await firewall.is_untouched(), "the elements have not been read since"
    await firewall.ensure_rules(NODE)
    assert not await firewall.is_untouched()
    await firewall.ensure_sets()
    assert await everything(firewall) == sorted(ONE_OF_EACH)
    await firewall.ensure_rules(NODE)
    assert await firewall.is_untouched()
    await (await client(kernel)).transact(TABLES[Family.IPV4], [FlushChain("input")])
    assert not await firewall.is_untouched()


@asynccontextmanager
async def followed(firewall: NftablesFirewall) -> AsyncIterator[asyncio.Event]:
    """Follow the changes of others, after a resync; the event says that there was one."""
    changed = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(firewall.follow(changed.set))
        await asyncio.sleep(0)
        await firewall.ensure_sets()
        await everything(firewall)
        await firewall.ensure_rules(NODE)
        yield changed
        task.cancel()


async def test_while_it_is_followed_commits_to_other_tables_do_not_count(kernel: FakeKernel) -> None:
    firewall, foreign = await written(kernel), await client(kernel)
    async with followed(firewall) as changed:
        for name in ("one", "two", "three"):
            await foreign.transact(Table(socket.AF_INET, name), [AddTable()])
            await asyncio.sleep(0)
            assert await firewall.is_untouched()
        assert not changed.is_set()
        await foreign.transact(TABLES[Family.IPV4], [FlushChain("input")])
        await asyncio.wait_for(changed.wait(), PATIENCE)
        assert not await firewall.is_untouched()
    await followed_again(firewall)
    assert await firewall.is_untouched()
    await foreign.transact(Table(socket.AF_INET, "four"), [AddTable()])
    assert not await firewall.is_untouched(), "nobody follows any more"


async def followed_again(firewall: NftablesFirewall) -> None:
    async with followed(firewall):
        assert await firewall.is_untouched()


async def test_lost_events_count_as_a_change(kernel: FakeKernel) -> None:
    firewall, foreign = await written(kernel), await client(kernel)
    async with followed(firewall) as changed:
        await foreign.transact(Table(socket.AF_INET, "other"), [AddTable()])
        for _client, _tables, queue in kernel.nft.watchers:
            queue.put_nowait(UNKNOWN)
        await asyncio.wait_for(changed.wait(), PATIENCE)
        assert not await firewall.is_untouched()


async def test_what_somebody_changes_while_the_sets_are_read_counts_as_not_read(kernel: FakeKernel) -> None:
    firewall = await written(kernel)
    await firewall.ensure_sets()
    foreign = await client(kernel)
    async for _ in firewall.elements():
        await foreign.transact(TABLES[Family.IPV4], [FlushChain("input")])
    await firewall.ensure_rules(NODE)
    assert not await firewall.is_untouched()


async def test_a_larger_network_takes_the_place_of_smaller_ones_in_one_transaction(kernel: FakeKernel) -> None:
    firewall = await written(kernel)
    await firewall.change_elements({FIRST: True, SECOND: True})
    generation = kernel.nft.generation
    assert await firewall.change_elements({ALL: True}) == {}
    assert kernel.nft.generation == generation + 1
    assert standing(kernel) == {ALL.element, OTHER}
    assert {ALL, FIRST, SECOND} <= set(await everything(firewall))
    assert await firewall.change_elements({ALL: False, FIRST: False}) == {}
    assert standing(kernel) == {SECOND.element, OTHER}


async def test_a_refused_network_leaves_those_that_stand_and_stops_no_other_set(kernel: FakeKernel) -> None:
    firewall = await written(kernel)
    await firewall.change_elements({FIRST: True})
    kernel.refuse(lambda it: isinstance(it, AddElements) and ALL.element in it.elements, errno.ENOMEM)
    vip = SetEntry(AddressSet.VIP, ("10.96.0.2",))
    refused = await firewall.change_elements({ALL: True, vip: True})
    assert refused == {ALL: "cannot add 10.0.0.0/8 to set ip kroute pod-network: Cannot allocate memory"}
    assert standing(kernel) == {FIRST.element, OTHER}
    assert vip in await everything(firewall)
    assert ALL not in await everything(firewall)


async def test_a_network_that_somebody_has_deleted_is_no_failure(kernel: FakeKernel) -> None:
    firewall = await written(kernel)
    await firewall.change_elements({FIRST: True})
    definition = DEFINITIONS[AddressSet.POD_NETWORK]
    await (await client(kernel)).transact(TABLES[Family.IPV4], [DeleteElements(definition, (FIRST.element,))])
    assert await firewall.change_elements({FIRST: False, SECOND: True}) == {}
    assert standing(kernel) == {SECOND.element, OTHER}


async def test_a_full_set_takes_what_it_has_already_and_what_another_leaves_room_for(kernel: FakeKernel) -> None:
    firewall = await firewall_on(kernel, Room(first=2, most=2))
    await firewall.ensure_sets()
    one, two, three, four = (SetEntry(AddressSet.VIP, (f"10.96.0.{number}",)) for number in range(1, 5))
    assert await firewall.change_elements({one: True, two: True}) == {}
    assert await firewall.change_elements({one: True, two: True}) == {}
    assert list(await firewall.change_elements({one: True, three: True})) == [three]
    assert list(await firewall.change_elements({three: True})) == [three]
    assert list(await firewall.change_elements({one: False, three: True, four: True})) == [four]
    assert await everything(firewall) == sorted([two, three])


@pytest.mark.parametrize("which", [AddressSet.SOURCE_RANGE, AddressSet.POD_NETWORK])
async def test_ranges_have_no_more_room_than_other_elements(kernel: FakeKernel, which: AddressSet) -> None:
    firewall = await firewall_on(kernel, Room(first=2, most=2))
    await firewall.ensure_sets()
    key = PORT if which is AddressSet.SOURCE_RANGE else ()
    ranges = [SetEntry(which, (*key, f"10.{number}.0.0/16")) for number in range(3)]
    refused = await firewall.change_elements(dict.fromkeys(ranges, True))
    assert list(refused) == ranges[2:]
    assert all(sentence.endswith("the set is full") for sentence in refused.values())


async def test_removal_says_what_fails_and_goes_on(kernel: FakeKernel) -> None:
    firewall = await written(kernel)
    kernel.refuse(lambda it: isinstance(it, DeleteTable), errno.EPERM)
    report = CleanupReport()
    await firewall.remove(report)
    assert [it.partition(":")[0] for it in report.failed] == ["table ip kroute", "table ip6 kroute"]


async def test_chains_of_an_earlier_version_are_replaced(kernel: FakeKernel) -> None:
    firewall = await written(kernel)
    await (await client(kernel)).transact(TABLES[Family.IPV4], [AddChain(Chain("services"))])
    assert await firewall.rule_differences(Family.IPV4, NODE) == ["table ip kroute: chain services is not kroute's"]
    await firewall.ensure_rules(NODE)
    assert await firewall.rule_differences(Family.IPV4, NODE) == []


def standing(kernel: FakeKernel) -> set[tuple[object, ...]]:
    """The elements of the set pod-network that the fake kernel has."""
    return set(kernel.nft.tables[TABLES[Family.IPV4]].sets["pod-network"].elements)
