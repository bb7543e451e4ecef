"""Writes the source routes: this node's own processes call VIPs with the node's address as the source.

When an address is bound, the kernel adds a route to it in table local, with that same address as the preferred source.
A process on this node that connects to a VIP would send packets from the VIP. Every other node takes such packets for
its own and drops them. So each VIP gets the route `local VIP dev DUMMY table local src NODE`. It is written before the
address is bound, and deleted after it.

For IPv4, our route comes first in the table and wins. When the last IPv4 address of a link is deleted, the kernel
deletes every IPv4 route on the link and sends no event. For IPv6, the kernel's own route has metric 0 and always wins,
so it must be deleted. When an IPv6 address leaves the node, Linux 6.6 and later remove it from the routes that have it
as their source, and send no event either. Such routes are written again when the address comes back. If another address
takes its place, new plans name that one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from errno import ESRCH

from kroute.controllers.dummy_interface import DummyInterface
from kroute.kernel.clients import EventSource, RouteClient
from kroute.kernel.digest import LastLook
from kroute.kernel.net.addresses import InterfaceAddress
from kroute.kernel.net.monitor import AddressEvent, Event, RouteEvent
from kroute.kernel.net.routes import DeleteLocalRoute, RouteChange, SetLocalRoute
from kroute.model.plan import Plan, ServicePlan
from kroute.reconcile.batches import sliced
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.comparison.source_routes import (
    ANY_SOURCE,
    SourceRoute,
    agrees,
    describe_drift,
    desired_by,
    is_nothing,
    ours_among,
)
from kroute.reconcile.controller import Shared
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.resync_schedule import DigestPace
from kroute.reconcile.stage_gate import ROUTES_PREPARED, SERVED, WITHDRAWN
from kroute.reconcile.staged_controller import StagedController


class RouteFix(StagedController[str, SourceRoute]):
    """Owns the source route of each VIP.

    `monitor` reports the dummy interface's routes, and the addresses of all other interfaces.
    """

    name = "route_fix"
    stage = ROUTES_PREPARED
    waits_for = (WITHDRAWN, SERVED)
    first_period = 2 / 3

    def __init__(self, shared: Shared, interface: DummyInterface, routes: RouteClient, monitor: EventSource) -> None:
        super().__init__(shared, DesiredState(agrees, is_nothing), monitor)
        self._interface = interface
        self._routes = routes
        self._revision = 0
        self._absent_sources: set[str] = set()
        self._last = LastLook()
        self._pace = DigestPace(shared.settings, self.status.counters)
        interface.watch(self.wake)

    @staticmethod
    def is_news(plan: Plan, before: Plan | None) -> bool:
        """Whether a plan has other VIPs than the one before. Most changes are of endpoints."""
        if not (isinstance(plan, ServicePlan) and isinstance(before, ServicePlan)):
            return True
        return plan.vips != before.vips or (not plan.vips and plan.is_empty)

    def wanted_by(self, plan: ServicePlan) -> Mapping[str, SourceRoute]:
        """One route for each VIP, with the node's own address as the source."""
        return {vip.address: desired_by(vip) for vip in plan.vips}

    def notice(self, events: Sequence[Event]) -> None:
        """Notice a route of ours that was deleted, one that now may win over ours, and a source that came back."""
        for event in events:
            if isinstance(event, AddressEvent) and ":" in event.assigned.address and event.assigned.scope == "global":
                self._notice_source(event.assigned, gone=event.gone)
        newest = {
            (event.route.address, event.route.source): event
            for event in events
            if isinstance(event, RouteEvent) and event.interface == self._interface.name
        }
        if newest:
            self._last.wrote()  # also the kernel's own routes, which come and go with the addresses
        for (address, source), event in newest.items():
            applied = self.desired.applied.get(address)
            if applied is None:
                continue
            if event.gone and source in applied.sources:
                self.desired.note_applied(address, None)
                if self.desired.desired(address) is not None:
                    self.status.repaired([f"route to {address} with source {source} was missing"])
            elif not event.gone and source is None and ":" in address:
                self.desired.note_applied(address, applied._replace(wins=False))
            elif not event.gone and source not in {None, address, *applied.sources}:
                self._notice_another(address, str(source), applied)

    def _notice_another(self, address: str, source: str, applied: SourceRoute) -> None:
        """Notice a route to a VIP from a source that the plan does not have. The kernel may prefer it to ours."""
        desired = self.desired.desired(address)
        if desired is not None and desired.sources and source not in desired.sources:
            found = applied._replace(sources=(source, *applied.sources))
            self.desired.note_applied(address, found)
            self.status.repaired([describe_drift(address, found)])

    def _notice_source(self, source: InterfaceAddress, *, gone: bool) -> None:
        if gone:
            if self._addresses_from(source.address):
                self._absent_sources.add(source.address)
        elif not source.tentative and source.address in self._absent_sources:
            self._absent_sources.discard(source.address)
            for address in self._addresses_from(source.address):
                self.desired.note_applied(address, ANY_SOURCE)

    def _addresses_from(self, source: str) -> list[str]:
        return [address for address, applied in self.desired.applied.items() if source in applied.sources]

    async def look(self) -> bool:
        """Whether another program may have changed our routes, and no event has said so."""
        if not self._pace.is_due() or self._interface.index is None:
            return False
        expected = Counter(source for applied in self.desired.applied.values() for source in applied.sources)
        digest = await self._pace.take(self._routes.digest(self._interface.name, tuple(expected)))
        return not self._last.is_same(digest, tuple(expected.values()))

    async def read(self) -> Iterable[str]:
        """Scan the routes on the dummy interface. Without the interface there are none."""
        self._revision = self._interface.revision
        resync = self.desired.resync()
        if self._interface.index is None:
            await resync.complete()
            return []
        self._last.read(await self._pace.take(self._routes.digest(self._interface.name)))
        async for batch in sliced((await self._routes.read(self._interface.name)).items()):
            for address, routes in batch:
                ours = ours_among(address, routes)
                if ours is not None and self._is_ours(address):
                    resync.found(address, ours)
            if self._interface.revision == self._revision:  # else the pass after this scan begins with another one
                await self.write_new_changes()
        return [describe_drift(drift.key, drift.applied) for drift in await resync.complete()]

    async def write(self) -> None:
        """Write the routes, if the interface exists. After it was made or repaired, they are read again first."""
        if self._interface.index is None:
            return
        if self._interface.revision != self._revision:
            await self.read()
            self.status.retries.clear()
        await super().write()

    def may_write(self, delta: Delta[str, SourceRoute]) -> bool:
        """Whether this delta need not wait. A new route waits for SERVED: even alone it delivers packets to the VIP."""
        if delta.desired is None or delta.applied is not None:
            return super().may_write(delta)
        for owner in self.desired.owners(delta.key):  # noqa: SIM110  asked of every route, and a generator costs more
            if self.gate.has_passed(self.plans[owner], SERVED):
                return True
        return False

    async def apply(self, deltas: Sequence[Delta[str, SourceRoute]]) -> Mapping[str, str]:
        """Write routes; deleting one that does not exist is a success."""
        changes: list[RouteChange] = []
        for address, applied, desired in deltas:
            if desired is not None:
                is_beset = applied is not None and len(applied.sources) > 1
                changes += [SetLocalRoute(address, source, is_beset) for source in desired.sources]
            elif applied is not None:
                changes += [DeleteLocalRoute(address, source) for source in applied.sources]
        self._last.wrote()
        failures = await self._routes.write(self._interface.name, changes)
        return {
            failure.change.address: str(failure)
            for failure in failures
            if not (isinstance(failure.change, DeleteLocalRoute) and failure.errno == ESRCH)
        }

    def event_of(self, delta: Delta[str, SourceRoute]) -> str:
        return "route.set" if delta.desired else "route.removed"

    def fields_of(self, delta: Delta[str, SourceRoute]) -> dict[str, object]:
        return {"vip": delta.key, "src": str(delta.desired or delta.applied)}

    def _is_ours(self, address: str) -> bool:
        is_known = address in self.desired.applied or bool(self.desired.owners(address))
        return self._interface.is_ours or is_known

    def revoked(self, plan: ServicePlan) -> None:
        """Assume that the plan's routes are lost: the kernel may delete routes with an address and send no event."""
        for vip in plan.vips:
            if vip.source is not None:
                self.desired.note_applied(vip.address, None)
        super().revoked(plan)

    async def cleanup(self, report: CleanupReport) -> None:
        """Delete our routes on the dummy interface."""
        if not self._interface.is_ours:
            return
        for address, routes in sorted((await self._routes.read(self._interface.name)).items()):
            ours = ours_among(address, routes)
            if ours is None:
                continue
            changes = [DeleteLocalRoute(address, source) for source in ours.sources]
            report.batch(changes, await self._routes.write(self._interface.name, changes))
