"""The formats of every command that lists something: for people, for programs, and names alone."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from kroute.base.printable import printable
from kroute.cli.terminal.screen import Screen
from kroute.model.document import Document, encode

FORMATS = ("table", "wide", "json", "yaml", "name")
FOR_PROGRAMS = frozenset({"json", "yaml", "name"})

Command = TypeVar("Command", bound=Callable[..., Any])
Found = TypeVar("Found", bound=Document)


def output_option(command: Command) -> Command:
    """Add the options `--output`, whose value goes to `show`, and `--color`, which sets the context's colour."""
    command = click.option(
        "--color",
        type=click.Choice(("auto", "always", "never")),
        default="auto",
        show_default=True,
        expose_value=False,
        callback=_set_color,
        help="Whether to use colors. auto: on a terminal, unless the variable NO_COLOR is set or TERM is dumb.",
    )(command)
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default=FORMATS[0],
        show_default=True,
        help="How to print it. wide: all that is known, in lines of any length; name: names alone.",
    )(command)


def _set_color(context: click.Context, _parameter: click.Parameter, choice: str) -> None:
    """Tell `click.echo` whether to keep colours; None is for click to decide by the terminal (no-color.org)."""
    is_unwanted = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    context.color = {"always": True, "never": False}.get(choice, False if is_unwanted else None)


def show(found: Found, how: str, draw: Callable[[Found, Screen], None]) -> None:
    """Write a document in one of FORMATS. For people, `draw` writes it to a screen. JSON and YAML are exact."""
    if how == "name":
        for name in dict.fromkeys(found.names()):
            click.echo(printable(name))
    elif how == "json":
        click.echo(msgspec.json.format(encode(found)))
    elif how == "yaml":
        import yaml  # noqa: PLC0415  0.02 s for every command, and few need it

        text = yaml.safe_dump(msgspec.json.decode(encode(found)), sort_keys=False, allow_unicode=True)
        click.echo(text.encode(), nl=False)
    else:
        draw(found, Screen.of_this_process(how))
