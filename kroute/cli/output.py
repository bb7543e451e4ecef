"""The output of all commands, and their exit codes.

Exit codes: 0 done, 1 the node or the cluster refuses, 2 the command line is wrong. A command may have more. Results go
to standard output, as text or in a format for programs. Reasons for a failure go to standard error.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import msgspec

DONE, FAILURE, USAGE = 0, 1, 2
"""The exit codes of all commands."""

T = TypeVar("T")


class CommandRefusedError(Exception):
    """Ends a command with a sentence on standard error and FAILURE."""


@contextmanager
def refusing(*errors: type[Exception]) -> Iterator[None]:
    """End the command with the message of any of these errors."""
    try:
        yield
    except errors as error:
        raise CommandRefusedError(str(error)) from error


def complain(sentence: object) -> None:
    """Write a line to standard error, with the program's name."""
    click.echo(f"kroute: {sentence}", err=True)


def host_port(address: str, port: int) -> str:
    """An address and port as people write them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def show(found: T, how: str, draw: Callable[[T], None]) -> None:
    """Write `found` as `json` or `yaml`, in the order of its fields.

    For any other format, `draw` prints it for people.
    """
    if how not in {"json", "yaml"}:
        draw(found)
        return
    encoded = msgspec.json.encode(found)
    if how == "json":
        text = msgspec.json.format(encoded) + b"\n"
    else:
        import yaml  # noqa: PLC0415  0.02 s for every command, and few need it

        text = yaml.safe_dump(msgspec.json.decode(encoded), sort_keys=False).encode()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def run(command: click.Command, arguments: list[str] | None) -> int:
    """Run a command line and return its exit code. An error becomes one line."""
    try:
        code: Any = command.main(args=arguments, prog_name="kroute", standalone_mode=False)
    except CommandRefusedError as refusal:
        complain(refusal)
        return FAILURE
    except click.ClickException as error:
        complain(" ".join(error.format_message().split()))
        return USAGE
    except click.Abort:
        return FAILURE
    return code if isinstance(code, int) else DONE
