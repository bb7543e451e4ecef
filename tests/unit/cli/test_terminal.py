"""What people see at 80 and 120 columns, and in a pipe: every column is there, and no digit is cut.

The golden files are in `tests/unit/golden/terminal/`. After a change that is meant, write them again with
`KROUTE_WRITE_GOLDEN=1 make unit`, and read the difference.
"""

import io
import os
import re
from contextlib import redirect_stdout
from pathlib import Path

import click
import msgspec
import pytest
from rich.console import Console
from rich.live import Live

from kroute.cli.show.live import RateList, drawn
from kroute.cli.status import print_status
from kroute.cli.terminal.formats import FORMATS, output_option
from kroute.cli.terminal.screen import Screen, TextTable
from tests.unit.cli.terminal_views import VIEWS
from tests.unit.command_line import exit_code

GOLDEN = Path(__file__).parents[1] / "golden" / "terminal"
SCREENS = {"80": Screen(80), "120": Screen(120), "piped": Screen(repeats=True), "wide": Screen(is_wide=True)}


def printed(view: str, screen: Screen) -> str:
    written = io.StringIO()
    with redirect_stdout(written):
        VIEWS[view].draw(VIEWS[view].found, screen)
    return written.getvalue()


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("view", VIEWS)
def test_it_is_printed_as_in_the_golden_file(view: str, screen: str) -> None:
    path = GOLDEN / f"{view.replace(' ', '_')}.{screen}"
    text = printed(view, SCREENS[screen])
    if "KROUTE_WRITE_GOLDEN" in os.environ:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("view", VIEWS)
def test_no_word_is_lost_at_any_width(view: str) -> None:
    whole = re.findall(r"\S+", printed(view, Screen()))
    for width in range(40, 200, 7):
        assert sorted(re.findall(r"\S+", printed(view, Screen(width)))) == sorted(whole), width


@pytest.mark.parametrize("view", VIEWS)
def test_a_line_is_longer_than_the_terminal_only_if_one_word_is(view: str) -> None:
    for width in (80, 120):
        lines = [line.strip() for line in printed(view, Screen(width)).splitlines() if len(line) > width]
        assert [line for line in lines if " " in line] == []


def test_each_line_of_a_pipe_names_its_virtual_server() -> None:
    lines = printed("show", Screen(repeats=True)).splitlines()
    assert sum(line.startswith("default/web  ") for line in lines) == 2
    assert sum(line.startswith("default/web  ") for line in printed("show", Screen()).splitlines()) == 1


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        TextTable("A", "B").add("a")


@pytest.mark.parametrize("command", ["show", "check", "explain 10.0.0.1:80", "plan", "migrate"])
def test_every_listing_has_the_same_formats(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*command.split(), "-o", "xml") == 2
    assert "', '".join(FORMATS) in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "choice", "is_terminal", "is_coloured"),
    [
        ({}, "auto", True, True),
        ({}, "auto", False, False),
        ({"NO_COLOR": "1"}, "auto", True, False),
        ({"NO_COLOR": ""}, "auto", True, True),
        ({"TERM": "dumb"}, "auto", True, False),
        ({"NO_COLOR": "1"}, "always", True, True),
        ({}, "always", False, True),
        ({}, "never", True, False),
    ],
)
def test_colors_are_for_terminals_unless_somebody_chose(
    variables: dict[str, str], choice: str, is_terminal: bool, is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    @output_option
    def command(output: str) -> None:
        screen = Screen.of_this_process(output)
        print_status(VIEWS["status"].found, screen)

    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    written = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", written)
    command.main(["--color", choice], standalone_mode=False)
    assert ("\x1b[" in written.getvalue()) == is_coloured


def test_the_width_is_that_of_the_terminal_and_a_pipe_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "97")
    monkeypatch.setattr("sys.stdout", io.StringIO())
    piped = Screen.of_this_process()
    assert (piped.width, piped.repeats) == (None, True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    terminal = Screen.of_this_process()
    assert (terminal.width, terminal.repeats) == (97, False)
    assert Screen.of_this_process("wide").width is None


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("how", ["table", "wide"])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_rates_that_do_not_fit_on_the_screen_are_counted(
    columns: int, how: str, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    [row] = VIEWS["show -w"].found.items
    rows = [msgspec.structs.replace(row, port=port) for port in range(10000, 10060)]
    lines = drawn(RateList(rows), how, height).plain.splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= columns
    text = "".join(lines)
    shown = len(re.findall(r"\]:\s*100\d\d", text))
    assert f"{60 - shown} more: use --filter" in " ".join(map(str.strip, lines))
    assert shown > 0 or columns == 40


def test_rates_that_fit_are_all_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert len(drawn(RateList(VIEWS["show -w"].found.items * 9), "table", 10).plain.splitlines()) == 10


def test_rates_that_are_redrawn_lose_nothing_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    screen = io.StringIO()
    console = Console(file=screen, width=80, force_terminal=True, color_system=None)
    with Live(console=console, auto_refresh=False) as live:
        live.update(drawn(VIEWS["show -w"].found, "table", 25), refresh=True)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "".join(shown.split()).startswith("".join(printed("show -w", Screen(80)).split()))
