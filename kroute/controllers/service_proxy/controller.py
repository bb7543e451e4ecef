"""Makes this node serve: the dummy interface with the VIPs, and the virtual servers behind them.

A pass writes in the order of dependency. First it unbinds addresses that nobody wants, then it deletes their virtual
servers. It makes new virtual servers with their real servers when masquerade has said ENTRIES_PREPARED for the plan. It
binds an address when the plan's virtual servers exist and route_fix has said ROUTES_PREPARED. Each wait is limited.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence

from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.ipvs.sysctls import Circumstances, NodeSysctls, conntrack_rows, node_rows
from kroute.controllers.ipvs.table_look import TableLook
from kroute.controllers.ipvs.timeouts import Timeouts
from kroute.controllers.ipvs.virtual_servers import VirtualServers
from kroute.controllers.service_proxy.bind_gate import BindGate
from kroute.controllers.service_proxy.ownership import adopt_what_is_ours, delete_what_is_ours
from kroute.controllers.service_proxy.restrictions import Restrictions
from kroute.controllers.service_proxy.udp_flows import UdpFlows, behind
from kroute.controllers.service_proxy.vip_addresses import VipAddresses
from kroute.kernel.clients import AddressClient, ConntrackClient, EventSource, IpvsClient, SysctlClient
from kroute.kernel.net.monitor import AddressEvent, Event, LinkEvent
from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, ServicePlan, VirtualServerKey
from kroute.reconcile.batches import sliced
from kroute.reconcile.broadcaster import Subscription
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.comparison.vips import describe_drift
from kroute.reconcile.controller import Controller
from kroute.reconcile.ledger import Exclusion, Ledger
from kroute.reconcile.pass_status import Report
from kroute.reconcile.prepared_pods import PreparedPods
from kroute.reconcile.resync_schedule import DigestPace
from kroute.reconcile.stage_gate import (
    EARLIER_RUN,
    ENFORCED,
    ENTRIES_PREPARED,
    ROUTES_PREPARED,
    SERVED,
    WITHDRAWN,
    Revision,
    StageGate,
)
from kroute.settings import Settings


class ServiceProxy(Controller):
    """Owns the dummy interface, the VIPs, IPVS and the sysctls. `monitor` reports events of the dummy interface.

    `live` is set once every Service of the initial sync is live, or was waited for long enough.
    """

    name = "service_proxy"

    def __init__(
        self,
        settings: Settings,
        subscription: Subscription,
        gate: StageGate,
        *,
        interface: DummyInterface,
        ledger: Ledger,
        ipvs: IpvsClient,
        addresses: AddressClient,
        conntrack: ConntrackClient,
        sysctls: SysctlClient,
        kernel_version: tuple[int, int],
        monitor: EventSource,
        report: Report,
        pods: PreparedPods,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(settings, subscription, monitor, clock)
        self._gate = gate
        self._interface = interface
        self._ledger = ledger
        self._ipvs = ipvs
        self._addresses = addresses
        self._kernel_version = kernel_version
        conntrack_limits = conntrack_rows(settings.conntrack, os.cpu_count() or 1)
        self._sysctls = NodeSysctls(sysctls, ledger, (*node_rows(settings), *conntrack_limits))
        self._timeouts = Timeouts(ipvs, ledger, settings.ipvs_timeouts)
        pace = DigestPace(settings.resync_period, settings.resync_budget, self.status.counters)
        self._vips = VipAddresses(self.status, addresses, interface, pace)
        self._flows = UdpFlows(self.status, conntrack)
        self._servers = VirtualServers(
            self.status,
            TableLook(ipvs, settings),
            ledger,
            sysctls=sysctls,
            default_scheduler=settings.usual_scheduler,
            drain_timeout=settings.drain_timeout,
            report=report,
            suspect=self._flows.suspect,
        )
        self.weights = self._servers.weights
        self._bind_gate = BindGate(gate)
        self._restrictions = Restrictions(gate, report, self._bind_gate.due, pods)
        self._plans: dict[ObjectKey, ServicePlan] = {}
        self._lost: set[str] | None = None
        self._are_routes_in_doubt = False
        self._first_write = True
        self._serves_ipv6 = self._sysctls_due = self._is_owner_settled = False
        self.live = asyncio.Event()
        pods.follow(self.wake)
        says = {SERVED: self._is_served, WITHDRAWN: self._is_withdrawn}
        gate.join(self.wake, says=says, waits_for=(ENTRIES_PREPARED, ROUTES_PREPARED), needs=self._bind_gate.awaits)
        gate.join(self.wake, says={}, waits_for=ENFORCED.values())

    async def run(self) -> None:
        """As every controller, and connect to real servers that are to be ejected."""
        async with asyncio.TaskGroup() as group:
            confirming = group.create_task(self.weights.confirm(), name="ejections")
            await super().run()
            confirming.cancel()

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Take the plans into the desired state."""
        for plan in plans:
            servers = self._restrictions.accept(plan)
            self.weights.want(plan, servers)
            self._vips.desired.want(plan, {vip.address: vip for vip in plan.vips})
            self._gate.submit(plan, SERVED, WITHDRAWN)
            if not self._serves_ipv6 and any(":" in key.address for key in servers):
                self._serves_ipv6 = self._sysctls_due = True
            self._plans[plan.key] = plan
            if plan.is_empty:
                del self._plans[plan.key]
            if servers or plan.vips:
                self._bind_gate.await_(plan)
            else:
                self._bind_gate.forget(plan.key)
            if self._are_routes_in_doubt:
                self._lose(vip.address for vip in plan.vips if vip.address not in self._vips.desired.applied)

    def accept_node(self, plan: NodePlan) -> None:
        """Let the node's plan pass the stages that others wait for; it has no virtual servers and no VIPs."""
        self._gate.submit(plan, SERVED, WITHDRAWN)

    def notice(self, events: Sequence[Event]) -> None:
        """Notice that the link or an address was deleted; the next write restores it."""
        on_link = [event for event in events if event.interface == self._interface.name]
        self._notice_links([event for event in on_link if isinstance(event, LinkEvent)])
        newest = {event.address: event.gone for event in on_link if isinstance(event, AddressEvent)}
        lost = [address for address, gone in newest.items() if gone and address in self._vips.desired.applied]
        for address in lost:
            self._vips.desired.note_applied(address, None)
        if lost:
            lost = [address for address in lost if self._vips.desired.desired(address) is not None]
            self.status.repaired(describe_drift(address, None) for address in lost)
            self._lose(lost)

    async def prepare(self) -> None:
        """Make the interface, and set the sysctls and timeouts."""
        await self._ensure_surroundings()

    async def read(self) -> Iterable[str]:
        """Scan the link, sysctls, timeouts, addresses and IPVS. The first three are repaired at once."""
        wrong = await self._ensure_surroundings()
        drift = await self._vips.learn()
        wrong += [describe_drift(one.key, one.applied) for one in drift]
        self._lose(one.key for one in drift if one.applied is None)
        return wrong + await self._servers.learn(self.write_new_changes)

    async def look(self) -> bool:
        """Repair what `read` repairs at once, then look at the addresses and IPVS."""
        self.status.repaired(wrong := await self._ensure_surroundings())
        return bool(wrong) or await self._vips.look() or await self._servers.look()

    async def write(self) -> None:
        """Write the deltas in the order of dependency."""
        if self._interface.index is None:
            self.status.repaired(await self._interface.ensure())
        if self._first_write:
            self._first_write = False
            self._leave_the_rest()
            self._flows.suspect(self._servers.ours())
        if self._sysctls_due:
            self._ensure_sysctls()
        if self._lost is not None:
            await self._prepare_again(self._lost)
        gone = await self._vips.unbind()
        if any(":" not in address for address in gone):
            await self._prepare_again(())
        self._bind_gate.look_at_clock(now := self.clock())
        self._restrictions.look(now, self.weights.want)
        written = self.status.counters.writes
        await self._servers.write(self._vips.desired.is_leaving, self._is_held)
        if self.status.counters.writes > written:
            self._gate.proceed(now := self.clock())
        await self._bind_gate.settle(self._servers.desired.is_settled, now)
        await self._gate.advance(SERVED)
        bound = await self._vips.bind(self._bind_gate.unready, self._restrictions.holds_address, self._has_route)
        self._flows.suspect(behind(bound, self._vips.desired.owners, self._plans, self._servers.desired.applied))
        if self._bind_gate.is_over:
            self.live.set()
        await self._gate.advance(WITHDRAWN)
        if not self._gate.has_candidates(WITHDRAWN):
            self._are_routes_in_doubt = False
        await self._flows.end_stale(self._servers.serving)

    def next_due(self) -> float | None:
        """When the next poll of drains, end of a wait, or retry for UDP flows is due."""
        parts = (self._servers, self._bind_gate, self._restrictions, self._flows)
        return min((time for part in parts if (time := part.next_due()) is not None), default=None)

    async def cleanup(self, report: CleanupReport) -> None:
        """Delete our addresses and virtual servers, then restore timeouts and sysctls."""
        with report.step("addresses and virtual servers"):
            await self._settle_owner()
            gone = await delete_what_is_ours(self._ledger, self._interface, self._addresses, self._ipvs, report)
            await self._flows.forget_all(gone, report)
        with report.step("IPVS timeouts"):
            await self._timeouts.restore(report)
        self._sysctls.restore(report)

    def _notice_links(self, events: Sequence[LinkEvent]) -> None:
        """Of the link's state only the newest event counts: a link is down for a moment while it is being made."""
        if any(event.gone and event.ifindex == self._interface.index for event in events):
            self._interface.lost()
            self._vips.lost_all()
            self._lose(())
        elif events and not events[-1].gone and (events[-1].ifindex != self._interface.index or not events[-1].up):
            self.resync_soon()

    async def _ensure_surroundings(self) -> list[str]:
        """Repair the link, the ledger, sysctls and timeouts; returns what was wrong, one sentence each."""
        await self._settle_owner()
        wrong = await self._interface.ensure()
        if not wrong and self._ledger.restore():
            wrong = [f"the ledger {self._ledger.path} was missing"]
        return wrong + self._ensure_sysctls() + await self._timeouts.ensure()

    async def _settle_owner(self) -> None:
        """Decide once which objects of an earlier run are ours, and record that in the ledger."""
        if not self._is_owner_settled:
            exclusion = Exclusion(self._settings.exclude_cidrs)
            await adopt_what_is_ours(self._ledger, self._interface, self._addresses, self._ipvs, exclusion)
            self._is_owner_settled = True

    def _ensure_sysctls(self) -> list[str]:
        self._sysctls_due = False
        circumstances = Circumstances(self._kernel_version, self._serves_ipv6, self._settings.strict_arp)
        return self._sysctls.ensure(circumstances)

    def _lose(self, addresses: Iterable[str]) -> None:
        """Note lost addresses. Their routes may be lost too, so the next write has them prepared again first."""
        self._lost = (self._lost or set()) | set(addresses)

    async def _prepare_again(self, lost: Iterable[str]) -> None:
        """Have route_fix prepare the routes of these addresses again, before they are bound again.

        A link that loses its last IPv4 address loses all its IPv4 routes. These include routes to addresses that are
        yet to be bound, and to addresses that are wanted again before route_fix has deleted their routes.
        """
        self._lost, addresses = None, set(lost)
        if all(":" in address for address in self._vips.desired.applied):
            addresses.update(await self._vips.missing())
            self._are_routes_in_doubt = True
        owners: set[ObjectKey] = set()
        async for batch in sliced(addresses):
            owners.update(owner for address in batch for owner in self._vips.desired.owners(address))
        async for keys in sliced(owners):
            for key in keys:
                self._bind_gate.await_(self._plans[key])
        self._gate.retract(ROUTES_PREPARED, owners)

    def _has_route(self, key: ObjectKey) -> bool:
        return self._gate.has_passed(self._plans[key], ROUTES_PREPARED)

    def _leave_the_rest(self) -> None:
        """Let every object that an earlier run left and no plan names leave with EARLIER_RUN."""
        self._vips.desired.drop_unwanted(EARLIER_RUN)
        self._servers.desired.drop_unwanted(EARLIER_RUN)
        self._gate.submit(EARLIER_RUN, WITHDRAWN)

    def _is_held(self, key: VirtualServerKey) -> bool:
        """Whether this virtual server must wait for its set entries.

        A new one takes packets of pods and other clients even before its address is bound, because the source route
        already delivers them here.
        """
        owners = self._servers.desired.owners(key)
        return bool(owners) and (
            self._restrictions.holds(owners[-1], key) or not self._bind_gate.may_let_in(owners[-1])
        )

    def _is_served(self, plan: Revision) -> bool:
        """Whether a plan is SERVED. Even one without virtual servers needs its set entries: they refuse packets."""
        return self._bind_gate.is_ready(plan.key) or (
            self._servers.desired.is_settled(plan.key) and self._gate.has_passed(plan, ENTRIES_PREPARED)
        )

    def _is_withdrawn(self, plan: Revision) -> bool:
        """Whether a plan is WITHDRAWN: what it dropped is deleted, and old real servers are removed or overdue.

        EARLIER_RUN is withdrawn only once all plans of the initial sync are live.
        """
        if not (self._vips.desired.has_departed(plan.key) and self._servers.desired.has_departed(plan.key)):
            return False
        if plan is EARLIER_RUN:
            return self.live.is_set()
        return self._servers.desired.is_settled(plan.key) or self._bind_gate.is_ready(plan.key)
