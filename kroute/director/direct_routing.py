"""Direct connections to the nodes: virtual servers on every director, the VIPs on the active one.

A standby has the same virtual servers as the active director and receives its connections. So to become active, it only
has to bind and announce the addresses. An address is bound after the virtual servers behind it are written, and is
removed before them.
"""

import asyncio
from collections.abc import Iterable, Sequence

from kroute.controllers.ipvs.sysctls import SYSCTLS as NODE_SYSCTLS
from kroute.controllers.ipvs.sysctls import Circumstances, NodeSysctls
from kroute.controllers.ipvs.timeouts import Timeouts
from kroute.controllers.ipvs.virtual_servers import VirtualServers
from kroute.director import synchronization
from kroute.director.addresses import UNBOUND, DirectorAddresses
from kroute.director.settings import DirectorSettings
from kroute.director.synchronization import Synchronization
from kroute.kernel.clients import AddressClient, EventSource, SyncDaemonClient
from kroute.kernel.net.addresses import UnbindAddress
from kroute.kernel.net.announcements import Announcer
from kroute.kernel.net.monitor import AddressEvent, Event, LinkEvent
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.plan import ServicePlan, VirtualServerKey
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.comparison.virtual_servers import planned_key
from kroute.reconcile.controller import Controller, Shared
from kroute.reconcile.ledger import AddressDeleted, Exclusion, Ledger, SyncDaemonStopped
from kroute.reconcile.resync_schedule import earliest

_SHARED_SYSCTLS = {
    "net.ipv4.vs.expire_nodest_conn",
    "net.ipv4.vs.expire_quiescent_template",
    "net.ipv4.vs.conn_lfactor",
}


