"""Commands that also accept the flags of kube-proxy and kube-router, so that their arguments can be copied.

The tables of these flags are loaded for arguments that may be among them. Most agents have variables, or a file.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kroute.cli.parameters.settings_command import SettingsCommand

if TYPE_CHECKING:
    from kroute.migration.flag_table import OtherFlags


class FlagsCommand(SettingsCommand):
    """A command that translates the flags of other proxies before it parses its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate, then parse as usual. Raises UsageError that names the flag that cannot be translated, and why."""
        try:
            args = translated(args, {name for it in self.params for name in it.opts})
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
            found = [it for it in found if it[0] != name]
        ours = _translate(name, value, tables)
        found.append((name, ours if ours and ours[0] in own else []))
    return [word for _, ours in found for word in ours]


def flag_tables() -> "tuple[OtherFlags, ...]":
    from kroute.migration.kube_proxy_flags import KUBE_PROXY  # noqa: PLC0415  5 modules, for who gives flags
    from kroute.migration.kube_router_flags import KUBE_ROUTER  # noqa: PLC0415  as above

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
