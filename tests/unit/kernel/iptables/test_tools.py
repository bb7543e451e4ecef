"""The iptables tools as processes: one that does not end or cannot be started is an error like any other."""

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.iptables import tools
from kroute.kernel.iptables.tools import Variant, XtablesTools

NFT = Variant(socket.AF_INET, "nft")


async def test_one_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "iptables-nft-save"
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def remember(*argv: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*argv, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remember)
    monkeypatch.setattr(tools, "LONGEST", 0.2)
    with pytest.raises(KernelError, match="did not end within") as raised:
        await XtablesTools().save(NFT)
    assert raised.value.errno == errno.ETIMEDOUT
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


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
