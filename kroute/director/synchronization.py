"""Connection synchronization: the active director sends its connections to the standby, so that they outlive it."""

from errno import EEXIST

import structlog

from kroute.controllers.ipvs.sysctls import Row
from kroute.kernel.clients import SyncDaemonClient
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import SyncDaemon, SyncRole
from kroute.reconcile.ledger import Ledger, SyncDaemonStarted, SyncDaemonStopped

log = structlog.get_logger(__name__)


SYSCTLS = (
    Row(
        "net.ipv4.vs.sync_threshold",
        "3\t0",
        "a connection is synchronized with the packet that establishes it, not with its third (the 0 says so)",
    ),
    Row("net.ipv4.vs.sync_refresh_period", "10", "and again every 10 s for as long as packets come"),
)
"""The sysctls that decide which connections the kernel synchronizes, and when (`ip_vs_sync_conn_needed` of
net/netfilter/ipvs/ip_vs_sync.c)."""


class Synchronization:
    """Runs the daemon of this director's role. Without an `interface`, no daemon runs."""

    def __init__(self, ipvs: SyncDaemonClient, ledger: Ledger, interface: str, sync_id: int) -> None:
        self._ipvs = ipvs
        self._ledger = ledger
        self._interface = interface
        self._sync_id = sync_id
        self._complaint = ""

    async def ensure(self, *, leading: bool) -> None:
        """Run the master on the active director and the backup on the standby. Foreign daemons are left alone."""
        desired = SyncDaemon(SyncRole.MASTER if leading else SyncRole.BACKUP, self._interface, self._sync_id)
        running = await self._ipvs.sync_daemons()
        for daemon in running:
            if daemon.role in self._ledger.sync_daemons and (daemon != desired or not self._interface):
                await self._ipvs.stop_sync_daemon(daemon)
                self._ledger.record([SyncDaemonStopped(daemon.role)])
                log.info("sync_daemon.stopped", role=daemon.role.name.lower(), interface=daemon.interface)
        if not self._interface or desired in running:
            return
        self._ledger.record([SyncDaemonStarted(desired.role, desired.interface, desired.sync_id)])
        try:
            await self._ipvs.start_sync_daemon(desired)
        except KernelError as error:
            self._ledger.record([SyncDaemonStopped(desired.role)])
            if error.errno != EEXIST:
                raise
            said = f"an {desired} is not started: one that kroute did not start has its place (ipvsadm -L --daemon)"
            if said != self._complaint:
                log.warning("sync_daemon.foreign", problem=said)
            self._complaint = said
        else:
            self._complaint = ""
            log.info("sync_daemon.started", role=desired.role.name.lower(), interface=desired.interface)
