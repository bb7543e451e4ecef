"""Undo everything that kroute did on this node, as an agent or as a director."""

from contextlib import closing

import structlog

from kroute.controllers.node_controllers import NodeControllers
from kroute.director.direct_routing import undo
from kroute.firewall.backend import open_what_stands
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.ledger import Ledger
from kroute.runtime.state_dir import StateDirectory
from kroute.settings import Settings

log = structlog.get_logger(__name__)


async def undo_all(settings: Settings, state_dir: StateDirectory) -> CleanupReport:
    """Undo everything that the ledger names or that has one of kroute's names, whichever firewall backend made it.

    Later failures are in the report.

    Raises LedgerError and KernelError when it cannot begin.
    """
    async with open_what_stands(settings) as (settled, kernel, firewalls):
        report = CleanupReport()
        with closing(Ledger.open(settings.state_dir)) as ledger:  # it stays: the agent's cleanup needs it, too
            await undo(ledger, kernel.ipvs, kernel.addresses, report)
        if not report.failed:
            async with NodeControllers(settled, Broadcaster(), no_plans, kernel) as controllers:
                rest = await controllers.cleanup(firewalls)
            report.add(*rest.undone, failed=rest.failed)
    if not report.failed:
        state_dir.empty()
    return report


async def undo_and_log(settings: Settings, state_dir: StateDirectory) -> bool:
    """Do the same at the end of an agent; returns whether it succeeded. Raises as `undo_all` does."""
    report = await undo_all(settings, state_dir)
    for what in report.failed:
        log.error("cleanup.failed", what=what)
    log.info("cleanup.done", undone=len(report.undone), failed=len(report.failed))
    return not report.failed


def no_plans(key: ObjectKey, problem: Problem) -> None:
    """What undoing does about plans. Raises AssertionError: it has none."""
    raise AssertionError(f"undoing plans nothing, but {key} has {problem}")
