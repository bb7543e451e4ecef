"""Next hops on a real kernel: all are found, and the kernel's routes for VIPs cause no event."""

import asyncio

import pytest

from kroute.kernel.net.addresses import BindAddress
from kroute.kernel.net.next_hops import NextHops
from kroute.kernel.net.routes import SetLocalRoute
from tests.kernel.nodes import HANG, NODE_IP, NODE_IP6, RealNode, run

ROUTES = {
    "a gateway": ("ip route add 203.0.113.0/24 via 192.168.9.9", {"192.168.9.9"}),
    "a default route in another table": ("ip route add default via 192.168.9.9 table 77", {"192.168.9.9"}),
    "several": (
        "ip -6 route add 2001:db8:9::/64 nexthop via fe80::8 dev e0 nexthop via fe80::9 dev e0",
        {"fe80::8", "fe80::9"},
    ),
    "IPv6": ("ip -6 route add 2001:db8:9::/64 via fe80::9 dev e0", {"fe80::9"}),
    "IPv4 by IPv6": ("ip route add 203.0.113.0/24 via inet6 fe80::9 dev e0", {"fe80::9"}),
    "none": ("ip route add 203.0.113.0/24 dev e0", set()),
    "none, unreachable": ("ip route add unreachable 203.0.113.0/24", set()),
}


@pytest.mark.parametrize(("command", "expected"), ROUTES.values(), ids=list(ROUTES))
async def test_the_next_hops_of(node: RealNode, command: str, expected: set[str]) -> None:
    async with NextHops() as next_hops:
        before = await next_hops.read()
        run(command)
        assert await next_hops.read() - before == expected
        async with asyncio.timeout(HANG):
            await next_hops.changed()


async def test_vips_are_no_news_and_a_route_that_goes_is(node: RealNode) -> None:
    run("ip route add 203.0.113.0/24 via 192.168.9.9")
    async with NextHops() as next_hops:
        news = asyncio.create_task(next_hops.changed())
        for vip, source in (("10.0.0.1", NODE_IP), ("fd00::1", NODE_IP6)):
            await node.routes.write("d0", [SetLocalRoute(vip, source)])
            await node.addresses.write("d0", [BindAddress(vip)])
        await asyncio.sleep(0.1)  # every event of the kernel has arrived by now
        assert not news.done()
        run("ip route del 203.0.113.0/24")
        async with asyncio.timeout(HANG):
            await news
        assert "192.168.9.9" not in await next_hops.read()
