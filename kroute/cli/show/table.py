"""`kroute show`: the node's virtual servers, or its Services."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kroute.base.wording import host_port
from kroute.cli.terminal.formats import show
from kroute.cli.terminal.output import DONE, NO_AGENT, refusing
from kroute.cli.terminal.screen import Screen, TextTable
from kroute.inspect import agent_socket, figures, snapshot
from kroute.inspect.figures import ServiceList
from kroute.inspect.snapshot import ProblemRow, Snapshot, VirtualServerRow
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import Ipvs

if TYPE_CHECKING:
    from kroute.planning.endpoint_reasons import EndpointView

_HEADINGS = ("Service", "Virtual server", "Scheduler", "Persistence")
_REAL_SERVER_HEADINGS = ("Real server", "Weight", "Active", "Inactive", "State")
_NUMBERS = ("Weight", "Active", "Inactive")
_TRAFFIC_HEADINGS = ("Connections", "Packets in", "Packets out", "Bytes in", "Bytes out")
_SET_HEADINGS = ("Set", "Entries", "Capacity", "Limit")
_SERVICE_HEADINGS = ("Service", "Virtual servers", "Serving", "Active", "Inactive", "State", "Problems")


def main(state_dir: Path, how: str, only: str = "") -> int:
    """Print what this node's agent serves, or without an agent what the kernel has. Returns the exit code.

    `how` is one of FORMATS; wide has traffic counters and forwarding methods. `only` is as in `narrowed`.
    """
    with refusing(KernelError):
        shown = asyncio.run(_read(state_dir, with_traffic=how == "wide"))
    show(narrowed(shown, only), how, print_snapshot)
    return DONE


def main_services(state_dir: Path, how: str, only: str = "") -> int:
    """Print a line for each Service. Fails without an agent, since the kernel does not know Services."""
    hint = "only the agent knows Services: `kroute show` shows what the kernel has"
    with refusing(agent_socket.AgentUnreachableError, code=NO_AGENT, hint=hint):
        shown = asyncio.run(_ask(state_dir))
    show(figures.list_services(narrowed(shown, only)), how, print_services)
    return DONE


def narrowed(shown: Snapshot, only: str) -> Snapshot:
    """The snapshot with what has the text `only` in the name of its Service or in its address, in any case."""
    text = only.lower()
    if not text:
        return shown
    servers = [row for row in shown.virtual_servers if text in row.service or text in host_port(row.address, row.port)]
    known = {server.service for server in servers}
    problems = [problem for problem in shown.problems if problem.service in known or text in problem.service]
    return msgspec.structs.replace(shown, virtual_servers=servers, problems=problems)


async def ask_or_read(state_dir: Path) -> Snapshot:
    """The agent's snapshot, or the kernel's if no agent answers."""
    try:
        return await _ask(state_dir)
    except agent_socket.AgentUnreachableError:
        async with Ipvs() as ipvs:
            return snapshot.of_kernel(await ipvs.read())


async def _ask(state_dir: Path) -> Snapshot:
    return await agent_socket.ask_for(state_dir, snapshot.QUESTION, snapshot.decode)


async def _read(state_dir: Path, *, with_traffic: bool) -> Snapshot:
    shown = await ask_or_read(state_dir)
    if with_traffic:
        async with Ipvs() as ipvs:
            shown.add_traffic(await ipvs.traffic())
    return shown


def print_snapshot(shown: Snapshot, screen: Screen) -> None:
    """Print one line for each real server, below them the sets that are not empty, and the problems."""
    if shown.source == "kernel":
        screen.line("No agent answers on this node: this is what the kernel has.", err=True)
    screen.table(virtual_server_table(shown.virtual_servers, is_wide=screen.is_wide))
    sets = TextTable(*_SET_HEADINGS, numbers=_SET_HEADINGS[1:])
    for fill in shown.sets:
        if fill.entries:
            sets.add(fill.set, fill.entries, fill.capacity, fill.limit)
    if sets:
        screen.line()
        screen.table(sets)
    if shown.firewall is not None:
        screen.line(f"firewall: {shown.firewall.name} ({shown.firewall.why})", hang=2)
    print_problems(shown.problems, screen)


def endpoint_text(endpoint: "EndpointView") -> str:
    """Whether an endpoint serves, and why, in one line."""
    where = f" on {endpoint.node}" if endpoint.node else ""
    word = "in " if endpoint.serves else "out"
    return f"{word} {host_port(endpoint.address, endpoint.port)}{where}: {endpoint.reason}"


def print_problems(problems: Iterable[ProblemRow], screen: Screen) -> None:
    """Print one line for each problem, with whose it is."""
    for problem in problems:
        about = problem.service or "this node"
        screen.line(f"{about}: {problem.reason}: {problem.message}", hang=4, fg="yellow")


def virtual_server_table(rows: Iterable[VirtualServerRow], *, is_wide: bool = False) -> TextTable:
    """A line for each real server. `is_wide` adds traffic counters and forwarding methods."""
    outer = (*_HEADINGS, *(_TRAFFIC_HEADINGS if is_wide else ()))
    inner = (*_REAL_SERVER_HEADINGS, *(["Method"] if is_wide else []))
    table = TextTable(*outer, *inner, numbers=(*_NUMBERS, *_TRAFFIC_HEADINGS), outer=len(outer))
    for row in rows:
        traffic = ("-",) * len(_TRAFFIC_HEADINGS) if row.traffic is None else msgspec.structs.astuple(row.traffic)
        cells = [*_virtual_server_cells(row), *(traffic if is_wide else ())]
        for real in row.real_servers:
            inner_cells = host_port(real.address, real.port), real.weight, real.active, real.inactive, real.state
            table.add(*cells, *inner_cells, *([real.method] if is_wide else []))
        if not row.real_servers:
            table.add(*cells, "-", "", "", "", row.state, *([""] if is_wide else []))
    return table


def print_services(services: ServiceList, screen: Screen) -> None:
    """Print one line for each Service, and below the table the problems."""
    table = TextTable(*_SERVICE_HEADINGS, numbers=(*_SERVICE_HEADINGS[1:5], "Problems"))
    for row in services.items:
        problems = len(row.problems) or "-"
        table.add(row.service, row.virtual_servers, row.serving, row.active, row.inactive, row.state, problems)
    screen.table(table)
    for row in services.items:
        for problem in row.problems:
            screen.line(f"{row.service}: {problem}", hang=4, fg="yellow")


def _virtual_server_cells(row: VirtualServerRow) -> list[str]:
    scheduler = " ".join([row.scheduler, *row.flags])
    persistence = "-" if row.persistence_timeout is None else f"{row.persistence_timeout}s /{row.persistence_prefix}"
    return [row.service or "-", f"{row.protocol} {host_port(row.address, row.port)}", scheduler, persistence]
