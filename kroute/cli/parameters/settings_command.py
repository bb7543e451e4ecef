"""Commands that take settings. Their help shows the common ones, and with `--help-all` every one in its section."""

import click

_WITH_SETTINGS = ("run", "director")
"""The commands whose settings these are. Others only take them, to say what those two would do."""
_ALL = "kroute.help-all"


class SettingsCommand(click.Command):
    """A command that takes settings, and the option `--help-all`."""

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
        from kroute.cli.parameters.setting_groups import COMMON, GROUPS  # noqa: PLC0415  few ask for help

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
