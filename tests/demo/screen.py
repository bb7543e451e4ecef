"""What the demo prints: at most 80 columns, on a terminal and in a pipe."""

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console

WIDTH = 80

console = Console(width=WIDTH, highlight=False, soft_wrap=True)


def step(title: str) -> None:
    """Say what comes next."""
    console.print()
    for line in textwrap.wrap(title, WIDTH, initial_indent="== ", subsequent_indent="   "):
        console.print(f"[bold]{line}[/bold]")


def command(*argv: str) -> None:
    """Show the command line whose output follows."""
    console.print(f"$ {' '.join(argv)}", markup=False, style="bold")


def say(text: str) -> None:
    """Print lines. A line that is too long goes on below its own beginning, or below the column that it is in."""
    for line in text.splitlines():
        for part in fitted(line.rstrip()):
            console.print(part, markup=False)


def fitted(line: str) -> list[str]:
    """Split a line into parts that fit. Those that follow are indented like the last column of the first."""
    if len(line) <= WIDTH:
        return [line]
    column = line.rfind("  ", 0, WIDTH // 2) + 2 if "  " in line[: WIDTH // 2] else 0
    following = " " * max(column, 2)
    return textwrap.wrap(line, WIDTH, subsequent_indent=following, break_on_hyphens=False) or [line]


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below their headings, each column as wide as it must be. Numbers are on the right."""
    cells = [[str(it) for it in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for row in (headings, *cells):
        shown = [it.rjust(width) if it.isdigit() else it.ljust(width) for it, width in zip(row, widths, strict=True)]
        say("  ".join(shown))
