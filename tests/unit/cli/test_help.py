"""What a newcomer types first: `kroute`, `kroute help`, `kroute version`."""

import json
import platform
import re
from pathlib import Path

import msgspec
import pytest

from kroute import __version__
from kroute.cli.main import COMMANDS, LazyGroup, cli, load
from kroute.cli.parameters.run_options import COMMON, GROUPS, SETTINGS
from kroute.inspect import agent_socket
from kroute.inspect.status import State, Status
from kroute.model.document import encode
from tests.unit.command_line import exit_code


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",)], ids=" ".join)
def test_it_names_every_command_in_full_and_that_is_no_error(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert exit_code(*arguments) == 0
    text = capsys.readouterr().out
    assert "..." not in text.partition("Options:")[2]
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    for name, entry in COMMANDS.items():
        assert f" {name} {entry.summary}" in words


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_is_what_its_own_flag_shows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(name, "--help") == 0
    its_own = capsys.readouterr().out
    assert exit_code("help", name) == 0
    assert capsys.readouterr().out == its_own
    assert f"Usage: kroute {name} " in its_own


def flags_of(text: str) -> list[str]:
    """The options that a help text lists."""
    return re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)


def test_every_command_is_in_one_section() -> None:
    assert sorted(name for section in LazyGroup.sections.values() for name in section) == sorted(COMMANDS)


def test_every_setting_is_in_one_section() -> None:
    """A new setting of `kroute run` belongs into `GROUPS` of `kroute/cli/parameters/run_options.py`."""
    flags = [setting.flag for group in GROUPS.values() for setting in group]
    assert sorted(flags) == sorted(it.opts[0] for it in load("run").params)
    assert set(flags) >= COMMON


@pytest.mark.parametrize("name", ["run", "director"])
def test_the_help_shows_common_settings_and_all_when_asked(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    known = {it.opts[-1] for it in load(name).params}
    assert exit_code(name, "--help-all") == 0
    everything = capsys.readouterr().out
    assert sorted(flags_of(everything)) == sorted({*known, "--help", "--help-all"})
    assert "more settings" not in everything
    assert exit_code(name, "--help") == 0
    text = capsys.readouterr().out
    settings = SETTINGS.keys() & known
    assert set(flags_of(text)) & settings == COMMON & known
    assert f"{len(settings - COMMON)} more settings" in text
    assert len(text.splitlines()) < 130


@pytest.mark.parametrize("name", ["explain", "plan", "check", "migrate", "bundle"])
def test_the_settings_of_another_command_are_folded_away(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(name, "--help") == 0
    text = capsys.readouterr().out
    assert "--scheduler" not in text
    assert f"see `kroute {name} --help-all`" in " ".join(text.split())
    assert exit_code(name, "--help-all") == 0
    assert "--scheduler" in flags_of(capsys.readouterr().out)


def test_help_of_no_command_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("help", "frobnicate") == 2
    assert "No such command 'frobnicate'" in capsys.readouterr().err


def test_a_summary_is_never_cut_where_a_shell_shows_it() -> None:
    assert {name: it.get_short_help_str() for name, it in cli.commands.items()} == {
        name: entry.summary for name, entry in COMMANDS.items()
    }


def test_the_version_without_an_agent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code("version", "--state-dir", tmp_path, "-o", "json") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["kind"], said["version"], said["agent"]) == ("Version", __version__, None)
    assert said["python"] == platform.python_version()
    assert exit_code("version", "--state-dir", tmp_path) == 0
    assert capfd.readouterr().out.splitlines()[1] == "no agent answers on this node"


@pytest.mark.parametrize(
    ("running", "says"),
    [(__version__, f"agent  {__version__}"), ("0.1.0", "agent  0.1.0: another version runs until it is restarted")],
)
async def test_the_version_of_the_agent(
    running: str, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import asyncio

    async def answer(_about: str) -> bytes:
        return encode(msgspec.structs.replace(Status(node="node1", state=State.READY), version=running))

    async with agent_socket.serve(tmp_path, {"status": answer}):
        assert await asyncio.to_thread(exit_code, "version", "--state-dir", tmp_path) == 0
    assert capfd.readouterr().out.splitlines()[1] == says
