"""Completion in real shells, and the man pages as man reads them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kroute.cli.manual import pages

pytestmark = pytest.mark.shells

ZSH = """
compdef() { }
_describe() { print -rl -- "${(@P)3}" }
compadd() { print -rl -- "${(@P)5}" }
source <(kroute completion zsh)
words=(kroute migrate --from kube); CURRENT=4
_kroute_completion
words=(kroute sh); CURRENT=2
_kroute_completion
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which `kroute` is this tree's."""
    program = tmp_path / "kroute"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kroute "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def ran(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_zsh_completes_with_the_summaries(environment: dict[str, str]) -> None:
    lines = ran(environment, "zsh", "-f", "-c", ZSH).splitlines()
    assert lines[:2] == ["kube-proxy", "kube-router"]
    assert lines[2].startswith("show:Show what is served: virtual servers")
    assert lines[2].endswith("or Services, or one in full.")


def test_fish_completes(environment: dict[str, str]) -> None:
    script = 'kroute completion fish | source; complete -C "kroute show ser"; complete -C "kroute migrate --to "'
    lines = ran(environment, "fish", "--no-config", "-c", script).splitlines()
    assert lines == ["service", "services", "kube-proxy", "kube-router"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_correct_in_its_shell(shell: str, environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(ran(environment, "kroute", "completion", shell))
    ran(environment, shell, "-n", str(script))


def test_man_reads_each_page_without_a_warning(tmp_path: Path, environment: dict[str, str]) -> None:
    for name, page in pages().items():
        path = tmp_path / f"{name}.8"
        path.write_text(page)
        text = ran(environment | {"MANWIDTH": "80", "LC_ALL": "C.UTF-8"}, "man", "--warnings", "-l", str(path))
        assert all(heading in text for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"))
