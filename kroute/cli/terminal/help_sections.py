"""Help of a group of commands in sections."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import click

OTHERS = "Other commands"


class SectionGroup(click.Group):
    """A group whose help lists its commands in sections, each with its whole summary."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The headings, with the names of their commands. Commands in none of them are the last section."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command. Its summary is its first sentence, also where click would cut it."""
        cmd.short_help = cmd.short_help or " ".join((cmd.help or "").partition("\n\n")[0].split())
        super().add_command(cmd, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        names = self.list_commands(ctx)
        named = {name for section in self.sections.values() for name in section}
        rest = [name for name in names if name not in named]
        width = max(map(len, names), default=0)
        for heading, section in [*self.sections.items(), (OTHERS, rest)]:
            rows = [(name.ljust(width), self.commands[name].short_help or "") for name in section if name in names]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
