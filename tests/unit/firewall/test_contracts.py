"""The backends, on fakes of the kernel's classes, and the fake firewall keep the contract of a firewall."""

import pytest

from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.firewall.iptables.rules import family_rules
from kroute.firewall.packets import Rules
from kroute.firewall.sets import ROOM, Room
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.settings import Settings
from tests.fakes.firewall import FakeFirewall
from tests.fakes.ipset import FakeIpset
from tests.fakes.kernel import FakeKernel
from tests.fakes.xtables import FakeXtables
from tests.kernel.contracts_firewall import SMALL, FirewallContract, RulesContract


async def iptables_firewall(room: Room) -> IptablesFirewall:
    kernel = FakeKernel()
    ipset, xtables = FakeIpset(kernel), {family: FakeXtables(kernel, family.number) for family in Family}
    for client in (ipset, *xtables.values()):
        await client.open()
    return IptablesFirewall(Settings("node1"), ipset, xtables, room=room)  # type: ignore[arg-type]


class TestIptablesFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self) -> IptablesFirewall:
        return await iptables_firewall(ROOM)

    @pytest.fixture
    async def small(self) -> IptablesFirewall:
        return await iptables_firewall(SMALL)


class TestFakeFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self) -> FakeFirewall:
        return FakeFirewall(Settings("node1"))

    @pytest.fixture
    async def small(self) -> FakeFirewall:
        return FakeFirewall(Settings("node1"), room=SMALL)


class TestIptablesRules(RulesContract):
    @staticmethod
    def rules_of(settings: Settings, family: Family, node: NodeFacts) -> Rules:
        return family_rules(settings, family, node, random_fully=True)
