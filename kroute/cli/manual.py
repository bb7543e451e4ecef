"""What the command line says of itself: `kroute help`, `kroute completion` and `kroute man`.

The scripts that complete words in a shell are click's: they call kroute itself for each completion, which asks the
agent for names of Services. Man pages are made from the same texts as `--help`.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import cleandoc
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from kroute import __version__
from kroute.cli.terminal.output import DONE, EXIT_CODES, refusing


def complete_command(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The commands that begin so."""
    return [name for name in sorted(import_module("kroute.cli.main").COMMANDS) if name.startswith(incomplete)]


@click.command("help")
@click.argument("name", required=False, metavar="[COMMAND]", shell_complete=complete_command)
@click.pass_context
def show_help(context: click.Context, *, name: str | None) -> int:
    """Show the help of kroute, or of COMMAND, as `kroute COMMAND --help` does."""
    root = context.find_root()
    words = [] if name is None else [name]
    root.command.main([*words, "--help"], root.info_name, standalone_mode=False)
    return DONE


SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> int:
    """Write the script by which a shell completes commands, flags and names of Services.

    \b
    bash:  kroute completion bash > /etc/bash_completion.d/kroute
    zsh:   kroute completion zsh > /usr/local/share/zsh/site-functions/_kroute
    fish:  kroute completion fish > ~/.config/fish/completions/kroute.fish

    For this shell alone, in bash or zsh: source <(kroute completion bash).
    """
    main = import_module("kroute.cli.main")
    kind = SHELLS[shell]
    # Not BashComplete's own method: it starts bash to ask for its version.
    click.echo(ShellComplete.source(kind(main.cli, {}, main.PROGRAM, main.COMPLETION_VARIABLE)))
    return DONE


SECTION = 8  # commands for administrators
_ROFF = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "~": r"\(ti", "^": r"\(ha", "…": "..."}


@click.command("man")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def man(directory: Path) -> int:
    """Write the man pages of kroute and of each command into DIRECTORY.

    To read one: man -l DIRECTORY/kroute-show.8. Packages put them into /usr/share/man/man8.
    """
    with refusing(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        for name, page in pages().items():
            (directory / f"{name}.{SECTION}").write_text(page)
    return DONE


def pages() -> dict[str, str]:
    """Every page by its name, without the section."""
    main = import_module("kroute.cli.main")
    commands = {name: main.load(name) for name in main.COMMANDS}
    found = {"kroute": "\n".join(_page_of_all(main.cli, commands)) + "\n"}
    with click.Context(main.cli, info_name=main.PROGRAM, **main.cli.context_settings) as above:
        for name, command in commands.items():
            found[f"kroute-{name}"] = "\n".join(_page(command, click.Context(command, above, info_name=name))) + "\n"
    return found


def _page_of_all(group: click.Group, commands: dict[str, click.Command]) -> Iterator[str]:
    context = click.Context(group, info_name="kroute", **group.context_settings)
    yield from _head("kroute", group.help or "")
    yield from (".SH SYNOPSIS", r"\fBkroute\fR [\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]")
    yield from (".SH DESCRIPTION", *_paragraphs(group.help or ""), ".SH COMMANDS")
    for name, command in commands.items():
        yield from (".TP", rf"\fBkroute\-{_text(name)}\fR({SECTION})", *_paragraphs(_first_sentence(command)))
    yield from _options(group, context)
    yield from (".SH ENVIRONMENT", ".TP", r"\fBKROUTE_\fR\fIOPTION\fR")
    yield _text("The value of an option of most commands that is not given, named like it: KROUTE_CLUSTER_CIDR.")
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_CODES.items():
        yield from (".TP", str(code), _text(meaning))


def _page(command: click.Command, context: click.Context) -> Iterator[str]:
    yield from _head(f"kroute-{context.info_name}", _first_sentence(command))
    usage = [rf"\fI{_text(piece)}\fR" for piece in command.collect_usage_pieces(context)]
    yield from (".SH SYNOPSIS", " ".join([rf"\fBkroute {_text(str(context.info_name))}\fR", *usage]))
    yield from (".SH DESCRIPTION", *_paragraphs(command.help or ""))
    yield from _options(command, context)
    yield from (".SH SEE ALSO", rf"\fBkroute\fR({SECTION})")


def _head(name: str, summary: str) -> Iterator[str]:
    yield f'.TH "{name.upper()}" "{SECTION}" "" "kroute {__version__}" "kroute"'
    yield from (".SH NAME", rf"{_text(name)} \- {_text(' '.join(summary.split()).rstrip('.'))}")


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    records = [record for option in command.get_params(context) if (record := option.get_help_record(context))]
    records = [(names, text) for names, text in records if text]  # an argument has none
    if records:
        yield ".SH OPTIONS"
    for names, text in records:
        yield from (".TP", rf"\fB{_text(names)}\fR", *_paragraphs(text))


def _first_sentence(command: click.Command) -> str:
    """The first paragraph of a command's help, which is one sentence."""
    return (command.help or "").strip().partition("\n\n")[0]


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text. One that begins with a backspace keeps its lines, as click has it."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", cleandoc(text))):
        if number:
            yield ".PP"
        keeps_lines = paragraph.startswith("\b")
        lines = [line.strip() for line in paragraph.strip("\b\n ").splitlines()]
        if keeps_lines:
            yield from (".nf", *map(_text, lines), ".fi")
        else:
            yield _text(" ".join(lines))


def _text(text: str) -> str:
    """Text for roff: its special characters are escaped, and no line begins with a control character."""
    escaped = "".join(_ROFF.get(letter, letter) for letter in text)
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
