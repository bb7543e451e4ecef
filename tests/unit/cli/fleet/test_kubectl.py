"""Calls of a kubectl that does not end, writes without end, or leaves a process behind, end in time."""

import asyncio
import os
from pathlib import Path

import pytest

from kroute.cli.fleet import kubectl as module
from kroute.cli.fleet.kubectl import Kubectl, KubectlError, Output
from tests.unit.watching import PATIENCE

LONG = "sleep 100"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


async def call(path: Path, script: str, seconds: float) -> Output:
    program = path / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return await Kubectl([], at_once=1, seconds=seconds).call("get", "nodes")


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_what_it_writes_and_its_exit_code_are_told(path: Path) -> None:
    found = await call(path, 'echo "said $*"; echo why >&2; exit 3', PATIENCE)
    assert found == Output(3, b"said get nodes\n", "why")


@pytest.mark.parametrize(
    "script",
    [f"exec {LONG}", f"{LONG} & echo $! >plugin; wait", f"{LONG} >&- 2>&- & echo $! >plugin; exec >&- 2>&-; wait"],
    ids=["itself", "and its plugin", "and has closed its outputs"],
)
async def test_one_that_does_not_end_is_given_up(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path)
    files = open_files()
    try:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(KubectlError, match=r"no answer within 0\.5 s"):
                await call(path, script, 0.5)
        await asyncio.sleep(0)
        assert open_files() == files
    finally:
        if (path / "plugin").exists():
            os.kill(int((path / "plugin").read_text()), 9)


async def test_one_that_writes_too_much_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(KubectlError, match="longer than 1 MiB"):
            await call(path, "exec cat /dev/zero", PATIENCE)
