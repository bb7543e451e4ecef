"""Man pages say what `--help` says. `tests/shells/` reads them with man."""

import re
from pathlib import Path

import pytest

from kroute.cli.main import COMMANDS, load
from kroute.cli.manual import pages
from tests.unit.command_line import exit_code

PAGES = pages()


def plain(page: str) -> str:
    """Return the text of a page without its requests, fonts and escapes, in one line."""
    text = re.sub(r"^\.\w+ ?|\\f[BIR]|\\&", "", page, flags=re.MULTILINE)
    for escape, character in ((r"\-", "-"), (r"\(aq", "'"), (r"\(ga", "`"), (r"\(ti", "~"), (r"\e", "\\")):
        text = text.replace(escape, character)
    return " ".join(text.split())


def test_each_command_has_a_page_and_the_first_page_names_all() -> None:
    assert set(PAGES) == {"kroute", *(f"kroute-{name}" for name in COMMANDS)}
    for name in COMMANDS:
        assert f"kroute-{name}(8)" in plain(PAGES["kroute"])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_option_with_its_text(name: str) -> None:
    page = plain(PAGES[f"kroute-{name}"])
    assert COMMANDS[name].summary.rstrip(".") in page
    command = load(name)
    for parameter in command.params:
        record = parameter.get_help_record(command.make_context(name, [], resilient_parsing=True))
        if record is not None and record[1]:
            assert " ".join(record[0].split()) in page
            assert " ".join(record[1].replace("…", "...").split()) in page


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_no_line_is_taken_for_a_request(page: str) -> None:
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".TP", ".PP", ".nf", ".fi"}
    assert page.isascii()


def test_they_are_written_into_a_directory(tmp_path: Path) -> None:
    assert exit_code("man", tmp_path / "man8") == 0
    assert {path.name: path.read_text() for path in (tmp_path / "man8").iterdir()} == {
        f"{name}.8": page for name, page in PAGES.items()
    }
