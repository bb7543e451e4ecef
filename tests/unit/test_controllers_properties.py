"""Whatever happens in whatever order, the kernel ends as a fresh computation of the newest plans would leave it."""

import asyncio
import contextlib
import errno
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kroute.kernel.addresses import BindAddress, UnbindAddress
from kroute.kernel.ipset import DeleteEntry, SetDefinition
from kroute.kernel.ipvs import (
    AddVirtualServer,
    DeleteVirtualServer,
    RealServerState,
    VirtualServerOptions,
    VirtualServerState,
)
from kroute.kernel.routes import DeleteLocalRoute, LocalRoute, SetLocalRoute
from kroute.planning.plan import Persistence, Protocol, ServicePlan, VirtualServer
from tests.fakes.kernel import FakeKernel, FakeSet
from tests.unit.fake_node import DUMMY, NODE_IPV4, NODE_IPV6, FakeNode, new_kernel, plan, server

OTHER_NODE_IPV4 = "192.168.123.239"
SERVICES = ("a", "b", "c")
SHARED_VIP = "10.96.0.100"
FOREIGN = (6, "192.168.123.201", 80)


class Killed(BaseException):
    """kroute was killed at this write."""


def servers_of(service: int) -> st.SearchStrategy[tuple[VirtualServer, ...]]:
    """Virtual servers of one Service: addresses of its own, and one that all share on different ports."""
    one = st.builds(
        lambda vip, protocol, reals, scheduler, persistence: server(
            vip,
            8000 + service,
            *(f"fd00:1::{real}" if ":" in vip else f"10.1.0.{real}" for real in sorted(reals)),
            protocol=protocol,
            scheduler=scheduler,
            persistence=persistence,
        ),
        st.sampled_from([f"10.96.0.{service + 1}", f"fd00::{service + 1}", SHARED_VIP]),
        st.sampled_from([Protocol.TCP, Protocol.UDP]),
        st.sets(st.integers(1, 3)),
        st.sampled_from(["rr", "lc", "mh", "nonsense"]),
        st.sampled_from([None, Persistence(600, 32)]),
    )
    return st.lists(one, max_size=3, unique_by=lambda made: made.key).map(tuple)


EDITS = st.integers(0, len(SERVICES) - 1).flatmap(lambda i: st.tuples(st.just("edit"), st.just(i), servers_of(i)))
DRIFTS = ("link", "address", "route", "virtual_server", "real_server", "weight", "ipvsadm -C", "flush", "iptables -F")
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


