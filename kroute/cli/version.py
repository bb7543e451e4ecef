"""`kroute version`: the version of this program, and of the agent that runs on this node."""

import asyncio
import platform
from pathlib import Path
from typing import ClassVar

import click
import msgspec

from kroute import __version__
from kroute.cli.parameters.run_options import with_settings
from kroute.cli.terminal.formats import output_option, show
from kroute.cli.terminal.output import DONE
from kroute.cli.terminal.screen import Screen
from kroute.inspect import status
from kroute.inspect.agent_socket import AgentUnreachableError
from kroute.model.document import Document


class Version(Document):
    """The versions of this program, of the Python that runs it, and of this node's agent: null if none answers."""

    kind: ClassVar[str] = "Version"

    version: str
    python: str
    agent: str | None

    def names(self) -> list[str]:
        """The version alone."""
        return [self.version]


@click.command()
@output_option
@with_settings("--state-dir")
def version(output: str, state_dir: Path) -> int:
    """Show the version of kroute, and of the agent that runs on this node."""
    show(Version(__version__, platform.python_version(), asyncio.run(_of_agent(state_dir))), output, print_version)
    return DONE


async def _of_agent(state_dir: Path) -> str | None:
    try:
        return (await status.ask(state_dir)).version
    except (AgentUnreachableError, msgspec.DecodeError):
        return None


def print_version(found: Version, screen: Screen) -> None:
    """Print the versions, and whether the agent is to be restarted."""
    screen.line(f"kroute {found.version} (Python {found.python})")
    if found.agent is None:
        screen.line("no agent answers on this node")
    elif found.agent != found.version:
        screen.line(f"agent  {found.agent}: another version runs until it is restarted", hang=7, fg="yellow")
    else:
        screen.line(f"agent  {found.agent}")
