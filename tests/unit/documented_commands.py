"""The commands in the pages: lines of shell blocks, cut into words as a shell does it, and `kroute …` in sentences."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

NO_SHELL = re.compile(
    r"[\w./-]+:(?: |$)|- |# \w+\.yaml$|<|async with|kube-apiserver ─|table ip|-A [A-Z]|\[Unit\]|\[Service\]|TCP "
)
"""How a block begins that holds no commands: YAML, markup, Python, a diagram, rules, a unit, a command's output."""

OPERATORS = {"|", "&&", ";", "||"}


class Command(NamedTuple):
    """A command as a page has it. `is_whole`: it stands in a block, and not in a sentence, which may shorten it."""

    page: str
    words: tuple[str, ...]
    is_whole: bool = True

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def blocks(text: str) -> Iterator[str]:
    """The code blocks of a page: fenced ones without a language or for a shell, and indented ones, also in lists."""
    fenced = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    yield from (code for language, code in fenced.findall(text) if language in {"", "sh", "bash", "console"})
    text = fenced.sub("", text)
    block: list[str] = []
    depth = 0
    before = ""
    for line in [*text.splitlines(), "end"]:
        indent = len(line) - len(line.lstrip())
        in_list = re.match(r" *(?:\d+\.|-) ", before) is not None or (0 < depth < 4 and before.startswith(" "))
        if block and (indent >= 4 or not line):
            block.append(line)
        elif indent >= 4 and not before.strip() and not line.lstrip().startswith("|"):
            block = [line]
        elif block:
            yield "\n".join(block)
            block = []
        if line:
            depth = indent if not in_list else depth
        before = line


def logical_lines(block: str) -> Iterator[str]:
    """The lines of a shell, with those that `\\` or an open quotation continues joined."""
    waiting = ""
    for line in block.splitlines():
        waiting = f"{waiting}\n{line}".strip() if waiting else line.strip()
        if waiting.endswith("\\"):
            waiting = waiting[:-1]
        elif waiting.count("'") % 2 == 0 or "#" in waiting.split("'")[0]:
            yield waiting
            waiting = ""
    assert not waiting.strip(), waiting


def commands_of(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line: of a pipeline, of a list, of `NAME=$(...)`; without comments and redirections."""
    assigned = re.fullmatch(r"\w+=\$\((.*)\)", line)
    lexer = shlex.shlex(assigned[1] if assigned else line, posix=True, punctuation_chars="|;&>")
    lexer.whitespace_split = True
    command: list[str] = []
    words = list(lexer)
    while words:
        word = words.pop(0)
        if word in OPERATORS:
            yield tuple(command)
            command = []
        elif word == ">":
            words.pop(0)
        elif word != "…":
            command.append(word)
    if command:
        yield tuple(command)


def commands_of_page(page: Path) -> Iterator[Command]:
    """All commands of a page, those of its blocks first."""
    text = page.read_text()
    for block in blocks(text):
        first = block.strip().splitlines()[0] if block.strip() else ""
        if not first or NO_SHELL.match(first):
            continue
        shows_output = first.startswith(("# kroute", "$ "))
        for line in [first.lstrip("#$ ")] if shows_output else logical_lines(block):
            if line and not line.startswith("#"):
                yield from (Command(page.name, words) for words in commands_of(line))
    for inline in re.findall(r"`(kroute [a-z][^`\n]*)`", text):
        yield from (Command(page.name, words, is_whole=False) for words in commands_of(inline.replace("...", "")))


def commands() -> list[Command]:
    """The commands of all pages."""
    return [command for page in PAGES for command in commands_of_page(page)]
