"""The iptables tools as processes: one that does not end or cannot be started is an error like any other."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.iptables import tools
from kroute.kernel.iptables.tools import Variant, run, save, write
from kroute.kernel.iptables.xtables import missing_tools

NFT = Variant(socket.AF_INET, "nft")


LEGACY = Variant(socket.AF_INET, "legacy")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Make a shell script take the place of a tool."""

    def make(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return make


async def test_one_that_does_not_end_is_ended_with_what_it_has_started(
    tool: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool("iptables-nft-save", "sleep 600")
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def remember(*argv: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*argv, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remember)
    monkeypatch.setattr(tools, "LONGEST", 0.2)
    with pytest.raises(KernelError, match="did not end within") as raised:
        await save(NFT)
    assert raised.value.errno == errno.ETIMEDOUT
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


async def test_a_legacy_table_that_is_not_in_use_is_empty_and_no_tool_is_asked() -> None:
    """A kernel without legacy tables has no file that lists them; the tool would fail there."""
    for family in (socket.AF_INET, socket.AF_INET6):
        assert await save(Variant(family, "legacy"), "no-such-table") == ""


async def test_one_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(KernelError, match="cannot start iptables-nft-save: Too many open files") as raised:
        await save(NFT)
    assert raised.value.errno == errno.EMFILE


async def test_one_that_prints_without_end_is_ended(
    tool: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "LARGEST", 1 << 20)
    tool("iptables-nft-save", "exec yes")
    with pytest.raises(KernelError, match="iptables-nft-save prints more than 1 MiB") as raised:
        await save(NFT)
    assert raised.value.errno == errno.EFBIG


async def test_all_of_a_long_output_is_read_and_all_of_a_long_input_is_written() -> None:
    text = "x" * (1 << 22)
    assert await run(["cat"], text) == text


async def test_what_a_tool_complains_of_is_one_line_without_its_hints(tool: Callable[[str, str], None]) -> None:
    said = "iptables-restore v1 (legacy): Set X doesn't exist.\n\nError occurred at line: 3\nTry `iptables-restore -h'"
    tool("iptables-legacy-restore", f'cat >&2 <<"END"\n# Warning: more\n{said}\nEND\nexit 2')
    with pytest.raises(KernelError) as raised:
        await write(LEGACY, "nat", ["-A X -j RETURN"])
    complaint = "iptables-legacy-restore failed: iptables-restore v1 (legacy): Set X doesn't exist; trying later"
    assert (str(raised.value), raised.value.errno) == (complaint, None)


async def test_rules_are_read_again_if_a_set_goes_meanwhile(tool: Callable[[str, str], None], tmp_path: Path) -> None:
    gone = 'echo "ip6tables-save v1.8.9 (legacy): Set with index 10 in kernel doesn\'t exist." >&2; exit 2'
    times = tmp_path / "times"
    tool("iptables-nft-save", f"echo x >> {times}; [ $(wc -l < {times}) = 3 ] && echo '*nat' && exit 0; {gone}")
    assert await save(NFT) == "*nat\n"
    with pytest.raises(KernelError, match="Set with index 10"):
        await save(NFT)
    assert len(times.read_text().split()) == 3 + tools.SAVES
    tool("iptables-nft-save", "echo no >&2; exit 2")
    with pytest.raises(KernelError, match="no; trying later"):
        await save(NFT)


async def test_a_lock_that_another_program_keeps_is_worth_another_attempt_soon(
    tool: Callable[[str, str], None],
) -> None:
    tool("iptables-legacy-restore", "echo Another app is currently holding the xtables lock. >&2; exit 4")
    with pytest.raises(KernelError, match="holding the xtables lock; trying later") as raised:
        await write(LEGACY, "nat", [])
    assert raised.value.errno == errno.EAGAIN


def test_the_first_missing_tool_is_named(tool: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[0])
    tool("iptables-legacy-save", "")
    assert missing_tools() == ["iptables-legacy-restore is not installed; install the package iptables"]
    for name in ("iptables-legacy-restore", "ip6tables-legacy-save", "ip6tables-legacy-restore"):
        tool(name, "")
    assert missing_tools() == []
