"""The real classes keep their contracts on a real kernel."""

import socket

import pytest

from kroute.kernel.conntrack import Flow, PackedEndpoint, encode_dump, pack_endpoint, parse_flow
from kroute.kernel.ipset import SetDefinition
from tests.kernel import contracts_conntrack, contracts_network, contracts_tables
from tests.kernel.nodes import RealNode

IPV6_ADDRESS_FILTER = (7, 0)
"""From about this version on the kernel's filter compares IPv6 addresses rightly: 7.3 does, 6.18 and 6.1 do not."""


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
    @pytest.mark.parametrize("family", contracts_conntrack.FLOWS, ids=["IPv4", "IPv6"])
    async def test_the_kernel_answers_with_the_flows_of_a_few_destinations_alone(
        self, node: RealNode, family: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Over IPv6 with those to their ports, because some kernels take its addresses the wrong way round."""
        flow = contracts_conntrack.FLOWS[family]
        own = [flow._replace(source_port=port, destination_port=53 + port % 3) for port in range(4000, 4009)]
        others = [flow._replace(source_port=port, destination_port=5000 + port % 500) for port in range(5000, 7000)]
        elsewhere = "10.0.0.9" if family == socket.AF_INET else "fd00::9"
        numbered = [one._replace(reply_destination_port=10000 + number) for number, one in enumerate([*own, *others])]
        await node.add_flows(*numbered[:9], *(one._replace(destination=elsewhere) for one in numbered[9:]))
        answers = 0

        def counted(payload: bytes, wanted: frozenset[PackedEndpoint]) -> Flow | None:
            nonlocal answers
            answers += 1
            return parse_flow(payload, wanted)

        monkeypatch.setattr("kroute.kernel.conntrack.parse_flow", counted)
        found = await node.conntrack.udp_flows(family, {one[2:4] for one in own})
        assert {one._replace(id=0) for one in found} == set(numbered[:9])
        assert answers == len(own)

    async def test_which_kernels_take_ipv6_addresses_the_wrong_way_round(self, node: RealNode) -> None:
        flow = contracts_conntrack.FLOWS[socket.AF_INET6]
        other = flow._replace(destination="fd00::9", reply_destination_port=61235)
        await node.add_flows(flow, other)
        both = {pack_endpoint(one[2:4]) for one in (flow, other)}
        request = encode_dump(socket.AF_INET6, pack_endpoint(flow[2:4])[0])
        [answer] = await node.conntrack.netlink.request(request, lambda payload: parse_flow(payload, both))
        assert answer[:4] == (flow if node.kernel_version >= IPV6_ADDRESS_FILTER else other)[:4]


class TestMonitor(contracts_network.MonitorContract):
    pass


@pytest.mark.legacy
class TestXtables(contracts_tables.XtablesContract):
    @pytest.fixture
    async def node(self, node: RealNode) -> RealNode:
        await node.ipset.create(SetDefinition("CLUSTER-IP", "hash:ip,port"))
        return node
