"""A node in memory: a fake kernel, and the controllers that write to it, pass by pass on a clock that tests move."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from kroute.controllers.announcing.controller import Speaking
from kroute.controllers.network_policy import Policies
from kroute.controllers.node_controllers import NodeControllers
from kroute.controllers.pod_routes import Connecting
from kroute.firewall.backend import BACKENDS, removables
from kroute.kernel.cni import CniFile
from kroute.kernel.iptables.tools import Variant
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import ObjectKey
from kroute.model.plan import (
    AddressSet,
    NodePlan,
    Persistence,
    Plan,
    Problem,
    Protocol,
    RealServer,
    ServicePlan,
    SetEntry,
    Vip,
    VirtualServer,
    VirtualServerKey,
)
from kroute.planning.bgp.catalog import SpeakerCatalog
from kroute.planning.pod_routes import PodRouteCatalog
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings
from kroute.watchers.yaml_text import value_of
from tests.fakes.bird import FakeBird
from tests.fakes.kernel import FakeKernel
from tests.fakes.node_kernel import FakeNodeKernel

DUMMY = "kube-ipvs0"
NODE_IPV4, NODE_IPV6 = "192.168.123.249", "fd00:123::249"
OWN_ADDRESSES = frozenset({NODE_IPV4, NODE_IPV6})

SYSCTLS = {
    "net.ipv4.vs.conntrack": "0",
    "net.ipv4.vs.expire_nodest_conn": "0",
    "net.ipv4.vs.expire_quiescent_template": "0",
    "net.ipv4.vs.conn_reuse_mode": "1",
    "net.ipv4.vs.sloppy_tcp": "0",
    "net.ipv4.ip_forward": "0",
    "net.ipv4.conf.all.accept_redirects": "1",
    "net.ipv4.conf.all.arp_ignore": "0",
    "net.ipv4.conf.all.arp_announce": "0",
    "net.ipv6.conf.all.forwarding": "0",
}


class Clock:
    """Seconds that pass only when a test sets them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def new_kernel(**options: object) -> FakeKernel:
    """Return a kernel with one wire, the node's own addresses on it, and the usual sysctls."""
    kernel = FakeKernel(**options)
    kernel.add_link("eth0")
    kernel.add_address("eth0", NODE_IPV4, 24)
    kernel.add_address("eth0", NODE_IPV6, 64)
    kernel.sysctls.update(SYSCTLS)
    return kernel


class FakeNode:
    """One run of kroute's controllers on a kernel; `restarted()` is the next run on the same kernel and state.

    Unless the settings say otherwise, the budget has it resync every period, however slow this machine is.
    """

    def __init__(
        self, state_dir: Path, kernel: FakeKernel | None = None, bird: FakeBird | None = None, **settings: object
    ) -> None:
        self.kernel = kernel or new_kernel()
        self.bird = bird or FakeBird()
        self.node_problems: list[tuple[str, Problem]] = []
        usual = {"firewall": "iptables", "resync_budget": 1.0}
        self.settings = Settings(node_name="node3", state_dir=state_dir, **{**usual, **settings})
        self.clock = Clock()
        self.problems: list[tuple[ObjectKey, Problem]] = []
        self.broadcaster = Broadcaster()
        self.clients = FakeNodeKernel.of(self.kernel)
        self.ipvs, self.ipset, self.conntrack = self.clients.ipvs, self.clients.ipset, self.clients.conntrack
        self.xtables = {family: self.clients.xtables[Variant(family.number, "legacy")] for family in Family}
        self.wiring = wiring = NodeControllers(
            self.settings,
            self.broadcaster,
            lambda key, problem: self.problems.append((key, problem)),
            self.clients,
            Policies(PolicyCatalog("node3"), lambda *_: None) if self.settings.network_policies else None,
            self._speaking() if self.settings.announce else None,
            self._connecting() if self.settings.pod_network else None,
            clock=self.clock,
        )
        self.stage_gate, self.ledger, self.interface = wiring.stage_gate, wiring.ledger, wiring.interface
        self.service_proxy, self.route_fix = wiring.service_proxy, wiring.route_fix
        self.masquerade = wiring.masquerade
        self.controllers = list(wiring.kernel_writers)
        self._monitors = {
            "service_proxy": self.service_proxy._monitor,
            "route_fix": self.route_fix._monitor,
        }
        if (routes := wiring.optional.pod_routes) is not None:
            self.pod_routes, self._monitors["pod_routes"] = routes, routes._monitor

    def _speaking(self) -> Speaking:
        def note(what: str) -> Callable[[Problem], None]:
            return lambda problem: self.node_problems.append((what, problem))

        return Speaking(SpeakerCatalog(self.settings, value_of), self.bird, note("report"), note("take back"))

    def _connecting(self) -> Connecting:
        def note(what: str) -> Callable[[Problem], None]:
            return lambda problem: self.node_problems.append((what, problem))

        cni = CniFile(self.settings.cni_file)
        return Connecting(PodRouteCatalog(self.settings), cni, note("report"), note("take back"))

    def use_clock(self, clock: Callable[[], float]) -> None:
        """Replace the clock; call this before anything else."""
        for controller in self.controllers:
            controller.clock = controller.status.clock = clock
            controller.resync_soon()

    async def open(self) -> None:
        """Open every client of the kernel."""
        await self.clients.open()
        for monitor in self._monitors.values():
            await monitor.open()

    async def start(self, *plans: Plan, order: Iterable[int] | None = None) -> "FakeNode":
        """Adopt, take these plans as the initial sync, and write until nothing is left to do.

        A default plan of the node comes first, unless `plans` has one.
        """
        order = self._in_order(order)
        await self.open()
        own = [] if any(isinstance(each, NodePlan) for each in plans) else [node_plan()]
        self.broadcaster.publish([*own, *plans])
        for index in order:
            await self.controllers[index].start()
        await self.settle(order)
        return self

    async def apply(self, *plans: Plan) -> None:
        """Publish plans and write until nothing is left to do."""
        self.broadcaster.publish(plans)
        await self.settle()

    async def settle(self, order: Iterable[int] | None = None) -> None:
        """Run passes of the controllers, in this order, until none of them has anything to do at this time."""
        order = self._in_order(order)
        for _ in range(30):
            for index in order:
                await self.pump()
                await self.controllers[index].step()
            if not await self.pump() and not any(controller.wake.is_set() for controller in self.controllers):
                return
        raise AssertionError("the controllers never come to rest")

    def _in_order(self, order: Iterable[int] | None) -> list[int]:
        """Return the order as indexes into `controllers`; None means their own order."""
        return list(range(len(self.controllers)) if order is None else order)

    async def pump(self) -> bool:
        """Deliver the kernel's events; return whether there were any."""
        delivered = False
        for name, monitor in self._monitors.items():
            try:
                async with asyncio.timeout(0):
                    getattr(self, name)._events += await monitor.next()
                    delivered = True
            except TimeoutError:
                continue
        return delivered

    async def wait(self, seconds: float) -> None:
        """Let time pass, then write until nothing is left to do."""
        self.clock.now += seconds
        await self.settle()

    async def resync(self) -> None:
        """Let a resync period pass."""
        await self.wait(self.settings.resync_period + 1)

    def restarted(self, **settings: object) -> "FakeNode":
        """Kill this run, and return the next one on the same kernel and state directory."""
        for monitor in self._monitors.values():
            if monitor.is_open:
                self.kernel.unsubscribe(monitor._queue)
        self.kernel.writes.clear()
        kept = {"resync_period": self.settings.resync_period, "drain_timeout": self.settings.drain_timeout}
        return FakeNode(self.settings.state_dir, self.kernel, self.bird, **{**kept, **settings})

    async def cleanup(self) -> CleanupReport:
        """Do what `kroute cleanup` does in its own process."""
        name = self.settings.firewall
        is_present = await BACKENDS[name].is_present(self.settings, self.clients)
        return await self.wiring.cleanup(removables(self.settings, name, self.clients) if is_present else [])


