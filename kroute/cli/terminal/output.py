"""What all commands have in common: how they end and write, and the help of a group of them.

Results go to standard output, as text or in a format for programs. Reasons for a failure go to standard error.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import EACCES, EPERM
from typing import Any, ClassVar

import click

from kroute.base.printable import printable

DONE, FAILURE, USAGE, NOT_SERVED, UNKNOWN, DIFFERENT, NO_AGENT = range(7)
EXIT_CODES: Mapping[int, str] = {
    DONE: "done, or all right",
    FAILURE: "the node or the cluster refuses, something is wrong, or it could not be found out",
    USAGE: "the command line, a variable or the configuration file is wrong; nothing was done",
    NOT_SERVED: "a client that was examined is refused or dropped",
    UNKNOWN: "no Service or pod has this name, or this address and port",
    DIFFERENT: "there is something to change: the kernel differs from the plan",
    NO_AGENT: "no agent answers, or it does not do what is asked about",
}
"""The exit codes of all commands, with what each means."""

AS_ROOT = "run this command as root, in the host's network namespace"
"""The next step where privileges are missing."""


class CommandRefusedError(Exception):
    """Ends a command with a sentence on standard error and an exit code."""

    def __init__(self, sentence: str, code: int = FAILURE) -> None:
        super().__init__(sentence)
        self.code = code


@contextmanager
def refusing(*errors: type[Exception], code: int = FAILURE, hint: str = "") -> Iterator[None]:
    """End the command with the message of any of these errors and this exit code. `hint` is added to the message."""
    try:
        yield
    except errors as error:
        from kroute.base.wording import with_path  # noqa: PLC0415  it loads msgspec, which the help does not need

        sentences = [with_path(error), hint or (AS_ROOT if lacks_privileges(error) else "")]
        raise CommandRefusedError("; ".join(filter(None, sentences)), code) from error


def lacks_privileges(error: Exception) -> bool:
    """Whether the system refused something because a privilege is missing."""
    return getattr(error, "errno", None) in {EPERM, EACCES}


def complain(sentence: object) -> None:
    """Write a line to standard error, with the program's name."""
    click.echo(f"kroute: {printable(str(sentence))}", err=True)


def _of_another_proxy(error: click.ClickException) -> str:
    """The sentence about an option that is not the command's, but kube-proxy's or kube-router's; else empty."""
    if not isinstance(error, click.NoSuchOption):
        return ""
    from kroute.cli.parameters.settings_command import hint  # noqa: PLC0415  few mistakes need these tables

    return hint(error.option_name, error.ctx.info_name or "" if error.ctx is not None else "")


def run(command: click.Command, arguments: list[str] | None, program: str = "kroute") -> int:
    """Run a command line and return its exit code. An error becomes one line."""
    try:
        code: Any = command.main(args=arguments, prog_name=program, standalone_mode=False)
    except CommandRefusedError as refusal:
        complain(refusal)
        return refusal.code
    except click.ClickException as error:
        complain(_of_another_proxy(error) or " ".join(error.format_message().split()))
        return USAGE
    except click.Abort:
        return FAILURE
    return code if isinstance(code, int) else DONE


class SectionGroup(click.Group):
    """A group whose help lists its commands in sections, each with its whole summary."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The headings, with the names of their commands, which are all that the group has."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command. Its summary is its first sentence, also where click would cut it."""
        cmd.short_help = cmd.short_help or " ".join((cmd.help or "").partition("\n\n")[0].split())
        super().add_command(cmd, name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as usual; without any argument show the help."""
        is_bare = not (args or ctx.resilient_parsing)
        return super().parse_args(ctx, ["--help"] if is_bare else args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the sections."""
        width = max(map(len, self.commands))
        for heading, section in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), self.commands[name].short_help or "") for name in section])
