"""The backends, on fakes of the kernel's classes, and the fake firewall keep the contract of a firewall."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.firewall.iptables.rules import family_rules
from kroute.firewall.nftables.firewall import NftablesFirewall
from kroute.firewall.nftables.rules import family_rules as nftables_rules
from kroute.firewall.packet_trace import Packet, Rules
from kroute.firewall.sets import ROOM, Room, Sets
from kroute.kernel.iptables.tools import VARIANTS
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet
from kroute.settings import Settings
from tests.fakes.firewall import FakeFirewall
from tests.fakes.ipset import FakeIpset
from tests.fakes.kernel import FakeKernel
from tests.fakes.nftables import FakeNftables
from tests.fakes.xtables import FakeXtables
from tests.kernel.contracts_firewall import (
    NODE,
    PACKETS,
    REAL_SERVERS,
    SETS,
    SETTINGS,
    SMALL,
    FirewallContract,
    RulesContract,
)


async def iptables_firewall(room: Room) -> IptablesFirewall:
    kernel = FakeKernel()
    ipset, xtables = FakeIpset(kernel), {each: FakeXtables(kernel, each.family) for each in VARIANTS[:2]}
    await ipset.open()
    return IptablesFirewall(Settings("node1"), ipset, xtables, room=room)  # type: ignore[arg-type]


class TestIptablesFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self) -> IptablesFirewall:
        return await iptables_firewall(ROOM)

    @pytest.fixture
    async def small(self) -> IptablesFirewall:
        return await iptables_firewall(SMALL)


async def nftables_firewall(room: Room) -> NftablesFirewall:
    nftables = FakeNftables(FakeKernel())
    await nftables.open()
    return NftablesFirewall(Settings("node1"), nftables, room=room)


class TestNftablesFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self) -> NftablesFirewall:
        return await nftables_firewall(ROOM)

    @pytest.fixture
    async def small(self) -> NftablesFirewall:
        return await nftables_firewall(SMALL)


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
        return family_rules(settings, family, node)


class TestNftablesRules(RulesContract):
    @staticmethod
    def rules_of(settings: Settings, family: Family, node: NodeFacts) -> Rules:
        return nftables_rules(settings, family, node)


@given(st.sampled_from(SETTINGS), PACKETS, SETS, st.booleans())
def test_the_backends_give_the_same_reasons(
    settings: Settings, packet: Packet, sets: Sets, has_virtual_server: bool
) -> None:
    sets = {**sets, AddressSet.HEALTH_CHECK: ()}  # of which nf_tables has no rule
    one, other = (
        family_rules(settings, Family.IPV4, NODE),
        nftables_rules(settings, Family.IPV4, NODE),
    )
    admissions = [it.admission(packet, sets, has_virtual_server=has_virtual_server) for it in (one, other)]
    assert len({(it.ending, it.why.partition(" (")[0]) for it in admissions}) == 1
    assert one.sources(packet, REAL_SERVERS, sets) == other.sources(packet, REAL_SERVERS, sets)
