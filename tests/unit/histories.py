"""Histories of a node in memory: plans that change, and other events of kroute and the kernel."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

from kroute.firewall.iptables.address_sets import set_name
from kroute.kernel.ipset import SetDefinition
from kroute.kernel.ipvs.objects import AddVirtualServer, RealServerState, VirtualServerOptions, VirtualServerState
from kroute.kernel.net.addresses import BindAddress, UnbindAddress
from kroute.kernel.net.routes import DeleteLocalRoute, SetLocalRoute
from kroute.model.plan import AddressSet, Persistence, Protocol, ServicePlan, VirtualServer
from tests.fakes.kernel import FakeKernel, FakeSet
from tests.unit.fake_node import DUMMY, NODE_IPV4, NODE_IPV6, FakeNode, new_kernel, plan, server

Key = tuple[int, str, int]

OTHER_NODE_IPV4 = "192.168.123.239"
SERVICES = ("a", "b", "c")
SHARED_VIP = "10.96.0.100"
FOREIGN = (6, "192.168.123.201", 80)
FOREIGN_NODE_PORT = (6, NODE_IPV4, 8001)
"""It has a key that node ports of Service b may have too."""


class Killed(BaseException):
    """kroute is killed at this write."""


def servers_of(service: int) -> st.SearchStrategy[tuple[VirtualServer, ...]]:
    """Virtual servers of one Service: own addresses, one that all share with different ports, and node ports."""
    one = st.builds(
        lambda vip, protocol, reals, scheduler, persistence: server(
            vip,
            8000 + service,
            *(f"fd00:1::{real}" if ":" in vip else f"10.1.0.{real}" for real in sorted(reals)),
            protocol=protocol,
            scheduler=scheduler,
            persistence=persistence,
        ),
        st.sampled_from([f"10.96.0.{service + 1}", f"fd00::{service + 1}", SHARED_VIP, NODE_IPV4, NODE_IPV6]),
        st.sampled_from([Protocol.TCP, Protocol.UDP]),
        st.sets(st.integers(1, 3)),
        st.sampled_from(["rr", "lc", "mh", "nonsense"]),
        st.sampled_from([None, Persistence(600, 32)]),
    )
    return st.lists(one, max_size=3, unique_by=lambda made: made.key).map(tuple)


EXTERNAL_SETS = st.sampled_from(
    [
        (AddressSet.EXTERNAL,),
        (AddressSet.EXTERNAL_LOCAL,),
        (AddressSet.EXTERNAL_LOCAL, AddressSet.NO_LOCAL),
    ]
)
EDITS = st.integers(0, len(SERVICES) - 1).flatmap(
    lambda i: st.tuples(st.just("edit"), st.just(i), servers_of(i), EXTERNAL_SETS)
)
DRIFTS = ("link", "address", "route", "virtual_server", "real_server", "weight", "ipvsadm -C", "flush", "iptables -F")


class World:
    """The current plans, the node, and the events that change either."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.contents: dict[str, tuple[VirtualServer, ...]] = {}
        self.external: dict[str, tuple[AddressSet, ...]] = {}
        self.source = NODE_IPV4
        self.generation = 0
        self.node = FakeNode(state_dir, kernel_with_neighbours())

    def plans(self, *names: str) -> list[ServicePlan]:
        """Return the newest plans of these Services; of all Services if none is named."""
        self.generation += 1
        return [self.plan_of(name) for name in names or tuple(self.contents)]

    def plan_of(self, name: str) -> ServicePlan:
        """Return the newest plan of a Service."""
        servers, external = self.contents[name], self.external[name]
        return plan(name, self.generation, *servers, source=self.source, external=external)

    def entries(self) -> dict[Key, list[tuple[str, object]]]:
        """Return, for each port, the set entries of the newest plans: a set's name and an element."""
        desired: dict[Key, list[tuple[str, object]]] = {}
        for made in map(self.plan_of, self.contents):
            for one in made.virtual_servers:
                protocol, address, port = one.key
                element = (address, int(protocol), port)
                desired[one.key] = [
                    (set_name(entry.family, entry.set), entry.element)
                    for entry in made.set_entries
                    if entry.element == element
                ]
        return desired

    async def do(self, action: str, *arguments: object) -> None:
        match action, *arguments:
            case "edit", int(service), tuple(servers), tuple(external):
                self.contents[SERVICES[service]] = servers
                self.external[SERVICES[service]] = external
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
        """Kill kroute before the write that follows `writes` more, or after a while; then start it again."""
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
        """Wait long enough for every retry, resync and drain."""
        for seconds in (0, 40, 40, 40, 40):
            await self.node.wait(seconds)


def every(which: int) -> Callable[[object], bool]:
    """Return a condition that holds for one kind of write."""
    kinds = (AddVirtualServer, BindAddress, UnbindAddress, SetLocalRoute, DeleteLocalRoute, object)
    return lambda change: isinstance(change, kinds[which])


def kernel_with_neighbours() -> FakeKernel:
    """Return a kernel that has foreign objects too."""
    kernel = new_kernel()
    kernel.add_address("eth0", OTHER_NODE_IPV4, 24)
    for key in (FOREIGN, FOREIGN_NODE_PORT):
        kernel.virtual_servers[key] = VirtualServerState(
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
    """Do this to kroute's objects, as another program might."""
    ours = sorted(key for key in kernel.virtual_servers if key not in {FOREIGN, FOREIGN_NODE_PORT})
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