class DirectRouting(Controller):
    """Owns a director's virtual servers, VIPs, synchronization daemons and sysctls.

    `live` is set once every Service of the initial sync has its virtual servers. Until `lead` is called, the addresses
    of an earlier run stay bound.
    """

    name = "director"

    def __init__(
        self,
        shared: Shared,
        settings: DirectorSettings,
        kernel: NodeKernel,
        ledger: Ledger,
        monitor: EventSource,
        announcer: Announcer,
    ) -> None:
        super().__init__(shared, monitor)
        self._exclusion = Exclusion(settings.common.exclude_cidrs)
        self._ledger = ledger
        self._kernel = kernel
        self._interface = settings.vip_interface
        rows = [row for row in NODE_SYSCTLS if row.name in _SHARED_SYSCTLS]
        rows += synchronization.SYSCTLS if settings.sync_interface else ()
        self._sysctls = NodeSysctls(kernel.sysctls, ledger, rows)
        self._timeouts = Timeouts(kernel.ipvs, ledger, settings.common)
        self._synchronization = Synchronization(kernel.ipvs, ledger, settings.sync_interface, settings.sync_id)
        self.vips = DirectorAddresses(
            self.status,
            kernel.addresses,
            announcer,
            ledger,
            interface=settings.vip_interface,
            lifetime=settings.lease.duration,
        )
        self._servers = VirtualServers(shared, self.status, kernel.ipvs, kernel.sysctls, ledger, suspect=lambda _: None)
        self._leading: bool | None = None
        self._has_decided = False
        self._has_withdrawn = asyncio.Event()
        self.live = asyncio.Event()

    def lead(self, leading: bool) -> None:
        """Take the VIPs, or give them up, in a pass that begins at once."""
        self._leading = leading
        self._has_withdrawn.clear()
        self.wake.set()

    def confirm(self, asked_at: float, is_answered: bool) -> None:
        """Note that an attempt at the Lease that began at `asked_at` has ended; `lead` was called with its result."""
        if self.vips.confirm(asked_at, is_answered=is_answered):
            self.wake.set()

    async def withdraw(self) -> None:
        """Give up the VIPs, and return when they are removed."""
        self.lead(False)
        await self._has_withdrawn.wait()

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Take the plans into the desired state."""
        for plan in plans:
            servers = {server.key: server for server in plan.virtual_servers}
            self._servers.weights.want(plan, servers)
            self.vips.desired.want(plan, {vip.address: vip for vip in plan.vips})

    def notice(self, events: Sequence[Event]) -> None:
        """Have a deleted address bound again at once. After a link was deleted, start a resync."""
        for event in events:
            if event.interface != self._interface:
                continue
            if isinstance(event, AddressEvent) and event.gone and self.vips.lost(event.assigned.address):
                self.status.repaired([f"address {event.assigned.address} was missing"])
            elif isinstance(event, LinkEvent) and event.gone:
                self.resync_soon()

    async def start(self) -> None:
        """Adopt the kernel's state, and wait for the first plans.

        Meanwhile give up the VIPs if another director is active.
        """
        self.subscription.notify(self.wake)
        await self.guarded(self.resync)
        while not (self.is_stopping or self.subscription.has_arrived):
            self.wake.clear()
            if self._leading is False:
                await self.guarded(self._give_up)
            await self.wake.wait()

    async def read(self) -> Iterable[str]:
        """Read IPVS, the addresses and the sysctls. Repair at once what needs no order."""
        if not self._has_decided:
            if self._ledger.exists:
                there = await self._kernel.ipvs.read()
                ours = [planned_key(key) for key in there if self._names(key)]
                self._ledger.adopt(ours, self._ledger.links)
            self._has_decided = True
        return await self._ensure_surroundings() + await self._servers.learn(self.write_new_changes)

    async def look(self) -> bool:
        """Read the few addresses, sysctls and timeouts, and look at IPVS."""
        self.status.repaired(wrong := await self._ensure_surroundings())
        return bool(wrong) or await self._servers.look()

    async def write(self) -> None:
        """Write the difference in the order of dependency."""
        await self._give_up()
        await self._servers.write(lambda key: self.vips.desired.is_leaving(key.address), _is_held)
        if self._leading is not None:
            await self._synchronization.ensure(leading=self._leading)
        if self._leading:
            await self.vips.bind(self._servers.desired.is_settled)
            await self.vips.announce()
        self.live.set()

    def next_due(self) -> float | None:
        """When to look for drained real servers, or to announce an address again."""
        return earliest(self._servers.next_due(), self.vips.next_due())

    async def _ensure_surroundings(self) -> list[str]:
        """Read the addresses, and repair ledger, sysctls and timeouts; returns what was wrong, one sentence each."""
        wrong = [f"the ledger {self._ledger.path} was missing"] if self._ledger.restore() else []
        wrong += await self.vips.learn()
        wrong += self._sysctls.ensure(Circumstances(self._kernel.version, ipv6=False))
        return wrong + await self._timeouts.ensure()

    def _names(self, key: tuple[int, str, int]) -> bool:
        """Whether this virtual server is kroute's: by the ledger or, if that lacks lines, by a VIP of kroute's."""
        on_ours = not self._ledger.is_whole and any(key[1] == address for _, address in self._ledger.addresses)
        return key in self._ledger.virtual_servers or (on_ours and not self._exclusion.covers(key[1]))

    async def _give_up(self) -> None:
        """Unbind the VIPs that no plan names, or all of them if another director is active."""
        if self._leading is None:
            return
        await self.vips.unbind(everything=not self._leading)
        if not self._leading and not self.vips.desired.applied:
            self._has_withdrawn.set()


def _is_held(_key: VirtualServerKey) -> bool:
    """Whether a virtual server must wait: never, since a director has no rules that must know a port first."""
    return False


async def undo(ledger: Ledger, ipvs: SyncDaemonClient, addresses: AddressClient, report: CleanupReport) -> None:
    """Undo what only a director makes; its virtual servers and sysctls are cleaned up like those of a node.

    The VIPs are removed first, so that no new connection arrives, then the synchronization daemons.
    """
    with report.step("addresses of a director"):
        for interface in sorted({interface for interface, _ in ledger.addresses}):
            ours = sorted(address for name, address in ledger.addresses if name == interface)
            unbindings = [UnbindAddress(address) for address in ours]
            failures = await addresses.write(interface, unbindings)
            report.batch(unbindings, failures, UNBOUND)
            refused = {failure.change.address for failure in failures if failure.errno not in UNBOUND}
            ledger.record(AddressDeleted(interface, address) for address in ours if address not in refused)
    with report.step("synchronization daemons"):
        for daemon in sorted(await ipvs.sync_daemons()) if ledger.sync_daemons else ():
            if daemon.role in ledger.sync_daemons:
                await ipvs.stop_sync_daemon(daemon)
                ledger.record([SyncDaemonStopped(daemon.role)])
                report.add(f"stop the {daemon}")
