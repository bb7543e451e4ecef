"""The rules that accept packets, in the tables of iptables-nft: only where another program has made them."""

from kroute.firewall.iptables.address_sets import PREFIX
from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.kernel.errors import KernelError
from kroute.kernel.iptables.tools import VARIANTS, Variant
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings
from tests.fakes.ipset import FakeIpset
from tests.fakes.kernel import FakeKernel
from tests.fakes.xtables import FakeXtables

NODE = NodeFacts("node1", "192.168.9.1", "fd99::1")
ACCEPTING = {"KROUTE-HEALTH-CHECK", "KROUTE-FORWARD"}


class Place:
    """A firewall on a kernel, whose tables of iptables-nft are those of a second kernel with the same sets."""

    def __init__(self, *used: Family) -> None:
        self.kernel, self.nft = FakeKernel(), FakeKernel()
        self.nft.sets = self.kernel.sets
        for family in used:
            self.nft.table(family.number, "filter").chains["DOCKER-USER"] = []
        self.ipset = FakeIpset(self.kernel)
        kernels = {"legacy": self.kernel, "nft": self.nft}
        self.clients = {variant: FakeXtables(kernels[variant.name], variant.family) for variant in VARIANTS}
        self.firewall = IptablesFirewall(Settings("node1"), self.ipset, self.clients)

    async def open(self) -> "Place":
        await self.ipset.open()
        await self.firewall.ensure_sets()
        return self

    def ours(self, family: Family) -> set[str]:
        table = self.nft.tables.get((family.number, "filter"))
        return {name for name in table.chains if name.startswith(PREFIX)} if table else set()


async def test_they_are_written_where_the_table_is_and_it_is_made_nowhere() -> None:
    place = await Place(Family.IPV4).open()
    assert await place.firewall.ensure_rules(NODE) == []
    assert (place.ours(Family.IPV4), place.ours(Family.IPV6)) == (ACCEPTING, set())
    assert list(place.nft.tables) == [(Family.IPV4.number, "filter")]
    assert [await place.firewall.rule_differences(family, NODE) for family in Family] == [[], []]


async def test_a_table_that_is_made_later_is_no_drift_and_a_flush_is() -> None:
    place = await Place().open()
    await place.firewall.ensure_rules(NODE)
    forward = place.nft.table(Family.IPV6.number, "filter").chains["FORWARD"]
    assert await place.firewall.rule_differences(Family.IPV6, NODE)
    assert await place.firewall.ensure_rules(NODE) == []
    forward = place.nft.table(Family.IPV6.number, "filter").chains["FORWARD"]
    forward.clear()
    assert await place.firewall.ensure_rules(NODE) == ["IPv6 nft: the jumps of FORWARD are not first"]


async def test_a_look_sees_a_table_that_is_made_later_and_one_that_is_flushed() -> None:
    place = await Place().open()
    await settle(place.firewall)
    chains = place.nft.table(Family.IPV6.number, "filter").chains
    assert not await place.firewall.are_rules_untouched()
    await settle(place.firewall)
    chains["FORWARD"].clear()
    assert not await place.firewall.are_rules_untouched()
    await settle(place.firewall)


async def settle(firewall: IptablesFirewall) -> None:
    """Write the rules, and compare what was written."""
    for _ in range(2):
        await firewall.ensure_rules(NODE)
    assert await firewall.are_rules_untouched()


async def test_they_are_removed_and_what_others_made_stays() -> None:
    place = await Place(*Family).open()
    await place.firewall.ensure_rules(NODE)
    report = CleanupReport()
    await place.firewall.remove(report)
    assert report.failed == []
    for family in Family:
        table = place.nft.table(family.number, "filter")
        assert (place.ours(family), table.chains["FORWARD"], "DOCKER-USER" in table.chains) == (set(), [], True)


async def test_what_the_tools_refuse_keeps_no_other_rule_from_being_written() -> None:
    place = await Place(Family.IPV4).open()
    refused = KernelError("iptables-nft-restore failed: no; trying later")

    async def refuse(*_: object) -> list[str]:
        raise refused

    nft = place.clients[Variant(Family.IPV4.number, "nft")]
    nft.differences = nft.ensure = refuse  # type: ignore[method-assign]
    assert await place.firewall.ensure_rules(NODE) == []
    assert place.firewall.enforces(Family.IPV4)
    assert await place.firewall.rule_differences(Family.IPV4, NODE) == [f"IPv4 rules of nft table filter: {refused}"]
