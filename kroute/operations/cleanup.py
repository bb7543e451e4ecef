"""`kroute cleanup`: undo everything that kroute did on this node."""

import asyncio

import click

from kroute.broadcaster import Broadcaster
from kroute.controllers.cleanup_report import CleanupReport
from kroute.controllers.ledger import Ledger, LedgerError
from kroute.controllers.node_controllers import NodeControllers
from kroute.director.cleanup import undo
from kroute.kernel.addresses import Addresses
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs import Ipvs
from kroute.operations import preflight
from kroute.operations.state_dir import StateDirectory, StateDirectoryError
from kroute.planning.objects import ObjectKey
from kroute.planning.plan import Problem
from kroute.settings import Settings


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
        report = await _undo_director(settings)
        if not report.failed:
            async with NodeControllers(settings, Broadcaster(), _no_plans) as controllers:
                rest = await controllers.cleanup()
            report.undone += rest.undone
            report.failed += rest.failed
        if not report.failed:
            state_dir.empty()
    _print(report)
    return 1 if report.failed else 0


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
