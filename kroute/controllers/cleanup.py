"""Undo everything that kroute did on this node. Only the ledger and kroute's names say what that is."""

from collections.abc import Iterable, Sequence

from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.route_fix import RouteFix
from kroute.controllers.service_proxy.controller import ServiceProxy
from kroute.firewall.protocol import Firewall
from kroute.kernel.clients import TunnelClient
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.ledger import Ledger


async def cleanup(
    service_proxy: ServiceProxy,
    route_fix: RouteFix,
    tunnels: TunnelClient,
    firewalls: Sequence[Firewall],
    interface: DummyInterface,
    ledger: Ledger,
) -> CleanupReport:
    """Undo everything, in the order in which a Service is withdrawn. The controllers must not be running.

    `firewalls` are those of every backend that has left something on the node.

    A step that fails is reported, and the others go on. The ledger is removed last, and only if nothing failed, so that
    another cleanup can finish the work. An object that no longer exists counts neither as undone nor as failed.

    Without a ledger and without any set of kroute's, kroute never ran here, and nothing is undone. A link with the name
    of the dummy interface is then another proxy's: kube-proxy's has the same name.
    """
    report = CleanupReport()
    if not ledger.exists and not firewalls:
        return report
    for controller in (service_proxy, route_fix):
        with report.step(controller.name):
            await controller.cleanup(report)
    await _undo_direct_return(tunnels, report)
    await _remove_firewalls(firewalls, report)
    await _delete(interface, report)
    _remove(ledger, report)
    return report


async def hand_over(
    tunnels: TunnelClient,
    firewalls: Iterable[Firewall],
    interface: DummyInterface,
    ledger: Ledger,
    *,
    keep_interface: bool,
) -> CleanupReport:
    """Undo what another proxy, which serves by now, does not use: rules, sets, and the link unless `keep_interface`.

    Direct return goes first, since its addresses are delivered by the rules. Virtual servers and sysctls stay; so do
    the link's addresses and routes if it stays. The ledger is removed last.
    """
    report = CleanupReport()
    await _undo_direct_return(tunnels, report)
    await _remove_firewalls(firewalls, report)
    if not keep_interface:
        await _delete(interface, report)
    _remove(ledger, report)
    return report


async def _undo_direct_return(tunnels: TunnelClient, report: CleanupReport) -> None:
    from kroute.controllers.direct_return import undo_direct_return  # noqa: PLC0415  for a cleanup alone

    await undo_direct_return(tunnels, report)


async def _remove_firewalls(firewalls: Iterable[Firewall], report: CleanupReport) -> None:
    for firewall in firewalls:
        with report.step("firewall"):
            await firewall.remove(report)


async def _delete(interface: DummyInterface, report: CleanupReport) -> None:
    with report.step(f"link {interface.name}"):
        if await interface.delete():
            report.add(f"delete link {interface.name}")


def _remove(ledger: Ledger, report: CleanupReport) -> None:
    """Remove the ledger, unless a step has failed: it may then name objects that still exist."""
    if not report.failed:
        with report.step("ledger"):
            if ledger.remove():
                report.add(f"remove the ledger {ledger.path}")
