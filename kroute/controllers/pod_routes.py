"""Connects this node's pods: writes routes and tunnels to other nodes' pods, and the configuration of CNI.

This controller plans, too: `take_changes` keeps what the watchers saw of Nodes, and each pass plans the Nodes of which
something has changed and writes the difference. No Service waits for it. The file of CNI is written when all routes
were attempted, so that the first pods have them. At its end everything stays: pods go on without kroute.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from socket import AF_INET, AF_INET6
from typing import Any, NamedTuple, Protocol

import structlog

from kroute.kernel.clients import CniClient, EventSource, PodNetworkClient
from kroute.kernel.cni import PodsBridge
from kroute.kernel.digest import LastLook
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.net.monitor import AddressEvent, Event, LinkEvent
from kroute.kernel.netlink.message import address_family
from kroute.kernel.pods.pod_routes import (
    GUE_OVERHEAD,
    OVERHEAD,
    DeletePodRoute,
    DeleteTunnel,
    MakeTunnel,
    PodRoute,
    PodRouteChange,
    SetPodRoute,
    SetRule,
    Tunnel,
)
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Change
from kroute.model.plan import NodePlan, Plan, Problem, ServicePlan
from kroute.model.pod_routes import LEFT_OUT, NodeRoutes
from kroute.reconcile.batch_writer import log_changes
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.controller import Controller, Shared
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.resync_schedule import DigestPace
from kroute.reconcile.standing_problems import StandingProblems
from kroute.settings import OFF

log = structlog.get_logger(__name__)

BRIDGE = PodsBridge("kroute-pods", "kroute")
"""The bridge of this node's pods, which the plugin makes, and their network, where there are none of kube-router's."""
_CNI, _PORT, _RULES = "CNI", "the port of tunnels", "routing rules for pods"
_LEAST_MTU: dict[int, int] = {AF_INET: 576, AF_INET6: 1280}


class Catalog(Protocol):
    """What plans (`kroute.planning.pod_routes.PodRouteCatalog`)."""

    own: tuple[str, ...]
    problems: dict[str, tuple[Problem, ...]]
    is_ready: bool

    @property
    def has_marked(self) -> bool: ...

    def take(self, changes: Iterable[Change]) -> None: ...

    def set_node(self, facts: NodeFacts) -> None: ...

    def plan_marked(self) -> list[NodeRoutes]: ...


class Connecting(NamedTuple):
    """What plans, where CNI's configuration is, and what is called with a problem of the node, and with one that is
    over."""

    catalog: Catalog
    cni: CniClient
    report: Callable[[Problem], None]
    take_back: Callable[[Problem], None]


class PodRoutes(Controller):
    """Owns the routes and tunnels to other nodes' pods, the ports of tunnels, and kroute's file of CNI.

    `monitor` reports links and addresses.
    """

    name = "pod_routes"
    first_period = 5 / 6

    def __init__(
        self, shared: Shared, connecting: Connecting, network: PodNetworkClient, monitor: EventSource | None
    ) -> None:
        super().__init__(shared, monitor)
        self._connecting = connecting
        self._network = network
        self.tunnels: DesiredState[str, Tunnel] = DesiredState()
        self.routes: DesiredState[str, PodRoute] = DesiredState()
        self._facts: NodeFacts | None = None
        self._standing = StandingProblems(connecting.report, connecting.take_back)
        self._refused: dict[str, Failure[PodRouteChange]] = {}
        """Of each route and tunnel that the kernel has refused."""
        self._last = LastLook()
        self._pace = DigestPace(shared.settings, self.status.counters)
        self._rising: set[str] = set()
        """Tunnels that were made or repaired, and that no event has shown up yet."""
        self._is_due = True
        """Whether CNI's file and the ports of tunnels are to be looked at."""

    @property
    def problems(self) -> list[Problem]:
        """What keeps pods from reaching each other."""
        return self._standing.all

    @property
    def left_out(self) -> list[Problem]:
        """The networks of other nodes' pods to which no route is planned."""
        of_nodes = self._connecting.catalog.problems.values()
        return [problem for of_node in of_nodes for problem in of_node if problem.reason == LEFT_OUT]

    @staticmethod
    def is_news(plan: Plan, before: Plan | None) -> bool:
        return isinstance(plan, NodePlan) and not (isinstance(before, NodePlan) and before.whole == plan.whole)

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Nothing: see `take_changes`."""

    def accept_node(self, plan: NodePlan) -> None:
        if plan.whole is not None and plan.whole != self._facts:
            if self._facts is not None and not {plan.whole.ipv4, plan.whole.ipv6} - {None} <= plan.whole.own:
                return  # an uplink is down, which takes addresses along: what is right when it is up again stays
            self._facts, self._is_due = plan.whole, True
            self._connecting.catalog.set_node(plan.whole)

    def take_changes(self, changes: Iterable[Change]) -> None:
        """Take what the watchers saw; only Nodes count."""
        catalog = self._connecting.catalog
        catalog.take(changes)
        if catalog.has_marked:
            self.wake.set()

    def notice(self, events: Sequence[Event]) -> None:
        """Notice that a link or an address has changed with which the kernel may have deleted routes of ours."""
        of_links = [event for event in events if isinstance(event, LinkEvent)]
        links = {interface for interface, _ in self._facts.interfaces.on_links} if self._facts is not None else set()
        if any(event.interface in links or self._is_lost(event) for event in of_links) or any(
            isinstance(event, AddressEvent) and event.interface in links for event in events
        ):
            self.resync_soon()

    def _is_lost(self, event: LinkEvent) -> bool:
        """Whether a tunnel was deleted or brought down by others; one that is made is down until it was seen up."""
        link = event.interface
        if event.up or event.gone:
            self._rising.discard(link)
        return not event.up and link in self.tunnels.desired_keys() and link not in self._rising

    async def look(self) -> bool:
        """Whether routes have changed. Of few nodes all is read; that tunnels are lost, events say."""
        self._is_due = True
        if self.status.counters.resync_cost <= self.settings.resync_period * self.settings.resync_budget:
            return True
        if not self._pace.is_due():
            return False
        return not self._last.is_same(await self._pace.take(self._network.digest()), (len(self.routes.applied),))

    async def read(self) -> Iterable[str]:
        """Read the kernel's routes and tunnels, and have CNI's file compared."""
        self._is_due = True
        self._last.read(await self._pace.take(self._network.digest()))
        of_routes, of_tunnels = self.routes.resync(), self.tunnels.resync()
        routes, tunnels = await self._network.read()
        for network, route in routes.items():
            of_routes.found(network, route)
        for link, tunnel in tunnels.items():
            of_tunnels.found(link, tunnel)
        drift = [_missing("route to the pods in", it) for it in await of_routes.complete()]
        return [*drift, *(_missing("tunnel", it) for it in await of_tunnels.complete())]

    async def write(self) -> None:
        """Plan what has changed, and write it."""
        catalog = self._connecting.catalog
        if self._facts is None or not catalog.is_ready:
            return  # until then an earlier run's routes are right
        while plans := catalog.plan_marked():
            for plan in plans:
                self._want(plan)
            await asyncio.sleep(0)
        if self.tunnels.unsettled or self.routes.unsettled:
            await self._write_routes()
        own = {_CNI, _PORT, _RULES}
        of_nodes = (it for of_node in catalog.problems.values() for it in of_node)
        self._standing.report([*of_nodes, *_refusals(self._refused)], lambda it: it.subject not in own)
        if self._is_due and not own & self.status.waiting():
            self._is_due = False
            await self._attempt(_PORT, self._ensure_ports(self._facts), "Pods of other nodes are not reached.")
            await self._attempt(_RULES, self._ensure_rules(), "Pods do not reach the addresses of some nodes.")
            await self._attempt(_CNI, self._ensure_cni(self._facts), "New pods get no network of kroute's.")

    def _want(self, plan: NodeRoutes) -> None:
        routes: dict[str, PodRoute] = {}
        tunnels: dict[str, Tunnel] = {}
        for network, route in plan.routes.items():
            if route.is_tunnelled:
                tunnel = Tunnel(route.source, route.node, self.settings.tunnel_port)
                tunnels[tunnel.link] = tunnel
                routes[network] = PodRoute(route.source, link=tunnel.link)
                routes[_alone(route.node)] = PodRoute(link=tunnel.link, is_for_pods=True)
            else:
                routes[network] = PodRoute(route.source, gateway=route.node)
        self.tunnels.want(plan, tunnels)
        self.routes.want(plan, routes)

    async def _write_routes(self) -> None:
        """Write tunnels and routes: the client makes tunnels first, and deletes them last."""
        waiting = self.status.waiting()
        tunnels = [it for it in await self.tunnels.all_pending() if it.key not in waiting]
        routes = [it for it in await self.routes.all_pending() if it.key not in waiting]
        changes = [*map(_of_tunnel, tunnels), *map(_of_route, routes)]
        self._rising |= {it.key for it in tunnels if it.desired is not None}
        self._last.wrote()
        refused = {_key(failure.change): failure for failure in await self._network.write(changes)}
        tunnels = [it for it in tunnels if it.key not in refused]
        for tunnel in tunnels:
            self.tunnels.note_applied(tunnel.key, tunnel.desired)
        routes = [it for it in routes if it.key not in refused]
        for route in routes:
            self.routes.note_applied(route.key, route.desired)
        unsettled = {*self.tunnels.unsettled, *self.routes.unsettled}
        self._refused = {key: it for key, it in (self._refused | refused).items() if key in unsettled}
        log_changes(log, tunnels, lambda it: "tunnel.made" if it.desired else "tunnel.deleted", _fields)
        log_changes(log, routes, lambda it: "pod_route.set" if it.desired else "pod_route.removed", _fields)
        self.status.wrote(len(tunnels) + len(routes))
        self.status.refused({key: str(failure) for key, failure in refused.items()}, ())
        await self._close_ports(it.applied for it in tunnels if it.applied is not None and it.desired is None)
        self._is_due = self._is_due or bool(tunnels)

    async def _close_ports(self, gone: Iterable[Tunnel]) -> None:
        """Take no more packets out of UDP at ports that no tunnel has any more."""
        used = {_port_of(tunnel) for tunnel in self.tunnels.applied.values()}
        for family, port in sorted({_port_of(tunnel) for tunnel in gone if tunnel.port} - used):
            await self._network.set_port(family, port, is_wanted=False)

    async def _attempt(self, what: str, work: Coroutine[Any, Any, None], consequence: str) -> None:
        """Do what is beside routes and tunnels. A failure is a problem of the node, and is tried again."""
        try:
            await work
        except KernelError as error:
            self._is_due = True
            self.status.refused({what: str(error)}, ())
            problem = Problem("PodNetworkIncomplete", what, f"{error}. {consequence} See docs/pod-network.md.")
            self._standing.report([problem], lambda it: it.subject == what)
            return
        self.status.retries.succeeded(what)
        self._standing.report([], lambda it: it.subject == what)

    async def _ensure_ports(self, facts: NodeFacts) -> None:
        """Have the kernel take packets of tunnels at their port; tunnels first, since a cleanup knows it by them."""
        if not (port := self.settings.tunnel_port) or not self.tunnels.applied:
            return
        present = await self._network.ports()
        for address in (facts.ipv4, facts.ipv6):
            if address is not None and (address_family(address), port) not in present:
                await self._network.set_port(address_family(address), port, is_wanted=True)
                self.status.wrote(1)

    async def _ensure_rules(self) -> None:
        """Have this node's pods reach nodes behind tunnels through these."""
        wanted = set(self._connecting.catalog.own) if self.settings.overlay != OFF else set[str]()
        found = await self._network.rules()
        changes: list[PodRouteChange] = [SetRule(network, is_wanted=False) for network in sorted(found - wanted)]
        changes += map(SetRule, sorted(wanted - found))
        for failure in await self._network.write(changes) if changes else ():
            raise KernelError(str(failure), errno=failure.errno)
        self.status.wrote(len(changes))

    async def _ensure_cni(self, facts: NodeFacts) -> None:
        """Write CNI's file if this node has networks for pods, and it differs."""
        if not self._connecting.catalog.own:
            return
        pods = self._connecting.cni.bridge_in_use() or BRIDGE
        text = configuration(self._connecting.catalog.own, await self._pods_mtu(facts), pods)
        if text != self._connecting.cni.read():
            self._connecting.cni.write(text)
            self.status.wrote(1)
            log.info("cni.written", networks=self._connecting.catalog.own)

    async def _pods_mtu(self, facts: NodeFacts) -> int:
        """The MTU of pods: that of the interfaces with the node's own addresses, less the tunnels' headers.

        An address that is alone, without a subnet, may be on loopback: the interface of the default route counts, too.
        """
        own = [address for address in (facts.ipv4, facts.ipv6) if address is not None]
        families = [address_family(address) for address in own]
        if self.settings.pod_mtu is not None:
            return max(self.settings.pod_mtu, *(_LEAST_MTU[family] for family in families))
        on_links = [(link, text) for link, text in facts.interfaces.on_links if text.partition("/")[0] in own]
        alone = {address_family(address) for address in own if _alone(address) in {text for _, text in on_links}}
        found = await self._network.mtu({link for link, _ in on_links}, alone)
        if found is None:
            raise KernelError("no interface has the node's own address, so the MTU of pods is not known; see --pod-mtu")
        if self.settings.overlay != OFF:
            found -= max(OVERHEAD[family] for family in families) + (GUE_OVERHEAD if self.settings.tunnel_port else 0)
        return max(found, *(_LEAST_MTU[family] for family in families))


