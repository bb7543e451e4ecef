"""A process without free file descriptors accepts nobody, costs no processor, says so once, and accepts later."""

import asyncio
import os
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from kroute.inspect import agent_socket

CLIENTS = 40
SECONDS = 4.0
"""asyncio tries to accept again each second."""


@asynccontextmanager
async def process(directory: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """`full_process`, and its port."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "tests.unit.http.full_process", str(directory)]
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        assert child.stdout is not None
        yield child, int(await child.stdout.readline())
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.communicate()


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_without_descriptors_it_waits_quietly_and_accepts_later(tmp_path: Path) -> None:
    async with asyncio.timeout(120), process(tmp_path) as (child, port):
        assert (await ask(port)).endswith(b"fine")
        soft, hard = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (open_files(child.pid), hard))

        clients = [asyncio.create_task(ask(port)) for _ in range(CLIENTS)]
        questions = [asyncio.create_task(agent_socket.ask(tmp_path, "say a")) for _ in range(CLIENTS)]
        await asyncio.sleep(1)
        began, used = time.monotonic(), processor_time(child.pid)
        await asyncio.sleep(SECONDS)
        share = (processor_time(child.pid) - used) / (time.monotonic() - began)
        assert not any(it.done() for it in (*clients, *questions))
        assert share < 0.25, "a busy loop uses all of a processor"

        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert all(it.endswith(b"fine") for it in await asyncio.gather(*clients))
        assert await asyncio.gather(*questions) == [b"a"] * CLIENTS

        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.close()
        lines = (await child.stderr.read()).decode().splitlines()
        assert await child.wait() == 0
    assert len(lines) == 1
    assert "resources.exhausted" in lines[0]
    assert "LimitNOFILE" in lines[0]
