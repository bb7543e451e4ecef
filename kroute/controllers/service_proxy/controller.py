"""Makes this node serve: the dummy interface with the VIPs, and the virtual servers behind them.

`ServiceProxy.WRITE_ORDER` is the order of a pass: what is written, after what, and why. `readiness` decides what may be
written for a plan, as far as that depends on other controllers.

A start usually takes three passes. The first deletes what an earlier run left; new virtual servers wait for masquerade.
The next, after masquerade has written its sets and rules, writes the virtual servers. The last, after route_fix has
written the routes, binds the addresses.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.ipvs.effective_weights import EffectiveWeights
from kroute.controllers.ipvs.virtual_servers import VirtualServers
from kroute.controllers.live_addresses import LiveAddresses
from kroute.controllers.prepared_pods import PreparedPods
from kroute.controllers.service_proxy.readiness import Readiness
from kroute.controllers.service_proxy.surroundings import Surroundings
from kroute.controllers.service_proxy.udp_flows import UdpFlows
from kroute.controllers.service_proxy.vip_addresses import VipAddresses
from kroute.kernel.clients import EventSource
from kroute.kernel.net.monitor import AddressEvent, Event, LinkEvent
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, ServicePlan, VirtualServerKey
from kroute.reconcile.batches import sliced
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.comparison.vips import describe_drift
from kroute.reconcile.controller import Controller, Shared
from kroute.reconcile.ledger import Ledger
from kroute.reconcile.resync_schedule import DigestPace, earliest
from kroute.reconcile.stage_gate import (
    EARLIER_RUN,
    ENFORCED,
    ENTRIES_PREPARED,
    ROUTES_PREPARED,
    SERVED,
    UNANNOUNCED,
    WITHDRAWN,
    Revision,
)


class _Step(NamedTuple):
    """A step of `ServiceProxy.write`, the steps that must come before it, and why they must."""

    take: Callable[["ServiceProxy"], Awaitable[None]]
    after: "tuple[Callable[[ServiceProxy], Awaitable[None]], ...]"
    why: str


class ServiceProxy(Controller):
    """Owns the dummy interface, the VIPs, IPVS and the sysctls. `monitor` reports events of the dummy interface.

    `live` is set the first time that no Service waits to go live: those of the initial sync are live by then, or were
    waited for long enough. Restricted ports, and addresses that the kernel refuses, may be missing.
    """

    name = "service_proxy"

    def __init__(
        self,
        shared: Shared,
        kernel: NodeKernel,
        interface: DummyInterface,
        ledger: Ledger,
        monitor: EventSource,
        pods: PreparedPods,
        live: LiveAddresses,
    ) -> None:
        super().__init__(shared, monitor)
        self._gate = gate = shared.gate
        self._interface = interface
        self._surroundings = Surroundings(shared.settings, kernel, interface, ledger)
        pace = DigestPace(shared.settings, self.status.counters)
        self._vips = VipAddresses(self.status, kernel.addresses, interface, pace, live)
        self._flows = UdpFlows(self.status, kernel.conntrack)
        self._servers = VirtualServers(shared, self.status, kernel.ipvs, kernel.sysctls, ledger, self._flows.suspect)
        self._readiness = Readiness(gate, shared.report, pods)
        self._plans: dict[ObjectKey, ServicePlan] = {}
        self._lost: set[str] = set()
        """Addresses that are gone from the link: route_fix prepares their routes again before they are bound again."""
        self._may_lack_ipv4 = True
        """The link may have lost its last IPv4 address, with all IPv4 routes, since the last write; or had none yet."""
        self._lacked_ipv4 = False
        """It had none, and not all plans are WITHDRAWN since: route_fix may know lost routes of addresses that left."""
        self.live = asyncio.Event()
        pods.follow(self.wake)
        says = {SERVED: self._is_served, WITHDRAWN: self._is_withdrawn}
        gate.join(self.wake, says=says, waits_for=(ENTRIES_PREPARED, ROUTES_PREPARED), needs=self._readiness.waits_for)
        # ENFORCED always wakes this controller: a port may wait for it although the rest of the Service is live.
        gate.join(self.wake, says={}, waits_for=ENFORCED.values(), acts_on_revoked=ENFORCED.values())
        gate.join(self.wake, says={}, waits_for=(UNANNOUNCED,))
        gate.submit(EARLIER_RUN, WITHDRAWN)

    @property
    def weights(self) -> EffectiveWeights:
        """The weights that the real servers should have now."""
        return self._servers.weights

    def companions(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the passes, and connections to real servers that are to be ejected."""
        return [*super().companions(), self.weights.confirm()]

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Take the plans into the desired state."""
        for plan in plans:
            servers = self._readiness.accept(plan)
            self._servers.weights.want(plan, servers)
            before = self._plans.get(plan.key)
            if before is None or before.vips != plan.vips:
                self._vips.desired.want(plan, {vip.address: vip for vip in plan.vips})
            self._gate.submit(plan, SERVED, WITHDRAWN)
            if any(":" in key.address for key in servers):
                self._surroundings.serve_ipv6()
            self._plans[plan.key] = plan
            if not servers and plan.is_empty:  # the cheaper question first
                del self._plans[plan.key]
            if self._lacked_ipv4:
                self._lost.update(vip.address for vip in plan.vips if vip.address not in self._vips.desired.applied)

    def accept_node(self, plan: NodePlan) -> None:
        """Submit the node's plan for the stages that others wait for; it has no virtual servers and no VIPs."""
        self._gate.submit(plan, SERVED, WITHDRAWN)

    def notice(self, events: Sequence[Event]) -> None:
        """Notice that the link or an address was deleted; the next write restores it."""
        on_link = [event for event in events if event.interface == self._interface.name]
        self._notice_links([event for event in on_link if isinstance(event, LinkEvent)])
        newest = {event.assigned.address: event.gone for event in on_link if isinstance(event, AddressEvent)}
        lost = [address for address, gone in newest.items() if gone and address in self._vips.desired.applied]
        for address in lost:
            self._vips.desired.note_applied(address, None)
        if lost:
            lost = [address for address in lost if self._vips.desired.desired(address) is not None]
            self.status.repaired(describe_drift(address, None) for address in lost)
            self._lost.update(lost)
            self._may_lack_ipv4 = True

    async def prepare(self) -> None:
        """Make the interface, and set the sysctls and timeouts."""
        await self._surroundings.ensure()

    async def read(self) -> Iterable[str]:
        """Scan the link, sysctls, timeouts, addresses and IPVS. The first three are repaired at once."""
        wrong = await self._surroundings.ensure()
        drift = await self._vips.learn()
        wrong += [describe_drift(delta.key, delta.applied) for delta in drift]
        self._lost.update(delta.key for delta in drift if delta.applied is None)
        self._may_lack_ipv4 = True
        wrong += await self._servers.learn(self.write_new_changes)
        if not self.has_adopted:
            self._flows.suspect(self._servers.ours())
        return wrong

    async def look(self) -> bool:
        """Repair what `read` repairs at once, then look at the addresses and IPVS."""
        self.status.repaired(wrong := await self._surroundings.ensure())
        return bool(wrong) or await self._vips.look() or await self._servers.look()

    async def write(self) -> None:
        """Write the deltas in the order of dependency."""
        for step in self.WRITE_ORDER:
            await step.take(self)

    def next_due(self) -> float | None:
        """When the next poll of drains, end of a wait, or retry for UDP flows is due."""
        return earliest(self._servers.next_due(), self._readiness.next_due(), self._flows.next_due())

    async def cleanup(self, report: CleanupReport) -> None:
        """Delete our addresses and virtual servers, then restore timeouts and sysctls."""
        with report.step("addresses and virtual servers"):
            await self._flows.forget_all(await self._surroundings.cleanup(report), report)
        await self._surroundings.restore(report)

    async def _repair_surroundings(self) -> None:
        if self._interface.index is None or self._surroundings.are_sysctls_due:
            self.status.repaired(await self._surroundings.ensure())

    async def _unbind(self) -> None:
        gone = await self._vips.unbind(self._is_unannounced)
        if any(":" not in address for address in gone):
            self._may_lack_ipv4 = True

    async def _revoke_routes_prepared(self) -> None:
        """Have route_fix prepare the routes of lost addresses again.

        A link that loses its last IPv4 address loses all its IPv4 routes. These include routes to addresses that are
        yet to be bound, and to addresses that are wanted again before route_fix has deleted their routes. So while the
        link has no IPv4 address, as at a first start, the routes of all missing addresses count as lost.
        """
        if not (self._lost or self._may_lack_ipv4):
            return
        lost, self._lost = self._lost, set()
        self._may_lack_ipv4 = False
        if all(":" in address for address in self._vips.desired.applied):
            lost.update(await self._vips.missing())
            self._lacked_ipv4 = True
        owners: set[ObjectKey] = set()
        async for batch in sliced(lost):
            owners.update(owner for address in batch for owner in self._vips.desired.owners(address))
        async for keys in sliced(owners):
            for key in keys:
                self._readiness.add(self._plans[key])
        self._gate.revoke(ROUTES_PREPARED, owners)

    async def _write_servers(self) -> None:
        for plan in self._readiness.review(self.clock()):
            self.weights.want(plan, self._readiness.servers(plan))
        written = self.status.counters.writes
        await self._servers.write(self._is_needed, self._is_held)
        if self.status.counters.writes > written:
            self._gate.restart_waits(self.clock())

    async def _say_served(self) -> None:
        await self._readiness.end_waits(self._servers.desired.is_settled, self.clock)
        await self._gate.advance(SERVED)

    async def _bind(self) -> None:
        bound = await self._vips.bind(self._readiness.may_bind, self._has_route)
        for address in bound:
            for owner in self._vips.desired.owners(address):
                behind = {it.key for it in self._plans[owner].virtual_servers if it.key.address == address}
                self._flows.suspect(behind & self._servers.desired.applied.keys())
        if not self.live.is_set() and self._readiness.nobody_waits:
            self.live.set()

    async def _say_withdrawn(self) -> None:
        await self._gate.advance(WITHDRAWN)
        if not self._gate.has_candidates(WITHDRAWN):
            self._lacked_ipv4 = False

    async def _end_flows(self) -> None:
        await self._flows.end_stale(self._servers.serving)

    WRITE_ORDER: ClassVar = (
        _Step(_repair_surroundings, (), "addresses need their link, and packets of IPv6 the sysctls"),
        _Step(_unbind, (_repair_surroundings,), "no new client comes to what is deleted next"),
        _Step(_revoke_routes_prepared, (_unbind,), "a link that loses its last IPv4 address loses its routes"),
        _Step(
            _write_servers,
            (_unbind,),
            "a virtual server stays while its address is bound, and a new one waits for its set entries",
        ),
        _Step(
            _say_served,
            (_revoke_routes_prepared, _write_servers),
            "route_fix adds routes only to what is served; the wait for lost ones begins here",
        ),
        _Step(
            _bind,
            (_revoke_routes_prepared, _write_servers, _say_served),
            "a VIP goes live last: what is behind it is in the kernel, or was waited for long enough",
        ),
        _Step(
            _say_withdrawn,
            (_unbind, _write_servers, _bind),
            "the others delete only what nothing leads to any more; for EARLIER_RUN all Services must be live",
        ),
        _Step(_end_flows, (_write_servers, _bind), "a client's next packet begins a flow to what serves now"),
    )
    """What a pass writes, in this order."""

    def _notice_links(self, events: Sequence[LinkEvent]) -> None:
        """Notice that the link was deleted, or changed by its newest event: a new link is down for a moment."""
        if any(event.gone and event.ifindex == self._interface.index for event in events):
            self._interface.lost()
            self._vips.lost_all()
            self._may_lack_ipv4 = True
        elif events and not events[-1].gone and (events[-1].ifindex != self._interface.index or not events[-1].up):
            self.resync_soon()

    def _has_route(self, key: ObjectKey) -> bool:
        return self._gate.has_passed(self._plans[key], ROUTES_PREPARED)

    def _is_unannounced(self, plan: Revision) -> bool:
        """Whether no router sends clients to what the plan has dropped."""
        return not self._gate.is_said(UNANNOUNCED) or self._gate.has_passed(plan, UNANNOUNCED)

    def _is_needed(self, key: VirtualServerKey) -> bool:
        """Whether a virtual server that no plan wants has to stay, since clients may still come to its address."""
        return self._vips.desired.is_leaving(key.address) or not self._is_unannounced(
            self._servers.desired.dropped_by(key)
        )

    def _is_held(self, key: VirtualServerKey) -> bool:
        """Whether this virtual server, which a plan wants, must wait, for instance for its set entries.

        A new one takes packets of pods and other clients even before its address is bound, because the source route
        already delivers them here.
        """
        return not self._readiness.may_serve(self._servers.desired.owners(key)[-1], key)

    def _is_served(self, plan: Revision) -> bool:
        """Whether a plan is SERVED. Where no port has real servers, the set entries matter, too: they refuse."""
        return self._readiness.is_ready_or_overdue(plan.key) or (
            self._servers.desired.is_settled(plan.key) and self._gate.has_passed(plan, ENTRIES_PREPARED)
        )

    def _is_withdrawn(self, plan: Revision) -> bool:
        """Whether a plan is WITHDRAWN: what it dropped is gone, and its own virtual servers are right or overdue.

        A new plan that has dropped nothing is WITHDRAWN before its addresses are bound. EARLIER_RUN is not before
        `live` is set.
        """
        if not (self._vips.desired.has_departed(plan.key) and self._servers.desired.has_departed(plan.key)):
            return False
        if plan is EARLIER_RUN:
            return self.live.is_set()
        return self._servers.desired.is_settled(plan.key) or self._readiness.is_ready_or_overdue(plan.key)
