"""The backends keep the contract of a firewall on a real kernel."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.xtables import Xtables
from kroute.model.addresses import Family
from kroute.settings import Settings
from tests.kernel.contracts_firewall import FirewallContract


class TestIptablesFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self, namespace: None) -> AsyncIterator[IptablesFirewall]:
        async with AsyncExitStack() as stack:
            ipset = await stack.enter_async_context(Ipset())
            xtables = {family: await stack.enter_async_context(Xtables(family.number)) for family in Family}
            yield IptablesFirewall(Settings("node1"), ipset, xtables)
