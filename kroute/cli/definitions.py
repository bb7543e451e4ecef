"""The command lines of the commands in this package; what does their work is imported when they run."""

from collections.abc import Mapping
from typing import Any

import click

from kroute.cli.arguments import parse_address, parse_frontend
from kroute.cli.like_run import ReadSettings, like_run
from kroute.cli.options import Parsed
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


FRONTEND = click.Argument(["frontend"], type=Parsed("ADDRESS:PORT[/udp]", parse_frontend), metavar="ADDRESS:PORT[/udp]")
CLIENT = click.Option(
    ["--from", "client"],
    type=Parsed("ADDRESS", parse_address),
    default=None,
    help="Who sends it: an address of this node, a pod's, or any other.  [default: one of each kind]",
)


def commands(run: click.Command, read: ReadSettings) -> list[click.Command]:
    """All of them. `run` is `kroute run`, whose options `read` makes settings of."""
    return [
        like_run(run, read, "check", [OUTPUT], _check),
        like_run(run, read, "plan", [OUTPUT], _plan),
        like_run(run, read, "explain", [FRONTEND, CLIENT, OUTPUT], _explain),
    ]


def _check(settings: Settings, options: Mapping[str, Any]) -> int:
    """Look whether the node and the cluster have what kroute needs; each finding comes with its next step.

    Ends with 0 if so, warnings or not, and with 1 if something is lacking.
    """
    from kroute import logs  # noqa: PLC0415
    from kroute.cli import check  # noqa: PLC0415

    logs.configure("console", QUIET)
    return check.main(settings, as_json=options["output"] == "json")


def _plan(settings: Settings, options: Mapping[str, Any]) -> int:
    """Show what `kroute run` would change on this node now, and change nothing.

    Takes the options of `kroute run`; where an agent runs, its settings hold for all that is not given. Ends with 0 if
    there is nothing to change, with 2 if there is, and with 1 when that cannot be found out.
    """
    from kroute import logs  # noqa: PLC0415
    from kroute.cli import plan  # noqa: PLC0415

    logs.configure("console", QUIET)
    return plan.main(settings, as_json=options["output"] == "json")


def _explain(settings: Settings, options: Mapping[str, Any]) -> int:
    """Say why a packet to ADDRESS:PORT goes where it goes.

    IPv6 addresses stand in brackets: [fd00::1]:80. Ends with 0 if every client that is asked about is served, with 3 if
    one is refused or dropped, with 4 if no Service has the address and port, with 5 if the kernel is not as planned,
    and with 1 when that cannot be found out.
    """
    from kroute import logs  # noqa: PLC0415
    from kroute.cli import explain  # noqa: PLC0415

    logs.configure("console", QUIET)
    return explain.main(settings, options["frontend"], options["client"], as_json=options["output"] == "json")
