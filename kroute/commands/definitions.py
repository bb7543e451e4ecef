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
    return [like_run(run, read, "check", [OUTPUT], _check)]


def _check(settings: Settings, options: Mapping[str, Any]) -> int:
    """Look whether the node and the cluster have what kroute needs; each finding comes with its next step.

    Ends with 0 if so, warnings or not, and with 1 if something is lacking.
    """
    from kroute import logs  # noqa: PLC0415
    from kroute.commands import check  # noqa: PLC0415

    logs.configure("console", QUIET)
    return check.main(settings, as_json=options["output"] == "json")
