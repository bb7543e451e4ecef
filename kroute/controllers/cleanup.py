"""Undo everything that kroute did on this node, from the ledger and the names alone."""

from kroute.controllers.cleanup_report import CleanupReport
from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.ledger import Ledger
from kroute.controllers.masquerade import Masquerade
from kroute.controllers.route_fix import RouteFix
from kroute.controllers.service_proxy import ServiceProxy


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
    """
    report = CleanupReport()
    for controller in (service_proxy, route_fix, masquerade):
        with report.step(controller.name):
            await controller.cleanup(report)
    with report.step(f"link {interface.name}"):
        if await interface.delete():
            report.add(f"delete link {interface.name}")
    if not report.failed:
        with report.step("ledger"):
            if ledger.remove():
                report.add(f"remove the ledger {ledger.path}")
    return report
