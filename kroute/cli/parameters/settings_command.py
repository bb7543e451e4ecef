"""Commands that take settings.

Their help shows the common ones, and with `--help-all` every one in its section. Most also accept the flags of
kube-proxy and kube-router, so that their arguments can be copied. The tables of these flags are loaded for arguments
that may be among them: most agents have variables, or a file.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kroute.migration.flags import OtherFlags

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
        from kroute.cli.parameters.run_options import COMMON, GROUPS, SETTINGS  # noqa: PLC0415  few ask for help

        options = {option.opts[-1]: option for option in self.get_params(ctx) if isinstance(option, click.Option)}
        settings = [flag for flag in SETTINGS if flag in options]
        shown = [flag for flag in settings if ctx.meta.get(_ALL) or (self.name in _WITH_SETTINGS and flag in COMMON)]
        sections = {heading: [row.flag for row in group if row.flag in shown] for heading, group in GROUPS.items()}
        for heading, flags in ({"Options": [flag for flag in options if flag not in settings]} | sections).items():
            if rows := [row for flag in flags if (row := options[flag].get_help_record(ctx)) is not None]:
                with formatter.section(heading):
                    formatter.write_dl(rows)
        hidden = len(settings) - len(shown)
        if hidden:
            more = f"{hidden} more settings" if shown else f"The {hidden} settings of `kroute run`"
            formatter.write_paragraph()
            formatter.write_text(f"{more}: see `{ctx.command_path} --help-all`, or docs/settings.md.")


class FlagsCommand(SettingsCommand):
    """A command that translates the flags of other proxies before it parses its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate, then parse as usual. Raises UsageError that names the flag that cannot be translated, and why."""
        try:
            args = translated(args, {name for parameter in self.params for name in parameter.opts})
        except click.UsageError:
            if not ctx.resilient_parsing:  # a shell completes what is half written
                raise
        return super().parse_args(ctx, args)


def translated(arguments: Sequence[str], own: set[str]) -> list[str]:
    """The arguments with other proxies' flags translated. `own` are the options that the command has.

    What translates to an option that the command does not have is left out. Of a switch that is given many times the
    last one counts, as in Go. Raises UsageError.
    """
    match arguments:
        case [] | ["--config", _] if all(arguments):
            return list(arguments)
    all_tables = flag_tables()
    found: list[tuple[str, list[str]]] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        written, equals, value = word.lstrip("-").partition("=")
        name = written.replace("_", "-")  # as kube-proxy does
        tables = [table for table in all_tables if name in table.flags] if word.startswith("-") else []
        if not tables or (tables[0].flags[name].keeps_its_name and f"--{name}" not in own):
            found.append(("", [word]))
            continue
        is_switch = tables[0].flags[name].is_switch
        if not (equals or is_switch or rest) and f"--{name}" in own:
            found.append(("", [word]))  # click says that its value is missing
            continue
        if not equals:
            value = "true" if is_switch else (rest.pop(0) if rest else "")
        if is_switch:
            found = [(other, words) for other, words in found if other != name]
        ours = _translate(name, value, tables)
        found.append((name, ours if ours and ours[0] in own else []))
    return [word for _, ours in found for word in ours]


def flag_tables() -> "tuple[OtherFlags, ...]":
    from kroute.migration.flags import KUBE_PROXY, KUBE_ROUTER  # noqa: PLC0415  few commands get such flags

    return KUBE_ROUTER, KUBE_PROXY


def _translate(name: str, value: str, tables: "Sequence[OtherFlags]") -> list[str]:
    """Translate by the first table that can."""
    reasons = []
    for table in tables:
        try:
            return table.flags[name].translate(value)
        except ValueError as error:
            reasons.append(f"--{name} is {table.proxy}'s: {error}")
    raise click.UsageError(reasons[0])


def hint(option: str, command: str) -> str:
    """What to do about an option that a command does not have, if it is another proxy's; else empty."""
    name = option.lstrip("-").replace("_", "-")
    proxies = " and ".join(sorted({table.proxy for table in flag_tables() if name in table.flags}))
    if not proxies:
        return ""
    return (
        f"--{name} is a flag of {proxies}, which `kroute {command}` does not take; `kroute run` and `plan` translate it"
    )


def _show_all(context: click.Context, _parameter: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help())
        context.exit()
