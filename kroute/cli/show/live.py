"""`kroute show -w`: live rates and connections of each virtual server."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from kroute.base.wording import host_port
from kroute.cli.show.table import ask_or_read, narrowed
from kroute.cli.terminal.output import DONE, refusing
from kroute.cli.terminal.screen import Screen, TextTable, number, size, terminal_width
from kroute.inspect.figures import Rates
from kroute.inspect.snapshot import Snapshot
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.objects import Traffic, VirtualServerKey
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


ORDERS: Mapping[str, Callable[[Any], float]] = {
    "packets": lambda row: -row.packets,
    "connections": lambda row: -row.connections,
    "bytes": lambda row: -row.bytes_in - row.bytes_out,
    "active": lambda row: -row.active,
    "name": lambda _row: 0,
}
"""What rows of rates can be sorted by, the busiest first. Those that are equal are in the order of their names."""
ORDER = "packets"
"""The order if none is chosen."""


class RateList(Document):
    """The rates of all virtual servers in one interval, sorted."""

    kind: ClassVar[str] = "RateList"

    items: list[RateRow]

    def names(self) -> Iterator[str]:
        """The virtual servers, as `kroute explain` takes them."""
        return (f"{host_port(row.address, row.port)}/{row.protocol}" for row in self.items)


class Sample(msgspec.Struct):
    """All counters at one time, in seconds of a monotonic clock."""

    time: float
    shown: Snapshot
    traffic: Mapping[VirtualServerKey, Traffic]


class Watch(msgspec.Struct, frozen=True):
    """What to show: of the agent of this state directory, in this format, every `interval` seconds.

    `order` is a key of ORDERS, `only` is as in `table.narrowed`, and `count` is how often to show it; None: for ever.
    """

    state_dir: Path
    how: str
    interval: float
    order: str = ORDER
    only: str = ""
    count: int | None = None


def main(watch: Watch) -> int:
    """Show rates until interrupted. Formats are table, wide (of any width) and json (one line per interval)."""
    with refusing(KernelError), suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_watch(watch))
    return DONE


async def _watch(watch: Watch) -> None:
    """Show the rates of each interval. On a terminal the table is redrawn, elsewhere a new one follows."""
    if watch.how == "json":
        await _follow(watch, _print_line)
    elif sys.stdout.isatty():
        is_plain = click.get_current_context().color is False
        console = Console(color_system=None if is_plain else "auto")
        with Live(console=console, auto_refresh=False) as live:
            await _follow(watch, lambda rates: live.update(drawn(rates, watch.how, console.size.height), refresh=True))
    else:
        await _follow(watch, lambda rates: print_rates(rates, Screen.of_this_process(watch.how)))


async def _follow(watch: Watch, show: Callable[[RateList], None]) -> None:
    before = await _read(watch)
    for _ in repeat(None) if watch.count is None else range(watch.count):
        await asyncio.sleep(watch.interval)
        after = await _read(watch)
        show(rates(before, after, watch.order))
        before = after


def _print_line(found: RateList) -> None:
    sys.stdout.buffer.write(encode(found) + b"\n")
    sys.stdout.buffer.flush()


async def _read(watch: Watch) -> Sample:
    shown = narrowed(await ask_or_read(watch.state_dir), watch.only)
    async with Ipvs() as ipvs:
        return Sample(time.monotonic(), shown, await ipvs.traffic())


def rates(before: Sample, after: Sample, order: str = ORDER) -> RateList:
    """The rates between two samples, in one of ORDERS. The counters of a new virtual server began at 0."""
    seconds = after.time - before.time
    rows = []
    for row in after.shown.virtual_servers:
        then, now = before.traffic.get(row.key, Traffic()), after.traffic.get(row.key, Traffic())
        moved = Rates.between(then, now, seconds)
        server = row.service, row.protocol, row.address, row.port
        counts = row.serving, row.active, row.inactive
        packets = moved.packets_in + moved.packets_out
        rows.append(RateRow(*server, *counts, moved.connections, packets, moved.bytes_in, moved.bytes_out))
    sort = ORDERS[order]
    rows.sort(key=lambda row: (sort(row), row.service, row.protocol, row.address, row.port))
    return RateList(rows)


def print_rates(found: RateList, screen: Screen) -> None:
    """Print the table of one interval."""
    screen.table(rate_table(found.items, exact=screen.is_wide or screen.repeats))


def rate_table(rows: Iterable[RateRow], *, exact: bool = False) -> TextTable:
    """The table of one interval. `exact`: with numbers for programs, not with units."""
    table = TextTable(*_HEADINGS, numbers=_HEADINGS[2:], outer=2)
    for row in rows:
        name = f"{row.protocol} {host_port(row.address, row.port)}"
        table.add(row.service or "-", name, row.real_servers, row.active, row.inactive, *rate_cells(row, exact=exact))
    return table


def rate_cells(row: Any, *, exact: bool = False) -> tuple[str, ...]:
    """The rates of a row with the fields of RateRow: connections, packets, bytes in and out, with units or exact."""
    values = (row.connections, row.packets, row.bytes_in, row.bytes_out)
    if exact:
        return tuple(f"{value:.1f}" for value in values)
    return number(values[0]), number(values[1]), size(values[2]), size(values[3])


def drawn(found: RateList, how: str, height: int) -> Text:
    """The table of one interval for a terminal of so many lines, which is redrawn in place.

    What does not fit is counted in the last line.
    """
    screen, rows = Screen.of_this_process(how), found.items
    shown = rows[:height]
    while len(lines := _lines(shown, len(rows) - len(shown), screen)) > height and shown:
        shown = shown[: -max(1, (len(lines) - height) // 8)]
    return Text("\n").join(lines)


def _lines(rows: list[RateRow], left_out: int, screen: Screen) -> list[Text]:
    """The lines of a table with these rows, as the terminal folds them, and how many rows are left out."""
    table, columns = rate_table(rows, exact=screen.is_wide), terminal_width()
    headings, below = table.lines(screen.width)
    if left_out:
        below += screen.folded(f"{left_out} more: use --filter or --sort-by, or a larger window")
    styled = [*((line, "bold") for line in headings), *((line, "") for line in below)]
    return [
        Text(line[start : start + columns], style)
        for line, style in styled
        for start in range(0, max(len(line), 1), columns)
    ]
