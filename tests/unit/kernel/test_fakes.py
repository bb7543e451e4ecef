"""The fakes keep the contracts that the real classes keep in the lab."""

from collections.abc import AsyncIterator

import pytest

from kroute.kernel.ipset import SetDefinition
from tests.kernel import contracts_conntrack, contracts_network, contracts_nftables, contracts_tables
from tests.kernel.nodes import FakeNode


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    fake = FakeNode()
    await fake.open()
    await fake.ipset.create(SetDefinition("CLUSTER-IP", "hash:ip,port"))
    yield fake
    await fake.close()


class TestFakeLinks(contracts_network.LinksContract):
    pass


class TestFakeAddresses(contracts_network.AddressesContract):
    pass


class TestFakeRoutes(contracts_network.RoutesContract):
    pass


class TestFakeIpvs(contracts_tables.IpvsContract):
    pass


class TestFakeConntrack(contracts_conntrack.ConntrackContract):
    pass


class TestFakeMonitor(contracts_network.MonitorContract):
    pass


class TestFakeXtables(contracts_tables.XtablesContract):
    pass


class TestFakeNftables(contracts_nftables.NftablesContract):
    pass


class TestFakeIpset(contracts_tables.IpsetContract):
    @pytest.fixture
    async def node(self) -> AsyncIterator[FakeNode]:
        fake = FakeNode()
        await fake.open()
        yield fake
        await fake.close()
