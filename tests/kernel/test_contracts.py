"""The real classes keep their contracts on a real kernel."""

from collections.abc import AsyncIterator

import pytest

from kroute.kernel.ipset import SetDefinition
from tests.kernel import contracts
from tests.kernel.nodes import RealNode


class TestLinks(contracts.LinksContract):
    pass


class TestAddresses(contracts.AddressesContract):
    pass


class TestRoutes(contracts.RoutesContract):
    pass


class TestIpvs(contracts.IpvsContract):
    pass


class TestIpset(contracts.IpsetContract):
    pass


class TestMonitor(contracts.MonitorContract):
    pass


class TestXtables(contracts.XtablesContract):
    @pytest.fixture
    async def node(self, node: RealNode) -> AsyncIterator[RealNode]:
        await node.ipset.create(SetDefinition("CLUSTER-IP", "hash:ip,port"))
        async with node.xtables:
            yield node
