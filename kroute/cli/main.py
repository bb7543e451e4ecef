"""The `kroute` command: the group of all commands.

Only the module of the command that is called is imported. Therefore a module may import what its command needs at its
top.
"""

import os
import sys
from importlib import import_module
from typing import ClassVar, NamedTuple

import click

from kroute import __version__
from kroute.cli.parameters.variables import check_variables
from kroute.cli.terminal import output
from kroute.cli.terminal.output import SectionGroup
from kroute.runtime import memory

PROGRAM = "kroute"
COMPLETION_VARIABLE = "_KROUTE_COMPLETE"
"""The variable by which a shell's script asks for completions, as click derives it from the program's name."""


class Entry(NamedTuple):
    """A command: the first sentence of its help, the module in `kroute.cli`, and its name there.

    Without them the module, or the name, is that of the command.
    """

    summary: str
    module: str = ""
    attribute: str = ""


COMMANDS = {
    "bundle": Entry(
        "Collect everything that support needs in one file, without secrets, and change nothing.", "bundle.command"
    ),
    "check": Entry(
        "Look whether the node and the cluster have what kroute needs; each finding comes with its next step."
    ),
    "cleanup": Entry("Undo everything that kroute did on this node, and say what was undone."),
    "completion": Entry("Write the script by which a shell completes commands, flags and names of Services.", "manual"),
    "director": Entry(
        "Own the external IPs on a machine outside the cluster, and route them directly to its nodes, until SIGTERM."
    ),
    "explain": Entry("Say why a packet to ADDRESS:PORT, to a Service or to a pod goes where it goes."),
    "help": Entry("Show the help of kroute, or of COMMAND, as `kroute COMMAND --help` does.", "manual", "show_help"),
    "man": Entry("Write the man pages of kroute and of each command into DIRECTORY.", "manual"),
    "migrate": Entry(
        "Show what another service proxy left on this node and take it over, or hand the node back to it."
    ),
    "plan": Entry("Show what `kroute run` would change on this node now, and change nothing."),
    "policy": Entry("Show the packets that network policies refuse on this node, until interrupted."),
    "run": Entry("Serve this node until SIGTERM; the data path stays in place afterwards, unless told otherwise."),
    "show": Entry(
        "Show what is served: virtual servers with schedulers, real servers and connections; or Services, or one in "
        "full.",
        "show.command",
    ),
    "status": Entry("Show what this node serves, what is wrong, and what to do about it."),
    "version": Entry("Show the version of kroute, and of the agent that runs on this node."),
}


def load(name: str) -> click.Command:
    entry = COMMANDS[name]
    with memory.seldom():
        from kroute.base import logs  # noqa: F401, PLC0415  before every module that logs: it decides what structlog loads

        module = import_module(f"kroute.cli.{entry.module or name}")
    command: click.Command = getattr(module, entry.attribute or name)
    return command


class LazyGroup(SectionGroup):
    """Lists its commands without importing their modules, and imports the one that is called."""

    sections: ClassVar = {
        "Serve": ("run", "director"),
        "Look, and change nothing": ("status", "show", "explain", "policy", "plan", "check", "bundle"),
        "Take over, hand over, remove": ("migrate", "cleanup"),
        "Help": ("help", "version", "completion", "man"),
    }

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name. Raises UsageError, also for a variable that no command reads."""
        name, listed, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, listed, rest
        command = load(name)
        is_help = name in self.sections["Help"]  # which helps whatever the variables are
        if not (is_help or ctx.resilient_parsing):
            check_variables(os.environ, command, lambda: map(load, COMMANDS))
        return name, command, rest


@click.group(
    cls=LazyGroup,
    commands=[click.Command(name, short_help=entry.summary) for name, entry in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """A Kubernetes service proxy for Linux nodes that programs IPVS."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(output.run(cli, arguments))
