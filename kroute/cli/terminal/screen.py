"""Where commands write for people: a terminal of some width, or a pipe or file without limit."""

import sys
import textwrap
from typing import Any, Self

import click

from kroute.cli.terminal.tables import Table

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

    def folded(self, text: str, hang: int = 0) -> list[str]:
        """The lines of a text, folded between words only. A word that is longer than a line stays whole."""
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

    def table(self, table: Table) -> None:
        """Write a table with its headings."""
        for line in table.headings(self.width):
            click.secho(line, bold=True)
        for line in table.rows(self.width, repeats=self.repeats):
            click.echo(line)


def terminal_width() -> int:
    """The columns of the terminal, or of the variable `COLUMNS`; at least NARROWEST."""
    import shutil  # noqa: PLC0415  it loads what compresses archives; not for a pipe

    return max(NARROWEST, shutil.get_terminal_size().columns)
