"""The fakes keep the contracts that the real classes keep in the lab."""

from collections.abc import AsyncIterator

import pytest

from kroute.kernel.ipset import SetDefinition
from tests.kernel import contracts
from tests.kernel.nodes import FakeNode


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    fake = FakeNode()
    await fake.open()
    await fake.ipset.create(SetDefinition("CLUSTER-IP", "hash:ip,port"))
    yield fake
    await fake.close()


class TestFakeLinks(contracts.LinksContract):
    pass


class TestFakeAddresses(contracts.AddressesContract):
    pass


class TestFakeRoutes(contracts.RoutesContract):
    pass


class TestFakeIpvs(contracts.IpvsContract):
    pass


class TestFakeMonitor(contracts.MonitorContract):
    pass


class TestFakeXtables(contracts.XtablesContract):
    pass


class TestFakeIpset(contracts.IpsetContract):
    @pytest.fixture
    async def node(self) -> AsyncIterator[FakeNode]:
        fake = FakeNode()
        await fake.open()
        yield fake
        await fake.close()
