"""The real classes keep their contracts on a real kernel."""

from collections.abc import AsyncIterator

import pytest

from kroute.kernel.ipset import SetDefinition
from tests.kernel import contracts_conntrack, contracts_network, contracts_tables
from tests.kernel.nodes import RealNode


class TestLinks(contracts_network.LinksContract):
    pass


class TestAddresses(contracts_network.AddressesContract):
    pass


class TestRoutes(contracts_network.RoutesContract):
    pass


class TestIpvs(contracts_tables.IpvsContract):
    pass


@pytest.mark.legacy
class TestIpset(contracts_tables.IpsetContract):
    pass


class TestConntrack(contracts_conntrack.ConntrackContract):
    pass


class TestMonitor(contracts_network.MonitorContract):
    pass


@pytest.mark.legacy
class TestXtables(contracts_tables.XtablesContract):
    @pytest.fixture
    async def node(self, node: RealNode) -> AsyncIterator[RealNode]:
        await node.ipset.create(SetDefinition("CLUSTER-IP", "hash:ip,port"))
        async with node.xtables:
            yield node
