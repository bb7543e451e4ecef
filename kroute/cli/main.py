"""The `kroute` command: the group of all commands.

Only the module of the command that is called is imported. Therefore a module may import what its command needs at its
top.
"""

import sys
from importlib import import_module
from typing import NamedTuple

import click

from kroute import __version__
from kroute.cli.terminal import output


class Entry(NamedTuple):
    """A command: the module that defines it under its name, and the first sentence of its help."""

    module: str
    summary: str


COMMANDS = {
    "bundle": Entry(
        "kroute.cli.bundle.command",
        "Collect everything that support needs in one file, without secrets, and change nothing.",
    ),
    "check": Entry(
        "kroute.cli.check",
        "Look whether the node and the cluster have what kroute needs; each finding comes with its next step.",
    ),
    "cleanup": Entry("kroute.cli.cleanup", "Undo everything that kroute did on this node, and say what was undone."),
    "director": Entry(
        "kroute.cli.director",
        "Own the external IPs on a machine outside the cluster, and route them directly to its nodes, until SIGTERM.",
    ),
    "explain": Entry("kroute.cli.explain", "Say why a packet to ADDRESS:PORT, or to a Service, goes where it goes."),
    "migrate": Entry(
        "kroute.cli.migrate",
        "Show what another service proxy left on this node and take it over, or hand the node back to it.",
    ),
    "plan": Entry("kroute.cli.plan", "Show what `kroute run` would change on this node now, and change nothing."),
    "run": Entry(
        "kroute.cli.run",
        "Serve this node until SIGTERM; the data path stays in place afterwards, unless told otherwise.",
    ),
    "show": Entry(
        "kroute.cli.show.command",
        "Show what is served: virtual servers with schedulers, real servers and connections; or Services, or one in "
        "full.",
    ),
    "status": Entry("kroute.cli.status", "Show what this node serves, what is wrong, and what to do about it."),
}


def load(name: str) -> click.Command:
    command: click.Command = getattr(import_module(COMMANDS[name].module), name)
    return command


class LazyGroup(click.Group):
    """Lists its commands without importing their modules, and imports the one that is called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else load(name), rest


@click.group(
    cls=LazyGroup,
    commands=[click.Command(name, help=entry.summary) for name, entry in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="kroute")
def cli() -> None:
    """A Kubernetes service proxy for Linux nodes that programs IPVS."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(output.run(cli, arguments))
