"""The command lines of the commands in this package; what does their work is imported when they run."""

from collections.abc import Mapping
from typing import Any

import click

from kroute.commands.like_run import ReadSettings, like_run
from kroute.settings import Settings

OUTPUT = click.Option(
    ["-o", "--output"],
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print it.",
)

QUIET = "error"
"""The log level of commands whose output is the answer."""


def commands(run: click.Command, read: ReadSettings) -> list[click.Command]:
    """All of them. `run` is `kroute run`, whose options `read` makes settings of."""
    return [like_run(run, read, "check", [OUTPUT], _check), like_run(run, read, "plan", [OUTPUT], _plan)]


def _check(settings: Settings, options: Mapping[str, Any]) -> int:
    """Look whether the node and the cluster have what kroute needs; each finding comes with its next step.

    Ends with 0 if so, warnings or not, and with 1 if something is lacking.
    """
    from kroute import logs  # noqa: PLC0415
    from kroute.commands import check  # noqa: PLC0415

    logs.configure("console", QUIET)
    return check.main(settings, as_json=options["output"] == "json")


def _plan(settings: Settings, options: Mapping[str, Any]) -> int:
    """Show what `kroute run` would change on this node now, and change nothing.

    Takes the options of `kroute run`; where an agent runs, its settings hold for all that is not given. Ends with 0 if
    there is nothing to change, with 2 if there is, and with 1 when that cannot be found out.
    """
    from kroute import logs  # noqa: PLC0415
    from kroute.commands import plan  # noqa: PLC0415

    logs.configure("console", QUIET)
    return plan.main(settings, as_json=options["output"] == "json")
