"""`kroute bundle`: everything that support needs, in one file."""

import asyncio
import os
import re
import sys
import time
from pathlib import Path

import click

from kroute import logs
from kroute.cli.bundle.agent_parts import agent_parts
from kroute.cli.bundle.archive import Index, collect, pack
from kroute.cli.bundle.kernel_parts import kernel_parts
from kroute.cli.bundle.redaction import Redaction, secrets_of
from kroute.cli.parameters.run_options import settings_in_force
from kroute.cli.parameters.settings_command import FlagsCommand
from kroute.cli.terminal.output import DONE, FAILURE, refusing
from kroute.printable import printable
from kroute.settings import Settings

STDOUT = "-"


@click.command(cls=FlagsCommand)
@click.option(
    "-f",
    "--file",
    "path",
    default=None,
    metavar="PATH",
    help="The file to write; - is standard output.  [default: kroute-bundle-NODE-TIME.tar.gz]",
)
@settings_in_force
def bundle(settings: Settings, *, path: str | None) -> int:
    """Collect everything that support needs in one file, without secrets, and change nothing.

    What cannot be collected is named in the bundle's index, with the reason. Exits with 0 if something was collected.
    """
    logs.configure("console", "error")  # only the index is printed
    name = bundle_name(settings.node_name)
    path = path or f"{name}.tar.gz"
    if path == STDOUT and sys.stdout.isatty():
        raise click.UsageError("standard output is a terminal: give --file PATH, or send the output to a file")
    index, packed = asyncio.run(_make(settings, name))
    with refusing(OSError):
        write(path, packed)
    print_index(index, path, len(packed))
    return DONE if any(not part.reason for part in index.parts) else FAILURE


async def _make(settings: Settings, name: str) -> tuple[Index, bytes]:
    """The index and the archive."""
    redaction = Redaction(secrets_of(settings))
    index, contents = await collect(settings.node_name, [*agent_parts(settings), *kernel_parts(settings)], redaction)
    return index, pack(name, index, contents)


def write(path: str, packed: bytes) -> None:
    """Write the archive for its owner only. Raises OSError, also if the file exists."""
    if path == STDOUT:
        sys.stdout.buffer.write(packed)
        sys.stdout.buffer.flush()
        return
    with os.fdopen(os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(packed)


def print_index(index: Index, path: str, size: int) -> None:
    """Say on standard error what the bundle has, and what it lacks."""
    failed = [part for part in index.parts if part.reason]
    for part in failed:
        click.echo(f"not collected: {part.name}: {printable(part.reason)}", err=True)
    where = "standard output" if path == STDOUT else path
    count = len(index.parts) - len(failed)
    click.echo(
        f"{where}: {count} of {len(index.parts)} parts, {size / 1024:.0f} KiB; {index.removed} values that look like "
        "secrets were removed. It names Services, pods and addresses: look at it before you pass it on.",
        err=True,
    )


def bundle_name(node: str) -> str:
    """The name of a bundle that is made now, without the suffix of a file."""
    name = re.sub(r"[^A-Za-z0-9.-]", "_", node)[:63]
    return f"kroute-bundle-{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