def server(
    vip: str = "10.96.0.1",
    port: int = 80,
    *real_servers: str,
    protocol: Protocol = Protocol.TCP,
    scheduler: str = "rr",
    flags: int = 0,
    persistence: Persistence | None = None,
    leaving: Iterable[str] = (),
) -> VirtualServer:
    """Return a virtual server; `real_servers` and `leaving` are addresses, all with port 8080."""
    key, reals = VirtualServerKey(protocol, vip, port), tuple(RealServer(address, 8080) for address in real_servers)
    left = tuple((address, 8080) for address in leaving)
    return VirtualServer(key, scheduler, flags, persistence, reals, leaving=left)


def plan(
    name: str,
    generation: int,
    *servers: VirtualServer,
    source: str | None = NODE_IPV4,
    source6: str | None = NODE_IPV6,
    external: Iterable[AddressSet] = (AddressSet.EXTERNAL,),
) -> ServicePlan:
    """Return the plan of Service default/NAME with these virtual servers, and their VIPs and set entries.

    A virtual server on an address of the node's own is a node port; `external` names the sets of its entries.
    """
    addresses = sorted({one.key.address for one in servers} - OWN_ADDRESSES)
    entries = [SetEntry(AddressSet.VIP, (address,)) for address in addresses]
    for one in servers:
        protocol, address, port = one.key
        served = tuple(external) if address in OWN_ADDRESSES else (AddressSet.CLUSTER_IP,)
        sets = served if one.real_servers else (AddressSet.NO_ENDPOINT,)
        entries += [SetEntry(each, (address, int(protocol), port)) for each in sets]
        entries += [
            SetEntry(AddressSet.HAIRPIN, (real.address, int(protocol), real.port, real.address))
            for real in one.real_servers
        ]
    return ServicePlan(
        ObjectKey("default", name),
        generation,
        virtual_servers=servers,
        vips=tuple(Vip(address, source6 if ":" in address else source) for address in addresses),
        set_entries=tuple(sorted(set(entries))),
    )


def node_plan(
    generation: int = 0, *pod_networks: str, ipv4: str | None = NODE_IPV4, ipv6: str | None = NODE_IPV6
) -> NodePlan:
    """Return the node's own plan: its addresses, and its pod networks."""
    return NodePlan(
        NodeFacts("node3", ipv4, ipv6, pod_cidrs=pod_networks),
        generation,
        set_entries=tuple(SetEntry(AddressSet.POD_NETWORK, (network,)) for network in sorted(pod_networks)),
    )
