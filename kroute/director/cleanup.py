"""Undo what only a director makes. Its virtual servers and sysctls are cleaned up like those of a node."""

from errno import EADDRNOTAVAIL, ENODEV

from kroute.kernel.clients import AddressClient, SyncDaemonClient
from kroute.kernel.net.addresses import UnbindAddress
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.ledger import AddressDeleted, Ledger, SyncDaemonStopped


async def undo(ledger: Ledger, ipvs: SyncDaemonClient, addresses: AddressClient, report: CleanupReport) -> None:
    """Remove the VIPs first, so that no new connection arrives, then the synchronization daemons."""
    with report.step("addresses of a director"):
        for interface in sorted({interface for interface, _ in ledger.addresses}):
            ours = sorted(address for name, address in ledger.addresses if name == interface)
            unbindings = [UnbindAddress(address) for address in ours]
            failures = await addresses.write(interface, unbindings)
            report.batch(unbindings, failures, {EADDRNOTAVAIL, ENODEV})
            refused = {failure.change.address for failure in failures if failure.errno not in {EADDRNOTAVAIL, ENODEV}}
            ledger.record(AddressDeleted(interface, address) for address in ours if address not in refused)
    with report.step("synchronization daemons"):
        for daemon in sorted(await ipvs.sync_daemons()) if ledger.sync_daemons else ():
            if daemon.role in ledger.sync_daemons:
                await ipvs.stop_sync_daemon(daemon)
                ledger.record([SyncDaemonStopped(daemon.role)])
                report.add(f"stop the {daemon}")