def configuration(networks: Iterable[str], mtu: int, pods: PodsBridge = BRIDGE) -> str:
    """CNI's configuration for pods with addresses from these networks."""
    networks = list(networks)
    default: dict[int, str] = {AF_INET: "0.0.0.0/0", AF_INET6: "::/0"}
    bridge = {
        "type": "bridge",
        "bridge": pods.bridge,
        "isGateway": True,
        "forceAddress": True,  # else no pod is started where the network is another one than when the bridge was made
        "hairpinMode": True,
        "ipMasq": False,
        "mtu": mtu,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": network}] for network in networks],
            "routes": [{"dst": default[family]} for family in sorted({address_family(it) for it in networks})],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": pods.network, "plugins": [bridge, portmap]}, indent=1) + "\n"


async def disconnect(network: PodNetworkClient, cni: CniClient, report: CleanupReport) -> None:
    """Undo what earlier runs did: the file of CNI, routes, ports and tunnels. Pods and their bridge stay."""
    with report.step("the configuration of CNI"):
        if cni.remove():
            report.add("delete the configuration of CNI")
    with report.step("routes and tunnels to other nodes' pods"):
        routes, tunnels = await network.read()
        for family, port in {(address_family(it.remote), it.port) for it in tunnels.values() if it.port}:
            await network.set_port(family, port, is_wanted=False)
        rules = sorted(await network.rules())
        gone: list[PodRouteChange] = [SetRule(of_pods, is_wanted=False) for of_pods in rules]
        gone += [*(DeletePodRoute(*each) for each in routes.items()), *map(DeleteTunnel, tunnels)]
        for failure in await network.write(gone):
            raise KernelError(str(failure), errno=failure.errno)
        if gone:
            report.add(f"delete {len(routes)} routes and {len(tunnels)} tunnels to other nodes' pods")


def _of_tunnel(delta: Delta[str, Tunnel]) -> PodRouteChange:
    return MakeTunnel(delta.desired) if delta.desired is not None else DeleteTunnel(delta.key)


def _of_route(delta: Delta[str, PodRoute]) -> PodRouteChange:
    if delta.desired is None:
        return DeletePodRoute(delta.key, delta.applied or PodRoute())
    return SetPodRoute(delta.key, delta.desired, replaces=delta.applied is not None)


def _fields(delta: Delta[str, Tunnel] | Delta[str, PodRoute]) -> dict[str, object]:
    return {"name": delta.key, "what": str(delta.desired or delta.applied)}


def _key(change: PodRouteChange) -> str:
    match change:
        case MakeTunnel(tunnel):
            return tunnel.link
        case DeleteTunnel(link):
            return link
        case SetPodRoute(network) | DeletePodRoute(network) | SetRule(network):
            return network


def _alone(address: str) -> str:
    """The network of one address."""
    return f"{address}/{128 if ':' in address else 32}"


def _port_of(tunnel: Tunnel) -> tuple[int, int]:
    return address_family(tunnel.remote), tunnel.port


def _refusals(refused: Mapping[str, Failure[PodRouteChange]]) -> Iterator[Problem]:
    """The problems of routes and tunnels that the kernel has refused: one of all that are refused for one reason.

    A route whose tunnel is refused is none.
    """
    alike: dict[tuple[type[PodRouteChange], int], list[str]] = {}
    for key, failure in refused.items():
        if not (isinstance(failure.change, SetPodRoute) and failure.change.route.link in refused):
            alike.setdefault((type(failure.change), failure.errno), []).append(key)
    for keys in alike.values():
        first, others = min(keys), f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
        of_tunnel = isinstance(refused[first].change, MakeTunnel)
        check = "; `kroute check` says which modules are missing" if of_tunnel else ""
        rest = f"{others}{check}. It is tried again. See docs/pod-network.md."
        yield Problem("PodRouteRefused", first, f"{refused[first]}{rest}")


def _missing(what: str, delta: Delta[str, Tunnel] | Delta[str, PodRoute]) -> str:
    if delta.desired is None:
        return f"{what} {delta.key} was surplus"
    return f"{what} {delta.key} was {'missing' if delta.applied is None else 'another'}"
