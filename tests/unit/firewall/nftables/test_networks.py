"""Of the networks that are wanted, those stand that are in no other: on a fake kernel, which refuses what overlaps."""

import asyncio
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.firewall.nftables.contents import SetContents
from kroute.firewall.nftables.names import DEFINITIONS, TABLES
from kroute.firewall.sets import ROOM
from kroute.kernel.nftables.objects import AddElements, AddSet, AddTable, FlushSet
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet
from tests.fakes.kernel import FakeKernel
from tests.fakes.nftables import FakeNftables

WHICH = AddressSet.POD_NETWORK
DEFINITION = DEFINITIONS[WHICH]
ALL, HALF, QUARTER, BESIDE = "10.0.0.0/8", "10.128.0.0/9", "10.192.0.0/10", "11.0.0.0/8"
NETWORKS = st.sampled_from(
    [str(net) for size in (29, 30, 31, 32) for net in ip_network("10.0.0.0/29").subnets(new_prefix=size)]
)


class PodNetworks:
    """The set of a family on a fake kernel of its own."""

    def __init__(self, family: Family = Family.IPV4) -> None:
        self.family = family
        self.table = TABLES[family]
        self.kernel = FakeKernel()
        self.nftables = FakeNftables(self.kernel)
        self.contents = SetContents(self.nftables, ROOM)

    async def make(self) -> None:
        await self.nftables.open()
        sets = [AddSet(definition) for definition in DEFINITIONS.values()]
        assert await self.nftables.transact(self.table, [AddTable(), *sets]) == []

    async def change(self, changes: dict[str, bool]) -> None:
        wanted = {(network,): is_wanted for network, is_wanted in changes.items()}
        assert await self.contents.change(self.family, {WHICH: wanted}) == {}

    async def want(self, *networks: str) -> None:
        await self.change(dict.fromkeys(networks, True))

    async def drop(self, *networks: str) -> None:
        await self.change(dict.fromkeys(networks, False))

    async def replace(self, *networks: str) -> None:
        """As another program does."""
        there = AddElements(DEFINITION, tuple((network,) for network in networks))
        changes = [FlushSet(DEFINITION.name), *([there] if networks else [])]
        assert await self.nftables.transact(self.table, changes) == []

    async def listed(self) -> set[str]:
        """What a resync finds."""
        parts = [part async for part in self.contents.all(self.family)]
        return {str(entry.element[0]) for part in parts for entry in part if entry.set is WHICH}

    @property
    def standing(self) -> list[str]:
        return sorted(str(network) for (network,) in self.kernel.nft.tables[self.table].sets[DEFINITION.name].elements)


@pytest.fixture
async def networks() -> PodNetworks:
    found = PodNetworks()
    await found.make()
    return found


async def test_a_network_in_a_standing_one_is_written_when_that_one_goes(networks: PodNetworks) -> None:
    await networks.want(ALL)
    await networks.want(HALF, BESIDE)
    assert networks.standing == [ALL, BESIDE]
    await networks.drop(ALL)
    assert networks.standing == [HALF, BESIDE]


async def test_of_three_one_in_another_the_next_larger_one_takes_the_place(networks: PodNetworks) -> None:
    await networks.want(QUARTER, ALL, HALF)
    await networks.drop(ALL)
    assert networks.standing == [HALF]
    await networks.drop(QUARTER)
    assert networks.standing == [HALF]


async def test_what_is_covered_counts_as_there_until_what_covers_it_is_gone(networks: PodNetworks) -> None:
    await networks.want(ALL, HALF)
    assert await networks.listed() == {ALL, HALF}
    await networks.replace()
    assert await networks.listed() == set()


async def test_a_network_that_another_program_has_added_goes_when_it_is_not_wanted(networks: PodNetworks) -> None:
    await networks.want(HALF)
    await networks.replace(ALL)
    assert await networks.listed() == {ALL, HALF}
    await networks.drop(ALL)
    await networks.want(HALF)
    assert networks.standing == [HALF]


@given(st.lists(st.dictionaries(NETWORKS, st.booleans(), min_size=1, max_size=6), max_size=8))
def test_after_any_changes_every_wanted_network_is_covered_and_no_other_address_is(
    steps: list[dict[str, bool]],
) -> None:
    async def change_and_compare() -> None:
        networks, wanted = PodNetworks(), set[str]()
        await networks.make()
        for changes in steps:
            await networks.change(changes)
            wanted = {it for it in wanted if changes.get(it, True)} | {it for it, there in changes.items() if there}
            assert addresses(networks.standing) == addresses(wanted)
            assert await networks.listed() == wanted, "a resync finds no drift"

    asyncio.run(change_and_compare())


def addresses(networks: list[str] | set[str]) -> set[object]:
    return {address for it in networks for address in ip_network(it)}


async def test_the_largest_network_of_a_family_covers_everything_in_it() -> None:
    networks = PodNetworks(Family.IPV6)
    await networks.make()
    await networks.want("::/1", "8000::/1", "fd00::/8", "::/128")
    assert networks.standing == ["8000::/1", "::/1"]
