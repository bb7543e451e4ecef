"""`kroute cleanup`: undo everything that kroute did on this node."""

import asyncio
import signal
from typing import Any

import click

from kroute.base import logs
from kroute.checks import preflight
from kroute.cli.parameters.options import Setting
from kroute.cli.parameters.run_options import with_settings
from kroute.cli.terminal.output import DONE, FAILURE, complain
from kroute.kernel.errors import KernelError
from kroute.migration.cleanup import undo_all
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.ledger import LedgerError
from kroute.runtime.state_dir import StateDirectory, StateDirectoryError
from kroute.settings import Settings

ENDING = {signal.SIGTERM, signal.SIGINT}


@click.command()
@with_settings(
    *("--node-name", "--dummy-interface", "--exclude-cidrs", "--bird-directory", "--cni-directory"),
    Setting("--wait", None, "Then say that this node is clean, and do nothing until SIGTERM: for a DaemonSet."),
    *("--state-dir", "--proc-sys", "--log-level"),
)
def cleanup(*, wait: bool, log_level: str, **values: Any) -> int:
    """Undo everything that kroute did on this node, and say what was undone."""
    # With --wait a DaemonSet does not start this again, unless it fails. A signal takes effect after the undoing.
    logs.configure("console", log_level)
    settings = Settings(**values)
    if wait:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        code = asyncio.run(_cleanup(settings))
    except (KernelError, LedgerError, StateDirectoryError) as error:
        complain(error)
        code = FAILURE
    if wait and code == DONE:
        click.echo(f"{settings.node_name} is clean")
        signal.sigwait(ENDING)
    elif wait:
        complain(f"{settings.node_name} is not clean: the reasons are named above")
    return code


async def _cleanup(settings: Settings) -> int:
    """Undo, and print what was undone.

    Returns DONE, also if there was nothing to undo, or FAILURE if something is left.
    """
    if missing := await preflight.missing_for_undoing(settings):
        for prerequisite in missing:
            complain(prerequisite)
        return FAILURE
    with StateDirectory.claim(settings.state_dir) as state_dir:
        report = await undo_all(settings, state_dir)
    print_report(report)
    return FAILURE if report.failed else DONE


def print_report(report: CleanupReport) -> None:
    """Print what was undone, and on standard error what was not."""
    for line in report.undone:
        click.echo(line)
    for line in report.failed:
        complain(f"not undone: {line}")
    if not (report.undone or report.failed):
        click.echo("nothing to undo")
