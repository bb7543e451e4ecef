"""Undo everything that kroute did on this node, from the ledger and the names alone."""

from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.masquerade.controller import Masquerade
from kroute.controllers.route_fix import RouteFix
from kroute.controllers.service_proxy.controller import ServiceProxy
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.ledger import Ledger


async def cleanup(
    service_proxy: ServiceProxy,
    route_fix: RouteFix,
    masquerade: Masquerade,
    interface: DummyInterface,
    ledger: Ledger,
) -> CleanupReport:
    """Undo, in the order in which a Service is withdrawn; the controllers must not be running.

    A step that fails is reported, and the others go on. The ledger goes last, and only if nothing failed, so that
    another cleanup can finish the work. Where there is nothing (any more), nothing is undone.

    Without a ledger and without any set of kroute's, kroute was never here: a link of its name is then another proxy's,
    as kube-router's is called the same.
    """
    report = CleanupReport()
    if not ledger.exists and not await masquerade.has_sets():
        return report
    for controller in (service_proxy, route_fix, masquerade):
        with report.step(controller.name):
            await controller.cleanup(report)
    await _delete(interface, report)
    _remove(ledger, report)
    return report


async def hand_over(
    masquerade: Masquerade, interface: DummyInterface, ledger: Ledger, *, keep_interface: bool
) -> CleanupReport:
    """Undo only what another proxy, which serves by now, has its own of: rules, sets, and the link unless it is shared.

    Virtual servers and sysctls stay, and with the link its addresses and routes. The ledger goes last.
    """
    report = CleanupReport()
    with report.step(masquerade.name):
        await masquerade.cleanup(report)
    if not keep_interface:
        await _delete(interface, report)
    _remove(ledger, report)
    return report


async def _delete(interface: DummyInterface, report: CleanupReport) -> None:
    with report.step(f"link {interface.name}"):
        if await interface.delete():
            report.add(f"delete link {interface.name}")


def _remove(ledger: Ledger, report: CleanupReport) -> None:
    """Remove the ledger, unless something that it names is left."""
    if not report.failed:
        with report.step("ledger"):
            if ledger.remove():
                report.add(f"remove the ledger {ledger.path}")
