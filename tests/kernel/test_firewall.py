"""The backends keep the contract of a firewall on a real kernel."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.firewall.nftables.firewall import NftablesFirewall
from kroute.firewall.sets import ROOM, Room
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.xtables import Xtables
from kroute.kernel.nftables.client import Nftables
from kroute.model.addresses import Family
from kroute.settings import Settings
from tests.kernel.contracts_firewall import SMALL, FirewallContract


@asynccontextmanager
async def iptables_firewall(room: Room) -> AsyncIterator[IptablesFirewall]:
    async with AsyncExitStack() as stack:
        ipset = await stack.enter_async_context(Ipset())
        xtables = {family: await stack.enter_async_context(Xtables(family.number)) for family in Family}
        yield IptablesFirewall(Settings("node1"), ipset, xtables, room=room)


@pytest.mark.legacy
class TestIptablesFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self, namespace: None) -> AsyncIterator[IptablesFirewall]:
        async with iptables_firewall(ROOM) as firewall:
            yield firewall

    @pytest.fixture
    async def small(self, namespace: None) -> AsyncIterator[IptablesFirewall]:
        async with iptables_firewall(SMALL) as firewall:
            yield firewall


@pytest.mark.nftables
class TestNftablesFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self, namespace: None) -> AsyncIterator[NftablesFirewall]:
        async with Nftables() as nftables:
            yield NftablesFirewall(Settings("node1"), nftables)

    @pytest.fixture
    async def small(self, namespace: None) -> AsyncIterator[NftablesFirewall]:
        async with Nftables() as nftables:
            yield NftablesFirewall(Settings("node1"), nftables, room=SMALL)
