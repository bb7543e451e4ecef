"""The route lookup returns the kernel's own answer."""

from kroute.kernel.net.routes import RouteLookup, Way
from tests.kernel.nodes import NODE_IP6, OTHER_NODE_IP6, RealNode, run


async def test_ways_to_this_node_to_others_and_to_nobody(node: RealNode) -> None:
    run("ip route add local 10.96.0.10 dev d0 table local proto kernel scope host src 192.168.9.1")
    async with RouteLookup() as lookup:
        assert await lookup.towards("10.96.0.10") == Way(True, "lo", "192.168.9.1")
        assert await lookup.towards("192.168.9.7") == Way(False, "e0", "192.168.9.1")
        way = await lookup.towards("fd99::7")
        assert way in {Way(False, "e0", source) for source in (NODE_IP6, OTHER_NODE_IP6)}
        assert await lookup.towards("203.0.113.1") is None
        assert await lookup.towards("2001:db8::1") is None


async def test_an_address_of_the_node_is_local(node: RealNode) -> None:
    async with RouteLookup() as lookup:
        for address in ("192.168.9.1", "fd99::1"):
            way = await lookup.towards(address)
            assert way is not None
            assert way.is_local
