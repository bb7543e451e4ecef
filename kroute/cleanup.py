"""`kroute cleanup`: undo everything that kroute did on this node."""

import asyncio
import signal

import click

from kroute.broadcaster import Broadcaster
from kroute.checks import preflight
from kroute.controllers.node_controllers import NodeControllers
from kroute.director.cleanup import undo
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.net.addresses import Addresses
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.ledger import Ledger, LedgerError
from kroute.runtime.state_dir import StateDirectory, StateDirectoryError
from kroute.settings import Settings

ENDING = {signal.SIGTERM, signal.SIGINT}


def main_and_wait(settings: Settings) -> int:
    """Undo like `main`, then say that the node is clean and do nothing until SIGTERM or SIGINT.

    Whoever is to keep this running, such as a DaemonSet, need not start it anew; after a failure it ends, to be started
    anew. A signal that comes before the node is clean is heeded then.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    if code := main(settings):
        click.echo(f"kroute: {settings.node_name} is not clean: what stands in the way is named above", err=True)
        return code
    click.echo(f"{settings.node_name} is clean")
    signal.sigwait(ENDING)
    return 0


def main(settings: Settings) -> int:
    """Undo, and print what was undone. Returns 0, also when there was nothing, and 1 when something is left."""
    try:
        return asyncio.run(_cleanup(settings))
    except (KernelError, LedgerError, StateDirectoryError) as error:
        click.echo(f"kroute: {error}", err=True)
        return 1


async def _cleanup(settings: Settings) -> int:
    if lacks := await preflight.lacks():
        for lack in lacks:
            click.echo(f"kroute: {lack}", err=True)
        return 1
    with StateDirectory.claim(settings.state_dir) as state_dir:
        report = await undo_all(settings, state_dir)
    _print(report)
    return 1 if report.failed else 0


async def undo_all(settings: Settings, state_dir: StateDirectory) -> CleanupReport:
    """Undo what this node's ledger and kroute's names tell of. Raises LedgerError and KernelError before it begins."""
    report = await _undo_director(settings)
    if not report.failed:
        async with NodeControllers(settings, Broadcaster(), _no_plans) as controllers:
            rest = await controllers.cleanup()
        report.undone += rest.undone
        report.failed += rest.failed
    if not report.failed:
        state_dir.empty()
    return report


async def _undo_director(settings: Settings) -> CleanupReport:
    """Take away what only a director makes; the ledger that names it is needed for the rest."""
    report = CleanupReport()
    ledger = Ledger.open(settings.state_dir)
    async with Ipvs() as ipvs, Addresses() as addresses:
        await undo(ledger, ipvs, addresses, report)
    ledger.close()
    return report


def _no_plans(key: ObjectKey, problem: Problem) -> None:
    raise AssertionError(f"cleanup plans nothing, but {key} has {problem}")


def _print(report: CleanupReport) -> None:
    for line in report.undone:
        click.echo(line)
    for line in report.failed:
        click.echo(f"kroute: not undone: {line}", err=True)
    if not (report.undone or report.failed):
        click.echo("nothing to undo")
