"""The behaviour of the connection tracker, for UDP flows, that kroute relies on.

Subclasses provide the fixture `node`, as for contracts_tables.
"""

import socket

import pytest

from kroute.kernel.conntrack import MOST_FILTERS, UDP, Ends, Flow
from tests.kernel.nodes import Node

TCP, SCTP = 6, 132
FLOWS = {
    socket.AF_INET: Flow("10.9.0.1", 4000, "10.0.0.1", 53, "10.1.0.1", 5353, "192.168.9.1", 61234),
    socket.AF_INET6: Flow("fd09::1", 4000, "fd00::1", 53, "fd01::1", 5353, "fd99::1", 61234),
}
FLOW = FLOWS[socket.AF_INET]
DESTINATIONS = {family: (flow.destination, flow.destination_port) for family, flow in FLOWS.items()}


async def flows(node: Node, *destinations: tuple[str, int]) -> list[Flow]:
    """Return the IPv4 flows to the destinations, without the kernel's ids."""
    found = await node.conntrack.udp_flows(socket.AF_INET, destinations or [DESTINATIONS[socket.AF_INET]])
    return sorted(flow._replace(id=0) for flow in found)


async def connections(node: Node, family: int, *addresses: str) -> set[Ends]:
    """Return the ends of all connections of these addresses."""
    return {found.ends for found in await node.conntrack.connections(family, addresses, lambda _: True)}


class ConntrackContract:
    @pytest.mark.parametrize("family", FLOWS, ids=["IPv4", "IPv6"])
    async def test_a_flow_is_read_with_both_its_directions(self, node: Node, family: int) -> None:
        await node.add_flows(*FLOWS.values())
        [found] = await node.conntrack.udp_flows(family, DESTINATIONS.values())
        assert found.id
        assert found._replace(id=0) == FLOWS[family]

    @pytest.mark.parametrize("family", FLOWS, ids=["IPv4", "IPv6"])
    async def test_a_flow_is_deleted_and_another_of_the_same_client_stays(self, node: Node, family: int) -> None:
        flow = FLOWS[family]
        other = flow._replace(source_port=4001, reply_destination_port=61235)
        await node.add_flows(flow, other)
        found = await node.conntrack.udp_flows(family, [DESTINATIONS[family]])
        assert await node.conntrack.delete([one for one in found if one.source_port == 4000]) == []
        [left] = await node.conntrack.udp_flows(family, [DESTINATIONS[family]])
        assert left._replace(id=0) == other

    async def test_only_flows_to_the_destinations_are_read(self, node: Node) -> None:
        other_address = FLOW._replace(destination="10.0.0.2", reply_destination_port=61235)
        other_port = FLOW._replace(destination_port=54, reply_destination_port=61236)
        await node.add_flows(FLOW, other_address, other_port)
        assert await flows(node) == [FLOW]
        assert await flows(node, ("10.0.0.2", 53), ("10.0.0.1", 54)) == [other_port, other_address]
        assert await flows(node, ("10.0.0.2", 54)) == []

    @pytest.mark.parametrize("protocol", [TCP, SCTP], ids=["TCP", "SCTP"])
    async def test_other_protocols_are_not_flows(self, node: Node, protocol: int) -> None:
        await node.add_flows(FLOW, protocol=protocol)
        assert await flows(node) == []
        await node.add_flows(FLOW)
        assert await node.conntrack.delete(await node.conntrack.udp_flows(socket.AF_INET, [FLOW[2:4]])) == []
        with pytest.raises(AssertionError, match="there already"):
            await node.add_flows(FLOW, protocol=protocol)

    async def test_a_flow_that_is_gone_is_no_failure(self, node: Node) -> None:
        await node.add_flows(FLOW)
        found = await node.conntrack.udp_flows(socket.AF_INET, [FLOW[2:4]])
        assert await node.conntrack.delete([*found, *found]) == []
        assert await node.conntrack.delete(found) == []
        assert await flows(node) == []

    async def test_an_entry_of_another_id_stays(self, node: Node) -> None:
        await node.add_flows(FLOW)
        [found] = await node.conntrack.udp_flows(socket.AF_INET, [FLOW[2:4]])
        assert await node.conntrack.delete([found._replace(id=found.id ^ 1)]) == []
        assert await flows(node) == [FLOW]

    async def test_a_newer_entry_through_another_real_server_stays_even_with_the_same_id(self, node: Node) -> None:
        newer = FLOW._replace(reply_source="10.1.0.2")
        await node.add_flows(FLOW)
        [read_before] = await node.conntrack.udp_flows(socket.AF_INET, [FLOW[2:4]])
        await node.conntrack.delete([read_before])
        await node.add_flows(newer)
        [found] = await node.conntrack.udp_flows(socket.AF_INET, [FLOW[2:4]])
        assert await node.conntrack.delete([read_before, read_before._replace(id=found.id)]) == []
        assert await flows(node) == [newer]

    async def test_a_flow_that_no_virtual_server_took_is_one_too(self, node: Node) -> None:
        untouched = Flow("10.9.0.1", 4000, "10.0.0.1", 53, "10.0.0.1", 53, "10.9.0.1", 4000)
        await node.add_flows(untouched)
        found = await node.conntrack.udp_flows(socket.AF_INET, [FLOW[2:4]])
        assert await node.conntrack.delete(found) == []
        assert await flows(node) == []

    @pytest.mark.parametrize("protocol", [TCP, UDP, SCTP], ids=["TCP", "UDP", "SCTP"])
    @pytest.mark.parametrize("family", FLOWS, ids=["IPv4", "IPv6"])
    async def test_connections_are_listed_by_who_has_begun_them_and_by_who_answers(
        self, node: Node, family: int, protocol: int
    ) -> None:
        flow = FLOWS[family]
        await node.add_flows(flow, protocol=protocol)
        ends = Ends(protocol, flow.source, flow.reply_source, flow.reply_source_port)
        assert await connections(node, family, flow.source) == {ends}
        assert await connections(node, family, flow.reply_source) == {ends}
        assert await connections(node, family, flow.destination, flow.reply_destination) == set()

    async def test_connections_of_many_addresses_are_listed(self, node: Node) -> None:
        others = [f"10.8.0.{number}" for number in range(MOST_FILTERS)]
        await node.add_flows(FLOW, protocol=TCP)
        assert len(await connections(node, socket.AF_INET, FLOW.source, *others)) == 1
        assert await connections(node, socket.AF_INET, *others) == set()

    async def test_a_connection_is_deleted_and_others_stay(self, node: Node) -> None:
        other = FLOW._replace(source_port=4001, reply_source="10.1.0.2", reply_destination_port=61235)
        await node.add_flows(FLOW, other, protocol=TCP)
        await node.add_flows(FLOW)
        found = await node.conntrack.connections(
            socket.AF_INET, [FLOW.source], lambda ends: ends[:3] == (TCP, FLOW.source, FLOW.reply_source)
        )
        assert await node.conntrack.delete_connections([*found, *found]) == []
        left = await connections(node, socket.AF_INET, FLOW.source)
        assert {(one.protocol, one.destination) for one in left} == {(TCP, "10.1.0.2"), (UDP, FLOW.reply_source)}
