"""`kroute show`: the node's virtual servers as a table, JSON or YAML."""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kroute.cli.terminal.output import DONE, FAILURE, complain, host_port, refusing, show
from kroute.controllers.masquerade.set_fills import SetFill
from kroute.inspect import agent_socket, snapshot
from kroute.inspect.snapshot import RealServerRow, ServiceRow, Snapshot, VirtualServerRow
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import Ipvs, Traffic

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
_TRAFFIC_HEADINGS = ("Connections", "Packets in", "Packets out", "Bytes in", "Bytes out")
_SET_HEADINGS = ("Set", "Entries", "Capacity", "Limit")
_SERVICE_HEADINGS = ("Service", "Virtual servers", "Serving", "Active", "Inactive", "State", "Problems")


def main(state_dir: Path, how: str) -> int:
    """Print what this node's agent serves, or without an agent what the kernel has. Returns the exit code.

    `how` is table, wide (with traffic counters), json or yaml.
    """
    with refusing(KernelError):
        shown = asyncio.run(_read(state_dir, with_traffic=how == "wide"))
    show(shown, how, partial(_print_with_source, wide=how == "wide"))
    return DONE


def main_services(state_dir: Path, how: str) -> int:
    """Print a line for each Service. Fails without an agent, since the kernel does not know Services."""
    try:
        shown = asyncio.run(_ask(state_dir))
    except agent_socket.AgentUnreachableError as error:
        complain(f"{error}; only the agent knows of Services (`kroute show` shows what the kernel has)")
        return FAILURE
    show(snapshot.services(shown), how, lambda rows: print_services(rows, console()))
    return DONE


def console() -> Console:
    """The console for tables. If the output is no terminal, it is 200 columns wide."""
    return Console(width=None if sys.stdout.isatty() else 200)


async def ask_or_read(state_dir: Path) -> Snapshot:
    """The agent's snapshot, or the kernel's if no agent answers."""
    try:
        return await _ask(state_dir)
    except agent_socket.AgentUnreachableError:
        async with Ipvs() as ipvs:
            return snapshot.of_kernel(await ipvs.read())


async def _ask(state_dir: Path) -> Snapshot:
    return msgspec.json.decode(await agent_socket.ask(state_dir, snapshot.QUESTION), type=Snapshot)


async def _read(state_dir: Path, *, with_traffic: bool) -> Snapshot:
    shown = await ask_or_read(state_dir)
    if with_traffic:
        async with Ipvs() as ipvs:
            traffic = await ipvs.traffic()
        for row in shown.virtual_servers:
            row.traffic = traffic.get(row.key)
    return shown


def _print_with_source(shown: Snapshot, *, wide: bool) -> None:
    if shown.source == "kernel":
        click.echo("No agent answers on this node: this is what the kernel has.", err=True)
    print_table(shown, console(), wide=wide)


def print_table(shown: Snapshot, console: Console, *, wide: bool = False) -> None:
    """Print one line for each real server, below them the sets that are not empty, and the problems.

    `wide` adds each virtual server's traffic counters.
    """
    table = new_table(*_HEADINGS, *(_TRAFFIC_HEADINGS if wide else ()), numbers=(*_NUMBERS, *_TRAFFIC_HEADINGS))
    for row in shown.virtual_servers:
        lines = [_real_server_cells(each) for each in row.real_servers] or [("-", "", "", "", row.state)]
        for number, cells in enumerate(lines):
            first = _virtual_server_cells(row) if number == 0 else [""] * 4
            more = _traffic_cells(row.traffic) if wide and number == 0 else []
            table.add_row(*map(Text, [*first, *cells, *more]))  # as Text: the brackets of IPv6 addresses are not markup
    console.print(table)
    if filled := [it for it in shown.sets if it.entries]:
        console.print()
        console.print(_set_table(filled))
    if shown.firewall is not None:
        console.print(f"firewall: {shown.firewall.name} ({shown.firewall.why})", markup=False)
    for problem in shown.problems:
        about = problem.service or "this node"
        console.print(f"{about}: {problem.reason}: {problem.message}", style="yellow", markup=False)


def print_services(rows: Iterable[ServiceRow], console: Console) -> None:
    """Print one line for each Service, with its problems."""
    table = new_table(*_SERVICE_HEADINGS, numbers=_SERVICE_HEADINGS[1:5])
    for row in rows:
        numbers = map(str, (row.virtual_servers, row.serving, row.active, row.inactive))
        table.add_row(*map(Text, [row.service, *numbers, row.state, "; ".join(row.problems)]))
    console.print(table)


def new_table(*headings: str, numbers: Sequence[str]) -> Table:
    """A table without lines. Columns in `numbers` are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=True)
    return table


def _set_table(fills: Iterable[SetFill]) -> Table:
    table = new_table(*_SET_HEADINGS, numbers=_SET_HEADINGS[1:])
    for fill in fills:
        table.add_row(*map(Text, (fill.set, *map(str, (fill.entries, fill.capacity, fill.limit)))))
    return table


def _traffic_cells(traffic: Traffic | None) -> list[str]:
    return ["-"] * len(_TRAFFIC_HEADINGS) if traffic is None else [str(it) for it in traffic]


def _virtual_server_cells(row: VirtualServerRow) -> list[str]:
    scheduler = " ".join([row.scheduler, *row.flags])
    persistence = "-" if row.persistence_timeout is None else f"{row.persistence_timeout}s /{row.persistence_prefix}"
    return [row.service or "-", f"{row.protocol} {host_port(row.address, row.port)}", scheduler, persistence]


def _real_server_cells(row: RealServerRow) -> tuple[str, ...]:
    return (host_port(row.address, row.port), str(row.weight), str(row.active), str(row.inactive), row.state)
