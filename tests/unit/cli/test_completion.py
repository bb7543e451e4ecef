"""A shell is told commands, flags, words and names of Services, at once, and nothing if nobody knows."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import msgspec
import pytest
from click.shell_completion import ShellComplete

from kroute.cli.main import COMMANDS, COMPLETION_VARIABLE, PROGRAM, cli
from kroute.inspect import agent_socket
from kroute.model.objects import ObjectKey
from tests.unit.command_line import exit_code
from tests.unit.watching import PATIENCE

SERVICES = [ObjectKey("kube-system", "dns"), ObjectKey("default", "web"), ObjectKey("default", "api")]


def completions(*words: str) -> list[str]:
    """Return what the last word may become, as click finds it for every shell."""
    *before, incomplete = words
    found = ShellComplete(cli, {}, PROGRAM, COMPLETION_VARIABLE).get_completions(list(before), incomplete)
    return [it.value for it in found]


@asynccontextmanager
async def agent(state_dir: Path) -> AsyncIterator[None]:
    async def answer(_about: str) -> bytes:
        return msgspec.json.encode(sorted(map(str, SERVICES)))

    async with agent_socket.serve(state_dir, {agent_socket.NAMES: answer}):
        yield


def test_commands_flags_and_choices() -> None:
    assert completions("") == list(COMMANDS)
    assert completions("sh") == ["show"]
    assert completions("help", "ver") == ["version"]
    assert completions("show", "--st") == ["--state-dir"]
    assert completions("--") == ["--version", "--help"]
    assert completions("show", "-o", "") == ["table", "wide", "json", "yaml", "name"]
    assert completions("migrate", "--from", "kube-r") == ["kube-router"]
    assert completions("completion", "") == ["bash", "zsh", "fish"]


def test_words_of_show() -> None:
    assert completions("show", "") == ["services", "service", "policies", "peers", "routes", "pod-routes"]
    assert completions("show", "services", "") == []


async def test_names_of_services_come_from_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_socket, "_COMPLETION_TIMEOUT", PATIENCE)
    async with agent(tmp_path):
        directory = ("--state-dir", str(tmp_path))
        assert await asyncio.to_thread(completions, "show", *directory, "service", "") == [
            "default/api", "default/web", "kube-system/dns",
        ]  # fmt: skip
        assert await asyncio.to_thread(completions, "show", *directory, "service", "k") == ["kube-system/dns"]
        assert await asyncio.to_thread(completions, "explain", *directory, "default/w") == ["default/web"]


def test_without_an_agent_there_are_no_names_and_no_words_about_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert completions("show", "--state-dir", str(tmp_path), "service", "") == []
    assert capfd.readouterr() == ("", "")


async def test_a_silent_agent_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(_about: str) -> bytes:
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(agent_socket, "_COMPLETION_TIMEOUT", 0.05)
    async with agent_socket.serve(tmp_path, {agent_socket.NAMES: answer}):
        assert await asyncio.to_thread(completions, "explain", "--state-dir", str(tmp_path), "") == []


def test_another_proxys_flag_does_not_stop_a_completion() -> None:
    assert completions("run", "--proxy-mode", "ipvs", "--cluster-c") == ["--cluster-cidr"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_for_this_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("completion", shell) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETION_VARIABLE}={shell}_complete" in script
    assert PROGRAM in script


BASH = """
source <(kroute completion bash)
COMP_WORDS=(kroute show ser); COMP_CWORD=2
_kroute_completion kroute ser show
printf '%s\\n' "${COMPREPLY[@]}"
complete -p kroute
"""


def test_bash_completes(tmp_path: Path) -> None:
    (tmp_path / "kroute").write_text(f'#!/bin/sh\nexec {sys.executable} -m kroute "$@"\n')
    (tmp_path / "kroute").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[:2] == ["services", "service"]
    assert "-F _kroute_completion kroute" in done.stdout


def test_every_command_can_be_completed_without_an_error() -> None:
    for name in COMMANDS:
        assert "--help" in completions(name, "--"), name
        assert isinstance(cli.commands[name], click.Command)
