"""`kroute show`: the node's virtual servers as a table or JSON."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs import Ipvs
from kroute.operations import agent_socket, snapshot
from kroute.operations.snapshot import RealServerRow, Snapshot, VirtualServerRow

if TYPE_CHECKING:
    from rich.console import Console

QUESTION = "show"
_HEADINGS = (
    "Service",
    "Virtual server",
    "Scheduler",
    "Persistence",
    "Real server",
    "Weight",
    "Active",
    "Inactive",
    "State",
)
_NUMBERS = ("Weight", "Active", "Inactive")


def main(state_dir: Path, *, as_json: bool) -> int:
    """Print what the agent of this node serves, or without one what the kernel has. Returns the exit code."""
    try:
        shown = asyncio.run(_ask_or_read(state_dir))
    except KernelError as error:
        click.echo(f"kroute: {error}", err=True)
        return 1
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(shown)) + b"\n")
        return 0
    if shown.source == "kernel":
        click.echo("No agent answers on this node: this is what the kernel has.", err=True)
    from rich.console import Console  # noqa: PLC0415  # the agent, which imports this module, draws no tables

    print_table(shown, Console(width=None if sys.stdout.isatty() else 160))
    return 0


async def _ask_or_read(state_dir: Path) -> Snapshot:
    try:
        return msgspec.json.decode(await agent_socket.ask(state_dir, QUESTION), type=Snapshot)
    except agent_socket.AgentUnreachableError:
        async with Ipvs() as ipvs:
            return snapshot.of_kernel(await ipvs.read())


def print_table(shown: Snapshot, console: "Console") -> None:
    """Print one line a real server, and the problems below."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading in _NUMBERS else "left", no_wrap=True)
    for row in shown.virtual_servers:
        lines = [_real_server_cells(each) for each in row.real_servers] or [("-", "", "", "", row.state)]
        for number, cells in enumerate(lines):
            first = _virtual_server_cells(row) if number == 0 else [""] * 4
            table.add_row(*map(Text, [*first, *cells]))  # as Text: brackets of IPv6 addresses are no markup
    console.print(table)
    for problem in shown.problems:
        about = problem.service or "this node"
        console.print(f"{about}: {problem.reason}: {problem.message}", style="yellow", markup=False)


def _virtual_server_cells(row: VirtualServerRow) -> list[str]:
    scheduler = " ".join([row.scheduler, *row.flags])
    persistence = "-" if row.persistence_timeout is None else f"{row.persistence_timeout}s /{row.persistence_prefix}"
    return [row.service or "-", f"{row.protocol} {_host_port(row.address, row.port)}", scheduler, persistence]


def _real_server_cells(row: RealServerRow) -> tuple[str, ...]:
    return (_host_port(row.address, row.port), str(row.weight), str(row.active), str(row.inactive), row.state)


def _host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
