"""`kroute show -w`: live rates and connections of each virtual server."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from kroute.cli.show.table import ask_or_read
from kroute.cli.terminal.output import DONE, plain, refusing
from kroute.cli.terminal.screen import Screen
from kroute.cli.terminal.tables import Table
from kroute.comparison.virtual_servers import TAKES_CONNECTIONS
from kroute.inspect.snapshot import Snapshot
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import Ipvs, Traffic, VirtualServerKey
from kroute.model.addresses import host_port
from kroute.model.document import Document, View, encode

_HEADINGS = ("Service", "Virtual server", "Real servers", "Active", "Inactive", "New/s", "Packets/s", "In/s", "Out/s")


class RateRow(View):
    """One virtual server now. Rates are per second: new connections, packets in both directions, bytes."""

    service: str
    protocol: str
    address: str
    port: int
    real_servers: int
    active: int
    inactive: int
    connections: float
    packets: float
    bytes_in: float
    bytes_out: float


class RateList(Document):
    """The rates of all virtual servers in one interval, the busiest first."""

    kind: ClassVar[str] = "RateList"

    items: list[RateRow]

    def names(self) -> Iterator[str]:
        """The virtual servers, as `kroute explain` takes them."""
        return (f"{host_port(it.address, it.port)}/{it.protocol}" for it in self.items)


class Sample(msgspec.Struct):
    """All counters at one time, in seconds of a monotonic clock."""

    time: float
    shown: Snapshot
    traffic: Mapping[VirtualServerKey, Traffic]


def main(state_dir: Path, how: str, interval: float) -> int:
    """Show rates until interrupted. `how` is table, wide (of any width) or json (one line per interval)."""
    with refusing(KernelError), suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_watch(state_dir, how, interval))
    return DONE


async def _watch(state_dir: Path, how: str, interval: float) -> None:
    """Show the rates of each interval. On a terminal the table is redrawn, elsewhere a new one follows."""
    if how == "json":
        await _follow(state_dir, interval, _print_line)
    elif sys.stdout.isatty():
        with Live(console=Console(), auto_refresh=False) as live:
            await _follow(state_dir, interval, lambda rates: live.update(drawn(rates, how), refresh=True))
    else:
        await _follow(state_dir, interval, lambda rates: print_rates(plain(rates), Screen.of_this_process(how)))


async def _follow(state_dir: Path, interval: float, show: Callable[[RateList], None]) -> None:
    before = await _read(state_dir)
    while True:
        await asyncio.sleep(interval)
        after = await _read(state_dir)
        show(rates(before, after))
        before = after


def _print_line(found: RateList) -> None:
    sys.stdout.buffer.write(encode(found) + b"\n")
    sys.stdout.buffer.flush()


async def _read(state_dir: Path) -> Sample:
    shown = await ask_or_read(state_dir)
    async with Ipvs() as ipvs:
        return Sample(time.monotonic(), shown, await ipvs.traffic())


def rates(before: Sample, after: Sample) -> RateList:
    """The rates between two samples, the busiest virtual server first. The counters of a new one began at 0."""
    seconds = after.time - before.time
    rows = []
    for row in after.shown.virtual_servers:
        now, then = after.traffic.get(row.key, Traffic()), before.traffic.get(row.key, Traffic())
        if now.connections < then.connections:
            then = Traffic()  # it was deleted and added again
        moved = Traffic(*(new - old for new, old in zip(now, then, strict=True)))
        rows.append(
            RateRow(
                row.service,
                row.protocol,
                row.address,
                row.port,
                sum(it.state in TAKES_CONNECTIONS for it in row.real_servers),
                row.active,
                row.inactive,
                connections=moved.connections / seconds,
                packets=(moved.packets_in + moved.packets_out) / seconds,
                bytes_in=moved.bytes_in / seconds,
                bytes_out=moved.bytes_out / seconds,
            )
        )
    rows.sort(key=lambda it: (-it.packets, -it.active, it.service, it.protocol, it.address, it.port))
    return RateList(rows)


def print_rates(found: RateList, screen: Screen) -> None:
    """Print the table of one interval."""
    screen.table(rate_table(found))


def rate_table(found: RateList) -> Table:
    """The table of one interval."""
    table = Table(*_HEADINGS, numbers=_HEADINGS[2:], outer=2)
    for row in found.items:
        values = (f"{it:.1f}" for it in (row.connections, row.packets, row.bytes_in, row.bytes_out))
        name = f"{row.protocol} {host_port(row.address, row.port)}"
        table.add(row.service or "-", name, row.real_servers, row.active, row.inactive, *values)
    return table


def drawn(found: RateList, how: str) -> Text:
    """The table of one interval for a terminal, which is redrawn in place."""
    screen, table = Screen.of_this_process(how), rate_table(plain(found))
    headings = [click.style(it, bold=True) for it in table.headings(screen.width)]
    return Text.from_ansi("\n".join([*headings, *table.rows(screen.width)]), overflow="fold")
