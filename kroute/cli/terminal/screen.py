"""Where commands write for people: a terminal of some width, or a pipe or file without limit.

A table is never cut, and a number is never folded. A table that fits its width has a line for each row. Otherwise long
names in the first column get a line of their own, and a table of groups is written in two levels: the outer columns on
a line, and the other columns indented below. So every column is there at every width, and what is wider than the
terminal even then is left to the terminal, which folds lines without losing anything.

The control characters of objects' values are escaped, so that they neither move the cursor nor set colours.
"""

import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any, Self

import click

from kroute.base.printable import printable

GAP = "  "
INDENT = "  "
NARROWEST_NAME = 12
"""Characters. A column of names is not made narrower."""

Row = tuple[str, ...]


def number(value: float) -> str:
    """A number of things for a person: one decimal below ten, thousands as k, M and G."""
    return _shortened(value, 1000, ("", "k", "M", "G"))


def size(value: float) -> str:
    """A number of bytes for a person, with its unit."""
    return _shortened(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def _shortened(value: float, base: int, units: Sequence[str]) -> str:
    power = 0
    while value >= base and power < len(units) - 1:
        value /= base
        power += 1
    return f"{value:.1f}{units[power]}" if 0 < value < 9.95 else f"{value:.0f}{units[power]}"


class TextTable:
    """Rows of cells, each a text of one line.

    The first `outer` columns describe a group of rows, such as a virtual server with its real servers. Every row has
    them. Columns in `numbers` are right-aligned.
    """

    def __init__(self, *headings: str, numbers: Collection[str] = (), outer: int = 1) -> None:
        self._headings = headings
        self._numbers = [heading in numbers for heading in headings]
        self._outer = outer
        self._rows: list[Row] = []

    def add(self, *cells: object) -> None:
        """Add a row with a cell for each column."""
        row = tuple(printable(str(cell)) for cell in cells)
        if len(row) != len(self._headings):
            raise ValueError(f"{len(row)} cells for {len(self._headings)} columns")
        self._rows.append(row)

    def __len__(self) -> int:
        return len(self._rows)

    def lines(self, width: int | None, *, repeats: bool = False) -> tuple[list[str], list[str]]:
        """The lines of the headings, as many as a group has levels, and those below.

        `width` is in characters; None is without limit. `repeats`: every line has its outer cells, so that a program
        can read lines one by one. Otherwise they are only in the first line of their group.
        """
        rows = self._rows if repeats else list(_without_repetitions(self._rows, self._outer))
        widths = _widths([self._headings, *rows])
        if width is not None and _total(widths) > width:
            narrowed = _narrowed(widths, width, len(self._headings[0]))
            if self._outer > 1 or narrowed is None:
                return self._in_two_levels(width)
            widths = narrowed
        lines = [line for row in rows for line in _row_lines(row, widths, self._numbers)]
        return [_line(self._headings, widths, self._numbers)], lines

    def _in_two_levels(self, width: int) -> tuple[list[str], list[str]]:
        outer, inner = self._headings[: self._outer], self._headings[self._outer :]
        numbers = self._numbers[self._outer :]
        widths = _widths([inner, *(row[self._outer :] for row in self._rows)])
        if _total(widths) > width - len(INDENT):
            widths = _narrowed(widths, width - len(INDENT), len(inner[0])) or widths
        lines: list[str] = []
        for cells, group in groupby(self._rows, key=lambda row: row[: self._outer]):
            lines += _packed(cells, width)
            lines += [INDENT + line for row in group for line in _row_lines(row[self._outer :], widths, numbers)]
        return [*_packed(outer, width), INDENT + _line(inner, widths, numbers)], lines


def _without_repetitions(rows: Sequence[Row], outer: int) -> Iterator[Row]:
    """The rows, with empty outer cells where they are those of the row above."""
    before: Row | None = None
    for row in rows:
        yield ("",) * outer + row[outer:] if row[:outer] == before else row
        before = row[:outer]


def _widths(rows: Sequence[Row]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _narrowed(widths: Sequence[int], width: int, least: int) -> list[int] | None:
    """The widths with a first column that lets the rest fit; None if that would be too narrow for names."""
    first = width - _total(widths) + widths[0]
    return [first, *widths[1:]] if first >= max(NARROWEST_NAME, least) else None


def _row_lines(row: Row, widths: Sequence[int], numbers: Sequence[bool]) -> list[str]:
    """The line of a row. A first cell that is wider than its column has a line of its own above the others."""
    if len(row[0]) <= widths[0]:
        return [_line(row, widths, numbers)]
    return [row[0], _line(("", *row[1:]), widths, numbers)]


def _line(cells: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> str:
    aligned = (
        cell.rjust(width) if is_number else cell.ljust(width)
        for cell, width, is_number in zip(cells, widths, numbers, strict=True)
    )
    return GAP.join(aligned).rstrip()


def _packed(cells: Sequence[str], width: int) -> list[str]:
    """The cells in as few lines as they fit in, whole ones only; further lines are indented."""
    lines = [cells[0]]
    for cell in cells[1:]:
        if len(lines[-1]) + len(GAP) + len(cell) <= width:
            lines[-1] += GAP + cell
        else:
            lines.append(INDENT * 2 + cell)
    return lines


NARROWEST = 40
"""Characters. Text is not folded for less."""


class Screen:
    """Writes lines to standard output, none longer than the terminal is wide if that is possible.

    `width` is None for a pipe, a file and `-o wide`: there a line is as long as its text. `is_wide` is whether
    `-o wide` was requested, which also means more columns. `repeats`: each line of a table is complete, as programs
    read it.
    """

    def __init__(self, width: int | None = None, *, is_wide: bool = False, repeats: bool = False) -> None:
        self.width = width
        self.is_wide = is_wide
        self.repeats = repeats

    @classmethod
    def of_this_process(cls, how: str = "table") -> Self:
        """The screen behind standard output, for the format `table` or `wide`. `COLUMNS` overrides its width."""
        is_wide, is_terminal = how == "wide", sys.stdout.isatty()
        width = terminal_width() if is_terminal and not is_wide else None
        return cls(width, is_wide=is_wide, repeats=not is_terminal)

    def line(self, text: str = "", *, hang: int = 0, err: bool = False, **style: Any) -> None:
        """Write a text. What does not fit goes on in further lines, indented by `hang` characters."""
        for line in self.folded(text, hang):
            click.secho(line, err=err, **style)

    def marked(self, text: str, mark: str, colour: str | None, *, hang: int = 0) -> None:
        """Write a text as `line` does, with the first `mark` in a colour."""
        first, *more = self.folded(text, hang)
        for line in (first.replace(mark, click.style(mark, fg=colour), 1), *more):
            click.echo(line)

    def folded(self, text: str, hang: int = 0) -> list[str]:
        """The lines of a text, folded between words only. A word that is longer than a line stays whole."""
        text = printable(text)
        if self.width is None or len(text) <= self.width:
            return [text]
        indent = len(text) - len(text.lstrip(" "))
        return textwrap.wrap(
            text,
            self.width,
            subsequent_indent=" " * max(indent, min(hang, self.width // 2)),
            break_long_words=False,
            break_on_hyphens=False,
        )

    def table(self, table: TextTable) -> None:
        """Write a table with its headings."""
        headings, rows = table.lines(self.width, repeats=self.repeats)
        for line in headings:
            click.secho(line, bold=True)
        for line in rows:
            click.echo(line)


def terminal_width() -> int:
    """The columns of the terminal, or of the variable `COLUMNS`; at least NARROWEST."""
    import shutil  # noqa: PLC0415  it loads what compresses archives; not for a pipe

    return max(NARROWEST, shutil.get_terminal_size().columns)
