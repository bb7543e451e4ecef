"""Help of commands in sections: the commands of a group by what they are for, and the settings of `kroute run`."""

from collections.abc import Mapping, Sequence

import click

OTHERS = "Other commands"
_WITH_SETTINGS = ("run", "director")
"""The commands whose settings these are. Others only take them, to say what those two would do."""
_ALL = "kroute.help-all"


class SectionGroup(click.Group):
    """A group whose help lists its commands in sections, each with its whole summary."""

    sections: Mapping[str, Sequence[str]] = {}
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


class SettingsCommand(click.Command):
    """A command that takes settings. Its help shows the common ones, and with `--help-all` every one in its section."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, with `--help-all` at the end."""
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show this message with all settings and exit.",
        )
        return [*super().get_params(ctx), help_all]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then its settings in sections."""
        from kroute.cli.manual.setting_groups import COMMON, GROUPS  # noqa: PLC0415  few ask for help

        params = {it.opts[-1]: it for it in self.get_params(ctx) if isinstance(it, click.Option)}
        sections = {name: [it for it in flags if it in params] for name, flags in GROUPS.items()}
        settings = {flag for flags in sections.values() for flag in flags}
        if not ctx.meta.get(_ALL):
            common = COMMON if self.name in _WITH_SETTINGS else frozenset()
            sections = {name: [it for it in flags if it in common] for name, flags in sections.items()}
        hidden = len(settings) - sum(map(len, sections.values()))
        for heading, flags in ({"Options": [it for it in params if it not in settings]} | sections).items():
            if rows := [row for it in flags if (row := params[it].get_help_record(ctx)) is not None]:
                with formatter.section(heading):
                    formatter.write_dl(rows)
        if hidden:
            more = f"{hidden} more settings" if any(sections.values()) else f"The {hidden} settings of `kroute run`"
            formatter.write_paragraph()
            formatter.write_text(f"{more}: see `{ctx.command_path} --help-all`, or docs/settings.md.")


def _show_all(context: click.Context, _parameter: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help())
        context.exit()
