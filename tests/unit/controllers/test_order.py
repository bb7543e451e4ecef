"""In any order of passes an address goes live last, and a live one accepts no connection too early."""

import asyncio
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kroute.kernel.ipset import DeleteEntry
from kroute.kernel.ipvs.objects import AddRealServer, AddVirtualServer, DeleteVirtualServer, SetRealServer
from kroute.kernel.net.addresses import BindAddress
from kroute.kernel.net.routes import DeleteLocalRoute
from kroute.model.plan import VirtualServer
from tests.examples import examples
from tests.unit.fake_node import DUMMY, NODE_IPV4, NODE_IPV6, OWN_ADDRESSES
from tests.unit.histories import EDITS, FOREIGN_NODE_PORT, OTHER_NODE_IPV4, Key, World


class Witness(list[object]):
    """Checks every write when it is made, against the kernel's state at that moment."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def append(self, change: object) -> None:
        super().append(change)
        match change:
            case BindAddress(address):
                self.went_live(address)
            case AddVirtualServer(key) | AddRealServer(key) if self.is_live(key[1]):
                assert self.lacking_entries(key) == [], f"{change} before its set entries"
            case SetRealServer(key, _, weight) if weight and self.is_live(key[1]):
                assert self.lacking_entries(key) == [], f"{change} before its set entries"
            case DeleteVirtualServer(key):
                assert not self.is_bound(key[1]) or key[1] in self.desired(), f"{change} before its address"
                if key in self.world.entries() and self.is_live(key[1]):
                    assert self.lacking_entries(key) == [], f"{change} before the port is refused"
            case DeleteEntry(name, (address, protocol, port)):
                assert not self.is_bound(address) or address in self.desired(), f"{change} before its address"
                if name.endswith("NO-LOCAL"):
                    self.opened((protocol, address, port))
            case DeleteLocalRoute(address):
                assert not self.is_bound(address), f"{change} before its address"

    def went_live(self, address: str) -> None:
        kernel = self.world.node.kernel
        for key, server_ in self.desired_servers().items():
            if key[1] == address:
                assert key in kernel.virtual_servers or not server_.real_servers, f"{address} went live without {key}"
                assert self.lacking_entries(key) == [], f"{address} went live without set entries"
        source = kernel.links[DUMMY].routes[address][0].source
        assert source in {NODE_IPV4, OTHER_NODE_IPV4, NODE_IPV6}, f"{address} went live with source {source}"

    def opened(self, key: Key) -> None:
        """Check that clients outside are admitted only to real servers that they may reach."""
        state, desired = self.world.node.kernel.virtual_servers.get(key), self.desired_servers().get(key)
        if state is not None and key != FOREIGN_NODE_PORT:
            serving = {real for real, it in state.real_servers.items() if it.weight}
            allowed = {(real.address, real.port) for real in desired.real_servers} if desired else set()
            assert serving <= allowed, f"{key} let clients in to {serving - allowed}"

    def lacking_entries(self, key: Key) -> list[tuple[str, object]]:
        sets = self.world.node.kernel.sets
        return [(name, element) for name, element in self.world.entries()[key] if element not in sets[name].elements]

    def is_live(self, address: str) -> bool:
        return address in OWN_ADDRESSES or self.is_bound(address)

    def is_bound(self, address: str) -> bool:
        kernel = self.world.node.kernel
        return DUMMY in kernel.links and address in kernel.links[DUMMY].addresses

    def desired_servers(self) -> dict[Key, VirtualServer]:
        return {one.key: one for servers in self.world.contents.values() for one in servers}

    def desired(self) -> set[str]:
        return {key[1] for key in self.desired_servers()}


async def orderly_story(order: list[int], actions: list[tuple[object, ...]], state_dir: Path) -> None:
    world = World(state_dir)
    await world.node.start()
    world.node.kernel.writes = Witness(world)
    for action, following in pairwise([*actions, ("settle", order)]):
        await world.do(*action)
        if action[0] == "edit" and following[0] != "kill":
            await world.node.settle(order)


ORDERLY = st.one_of(
    EDITS,
    EDITS,
    st.tuples(st.just("drift"), st.sampled_from(("link", "address")), st.integers(0, 7)),
    st.tuples(st.just("settle"), st.permutations([0, 1, 2])),
    st.tuples(st.just("restart")),
    st.tuples(st.just("kill"), st.integers(1, 12)),
)


@examples(60)
@given(st.permutations([0, 1, 2]), st.lists(ORDERLY, max_size=25))
def test_an_address_always_goes_live_last_and_goes_away_first(
    order: list[int], actions: list[tuple[object, ...]]
) -> None:
    with tempfile.TemporaryDirectory() as state_dir, capture_logs():
        asyncio.run(orderly_story(order, actions, Path(state_dir)))
