"""The backends, on fakes of the kernel's classes, and the fake firewall keep the contracts of a firewall."""

import pytest

from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.firewall.iptables.rules import family_rules
from kroute.firewall.packets import Rules
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, SetEntry
from kroute.settings import Settings
from tests.fakes.firewall import FULL, FakeFirewall
from tests.fakes.ipset import FakeIpset
from tests.fakes.kernel import FakeKernel
from tests.fakes.xtables import FakeXtables
from tests.kernel.contracts_firewall import FirewallContract, RulesContract


class TestIptablesFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self) -> IptablesFirewall:
        kernel = FakeKernel()
        ipset, xtables = FakeIpset(kernel), {family: FakeXtables(kernel, family.number) for family in Family}
        for client in (ipset, *xtables.values()):
            await client.open()
        return IptablesFirewall(Settings("node1"), ipset, xtables)  # type: ignore[arg-type]


class TestFakeFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self) -> FakeFirewall:
        return FakeFirewall(Settings("node1"))

    async def test_a_full_set_takes_no_more_elements(self) -> None:
        firewall = FakeFirewall(Settings("node1"), room=1)
        await firewall.ensure_sets()
        first, second = (SetEntry(AddressSet.VIP, (address,)) for address in ("10.96.0.1", "10.96.0.2"))
        refused = await firewall.change_elements({first: True, second: True})
        assert {entry: why.rpartition(": ")[2] for entry, why in refused.items()} == {second: FULL}


class TestIptablesRules(RulesContract):
    @staticmethod
    def rules_of(settings: Settings, family: Family, node: NodeFacts) -> Rules:
        return family_rules(settings, family, node, random_fully=True)
