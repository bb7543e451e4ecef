"""The iptables tools as processes: one that does not end or cannot be started is an error like any other."""

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.iptables import tools
from kroute.kernel.iptables.tools import Variant, XtablesTools

NFT = Variant(socket.AF_INET, "nft")


@pytest.fixture
def pid_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an iptables-nft-save that never ends writes its process id."""
    tool, pid_file = tmp_path / "iptables-nft-save", tmp_path / "pid"
    tool.write_text(f"#!/bin/sh\necho $$ > {pid_file}\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return pid_file


async def test_one_that_does_not_end_is_ended(pid_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "LONGEST", 2.0)
    with pytest.raises(KernelError, match="did not end within") as raised:
        await XtablesTools().save(NFT)
    assert raised.value.errno == errno.ETIMEDOUT
    pid = await asyncio.to_thread(pid_file.read_text)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


async def test_a_legacy_table_that_is_not_in_use_is_empty_and_no_tool_is_asked() -> None:
    """A kernel without legacy tables has no file that lists them; the tool would fail there."""
    for family in (socket.AF_INET, socket.AF_INET6):
        assert await XtablesTools().save(Variant(family, "legacy"), "no-such-table") == ""


async def test_one_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(KernelError, match="cannot start iptables-nft-save: Too many open files") as raised:
        await XtablesTools().save(NFT)
    assert raised.value.errno == errno.EMFILE
