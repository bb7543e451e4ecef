"""After any events in any order, the kernel is as a new computation of the newest plans leaves it."""

import asyncio
import errno
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kroute.base.schedulers import SCHEDULERS_BY_ORDER
from kroute.kernel.net.routes import LocalRoute
from tests.examples import examples
from tests.fakes.kernel import FakeKernel
from tests.unit.fake_node import DUMMY, NODE_IPV4, FakeNode
from tests.unit.histories import DRIFTS, EDITS, OTHER_NODE_IPV4, World, kernel_with_neighbours

ACTIONS = st.one_of(
    EDITS,
    st.tuples(st.just("drift"), st.sampled_from(DRIFTS), st.integers(0, 7)),
    st.tuples(st.just("pass"), st.integers(0, 2)),
    st.tuples(st.just("settle"), st.permutations([0, 1, 2])),
    st.tuples(st.just("wait"), st.sampled_from([1, 6, 31])),
    st.tuples(st.just("restart")),
    st.tuples(st.just("kill"), st.integers(1, 12)),
    st.tuples(st.just("refuse"), st.sampled_from([errno.ENOMEM, errno.EEXIST, errno.EINVAL]), st.integers(0, 5)),
    st.tuples(st.just("node address"), st.sampled_from([NODE_IPV4, OTHER_NODE_IPV4])),
)


def picture(kernel: FakeKernel) -> dict[str, object]:
    """Return everything in the kernel that affects a packet, and every foreign object."""
    return {
        "virtual servers": {
            key: (state.options, {real: it.weight for real, it in state.real_servers.items()})
            for key, state in kernel.virtual_servers.items()
        },
        "order": {
            key: list(state.real_servers)
            for key, state in kernel.virtual_servers.items()
            if state.options.scheduler in SCHEDULERS_BY_ORDER
        },
        "addresses": {name: sorted(link.addresses) for name, link in kernel.links.items()},
        "sources": {
            (name, address): routes[0].source
            for name, link in kernel.links.items()
            for address, routes in link.routes.items()
            if routes
        },
        "metric 0": sorted(
            address for address, routes in kernel.links[DUMMY].routes.items() if LocalRoute(address, None, 0) in routes
        ),
        "sets": {name: sorted(each.elements) for name, each in kernel.sets.items()},
        "rules": {at: table.chains for at, table in kernel.tables.items()},
        "sysctls": kernel.sysctls,
    }


async def story(actions: list[tuple[object, ...]], first: Path, second: Path) -> None:
    world = World(first)
    await world.node.start()
    for action in actions:
        await world.do(*action)
    await world.come_to_rest()

    fresh = FakeNode(second, kernel_with_neighbours())
    await fresh.start(*world.plans())
    await fresh.wait(6)  # VIPs wait for ports that are not served
    if not any(":" in one.key.address for servers in world.contents.values() for one in servers):
        # Forwarding stays on once an IPv6 Service was served.
        fresh.kernel.sysctls["net.ipv6.conf.all.forwarding"] = world.node.kernel.sysctls["net.ipv6.conf.all.forwarding"]
    assert picture(world.node.kernel) == picture(fresh.kernel)

    await world.restart()
    assert world.node.kernel.writes == []


@examples(60)
@given(st.lists(ACTIONS, max_size=25))
def test_any_history_ends_as_a_fresh_computation_and_a_restart_then_writes_nothing(
    actions: list[tuple[object, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second, capture_logs():
        asyncio.run(story(actions, Path(first), Path(second)))
