"""Every command is in the table of `kroute.cli.main`, which names its module."""

import pkgutil
from importlib import import_module

import click
import pytest

import kroute.cli
from kroute.cli.main import COMMANDS, cli, load

PLUGIN = "kroute.cli.kubectl"
"""Its commands are those of the program `kubectl-kroute`."""
LONG = 1000
"""Characters; the first sentence of every command's help is shorter."""


def test_every_command_of_the_folder_is_in_the_table() -> None:
    modules = [each.name for each in pkgutil.walk_packages(kroute.cli.__path__, "kroute.cli.")]
    found = {
        command.name: module
        for module in modules
        for command in vars(import_module(module)).values()
        if isinstance(command, click.Command) and command is not cli and not module.startswith(PLUGIN)
    }
    assert found == {name: f"kroute.cli.{entry.module or name}" for name, entry in COMMANDS.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says_of_itself(name: str) -> None:
    command = load(name)
    assert command.name == name
    listed = click.Command(name, help=COMMANDS[name].summary)
    assert command.get_short_help_str(LONG) == listed.get_short_help_str(LONG)