class World:
    """The plans as they are now, the node, and what happens to both."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.contents: dict[str, tuple[VirtualServer, ...]] = {}
        self.source = NODE_IPV4
        self.generation = 0
        self.node = FakeNode(state_dir, kernel_with_neighbours())

    def plans(self, *names: str) -> list[ServicePlan]:
        """The newest plans of these Services; of all that exist, if none is named."""
        self.generation += 1
        names = names or tuple(self.contents)
        return [plan(name, self.generation, *self.contents.get(name, ()), source=self.source) for name in names]

    async def do(self, action: str, *arguments: object) -> None:
        match action, *arguments:
            case "edit", int(service), tuple(servers):
                self.contents[SERVICES[service]] = servers
                self.node.broadcaster.publish(self.plans(SERVICES[service]))
            case "drift", str(what), int(which):
                drift(self.node.kernel, what, which)
            case "pass", int(which):
                await self.node.pump()
                await self.node.controllers[which].step()
            case "settle", list(order):
                await self.node.settle(order)
            case "wait", int(seconds):
                await self.node.wait(seconds)
            case ("restart",):
                await self.restart()
            case "kill", int(writes):
                await self.kill_after(writes)
            case "refuse", int(number), int(which):
                self.node.kernel.refuse(every(which), number)
                await self.node.settle()
                self.node.kernel.accept_all()
            case "node address", str(address):
                self.source = address
                self.node.broadcaster.publish(self.plans())

    async def restart(self) -> None:
        self.node = self.node.restarted()
        await self.node.start(*self.plans())

    async def kill_after(self, writes: int) -> None:
        """Kill kroute when it is about to make its next write but so many, or after a while."""
        left = writes

        def die(_: object) -> bool:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return False

        self.node.kernel.refuse(die, 0)
        with contextlib.suppress(Killed):
            await self.node.wait(1)
        self.node.kernel.accept_all()
        await self.restart()

    async def come_to_rest(self) -> None:
        """Long enough for every retry, audit and drain."""
        for seconds in (0, 40, 40, 40, 40):
            await self.node.wait(seconds)


def every(which: int) -> Callable[[object], bool]:
    """Some kind of write."""
    kinds = (AddVirtualServer, BindAddress, UnbindAddress, SetLocalRoute, DeleteLocalRoute, object)
    return lambda change: isinstance(change, kinds[which])


def kernel_with_neighbours() -> FakeKernel:
    """A kernel in which others have made things too."""
    kernel = new_kernel()
    kernel.add_address("eth0", OTHER_NODE_IPV4, 24)
    kernel.virtual_servers[FOREIGN] = VirtualServerState(
        VirtualServerOptions("wlc"), {("192.168.123.9", 80): RealServerState(0, 3, 1)}
    )
    kernel.add_link("other-dummy", kind="dummy", noarp=True)
    kernel.add_address("other-dummy", "10.96.0.200")
    kernel.sets["other"] = FakeSet(SetDefinition("other", "hash:ip"), {("192.0.2.1",)})
    for family in (2, 10):
        kernel.table(family, "nat").chains["OTHER"] = ["-j RETURN"]
        kernel.table(family, "nat").chains["PREROUTING"].append("-j OTHER")
    return kernel


def drift(kernel: FakeKernel, what: str, which: int) -> None:
    """Somebody does this to what kroute has made."""
    ours = sorted(key for key in kernel.virtual_servers if key != FOREIGN)
    if what in {"link", "address", "route"} and DUMMY in kernel.links:
        drift_of_link(kernel, what, which)
    elif what in {"virtual_server", "real_server", "weight"} and ours:
        drift_of_virtual_server(kernel, ours[which % len(ours)], what, which)
    elif what == "ipvsadm -C":
        for key in ours:
            del kernel.virtual_servers[key]
    elif what == "flush":
        for name, each in kernel.sets.items():
            if name.startswith("KROUTE-"):
                each.elements.clear()
    elif what == "iptables -F":
        for table in kernel.tables.values():
            table.chains |= {name: [] for name in table.chains if name.startswith("KROUTE-")}


def drift_of_link(kernel: FakeKernel, what: str, which: int) -> None:
    link = kernel.links[DUMMY]
    routes = [route for many in link.routes.values() for route in many]
    if what == "link":
        kernel.delete_link(DUMMY)
    elif what == "address" and link.addresses:
        kernel.delete_address(DUMMY, sorted(link.addresses)[which % len(link.addresses)])
    elif what == "route" and routes:
        kernel.drop_route(DUMMY, routes[which % len(routes)])


def drift_of_virtual_server(kernel: FakeKernel, key: tuple[int, str, int], what: str, which: int) -> None:
    real_servers = kernel.virtual_servers[key].real_servers
    if what == "virtual_server":
        del kernel.virtual_servers[key]
    elif what == "real_server" and real_servers:
        real_servers.popitem()
    elif what == "weight":
        for real, state in real_servers.items():
            real_servers[real] = state._replace(weight=which % 2 * 5)


def picture(kernel: FakeKernel) -> dict[str, object]:
    """Everything in the kernel that matters to a packet, and everything of others'."""
    return {
        "virtual servers": {
            key: (state.options, {real: it.weight for real, it in state.real_servers.items()})
            for key, state in kernel.virtual_servers.items()
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
    if not any(":" in one.key.address for servers in world.contents.values() for one in servers):
        # Forwarding stays once an IPv6 Service was served.
        fresh.kernel.sysctls["net.ipv6.conf.all.forwarding"] = world.node.kernel.sysctls["net.ipv6.conf.all.forwarding"]
    assert picture(world.node.kernel) == picture(fresh.kernel)

    await world.restart()
    assert world.node.kernel.writes == []


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=25))
def test_any_history_ends_as_a_fresh_computation_and_a_restart_then_writes_nothing(
    actions: list[tuple[object, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second, capture_logs():
        asyncio.run(story(actions, Path(first), Path(second)))


class Witness(list[object]):
    """Sees every write at the moment when it has been made, and what the kernel then looks like."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def append(self, change: object) -> None:
        super().append(change)
        match change:
            case BindAddress(address):
                self.went_live(address)
            case DeleteVirtualServer((_, address, _)) | DeleteEntry(_, (address, _, _)):
                assert not self.is_bound(address) or address in self.wanted(), f"{change} before its address"
            case DeleteLocalRoute(address):
                assert not self.is_bound(address), f"{change} before its address"

    def went_live(self, address: str) -> None:
        kernel = self.world.node.kernel
        keys = [key for key in kernel.virtual_servers if key[1] == address]
        prefix = "KROUTE-6-" if ":" in address else "KROUTE-"
        assert keys, f"{address} went live without virtual servers"
        assert any(
            (address, protocol, port) in kernel.sets[f"{prefix}CLUSTER-IP"].elements for protocol, _, port in keys
        ), f"{address} went live without set entries"
        source = kernel.links[DUMMY].routes[address][0].source
        assert source in {NODE_IPV4, OTHER_NODE_IPV4, NODE_IPV6}, f"{address} went live with source {source}"

    def is_bound(self, address: str) -> bool:
        kernel = self.world.node.kernel
        return DUMMY in kernel.links and address in kernel.links[DUMMY].addresses

    def wanted(self) -> set[str]:
        return {one.key.address for servers in self.world.contents.values() for one in servers}


async def orderly_story(actions: list[tuple[object, ...]], state_dir: Path) -> None:
    world = World(state_dir)
    await world.node.start()
    world.node.kernel.writes = Witness(world)
    for action in actions:
        await world.do(*action)
        if action[0] == "edit":
            await world.node.settle(actions[0][1] if actions[0][0] == "settle" else (0, 1, 2))


ORDERLY = st.one_of(
    EDITS,
    EDITS,
    st.tuples(st.just("drift"), st.sampled_from(("link", "address")), st.integers(0, 7)),
    st.tuples(st.just("settle"), st.permutations([0, 1, 2])),
    st.tuples(st.just("restart")),
    st.tuples(st.just("kill"), st.integers(1, 12)),
)


@settings(max_examples=60, deadline=None)
@given(st.permutations([0, 1, 2]), st.lists(ORDERLY, max_size=25))
def test_an_address_always_goes_live_last_and_goes_away_first(
    order: list[int], actions: list[tuple[object, ...]]
) -> None:
    with tempfile.TemporaryDirectory() as state_dir, capture_logs():
        asyncio.run(orderly_story([("settle", order), *actions], Path(state_dir)))
