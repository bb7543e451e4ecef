"""Run the real kubectl, so that contexts, credentials, plugins and proxies are those of the user's own calls."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import BinaryIO, NamedTuple

_LONGEST_COMPLAINT = 500
MOST_BYTES = 64 << 20
"""The most that one call may write: a node may be anybody's by now."""


class KubectlError(Exception):
    """kubectl cannot be run, did not end in time, or refused. The message is one sentence."""


class Output(NamedTuple):
    """What a call has written, and its exit code."""

    code: int
    out: bytes
    complaint: str


class Kubectl:
    """Calls kubectl with these global flags, such as `--context=NAME`. No more than `at_once` calls run at a time."""

    def __init__(self, flags: Sequence[str], *, at_once: int, seconds: float) -> None:
        """`seconds` is how long one call may take."""
        self.seconds = seconds
        self._flags = tuple(flags)
        self._turns = asyncio.Semaphore(at_once)

    async def get(self, path: str) -> bytes:
        """The answer of the API server to GET. Raises KubectlError."""
        output = await self.call("get", "--raw", path)
        if output.code:
            raise KubectlError(output.complaint or f"kubectl ended with {output.code}")
        return output.out

    async def call(self, *arguments: str) -> Output:
        """Run one command and collect its output. Raises KubectlError if it cannot be run or does not end in time."""
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlError("kubectl is not in PATH: install it, or run `kroute` on the node itself")
        async with self._turns, _pipe() as (out, stdout), _pipe() as (complaint, stderr):
            with stdout, stderr:
                process = await asyncio.create_subprocess_exec(
                    program, *self._flags, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=stdout, stderr=stderr
                )
            try:
                async with asyncio.timeout(self.seconds):
                    said, complained = await asyncio.gather(_read(out), _read(complaint))
                    await process.wait()
            except TimeoutError:
                raise KubectlError(f"no answer within {self.seconds:g} s") from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        return Output(process.returncode or 0, said, _last_line(complained))


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, BinaryIO]]:
    """A reader, and the file whose writers it hears, which the caller closes.

    Pipes of asyncio's own would have the end of a process wait for the end of its outputs: for ever if nobody reads on,
    and for a credential plugin that kubectl has left behind.
    """
    reader = asyncio.StreamReader()
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as heard, os.fdopen(write, "wb", buffering=0) as written:
        protocol = partial(asyncio.StreamReaderProtocol, reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(protocol, heard)
        try:
            yield reader, written
        finally:
            transport.close()


async def _read(stream: asyncio.StreamReader) -> bytes:
    """Everything that comes, up to MOST_BYTES. Raises KubectlError for more."""
    pieces: list[bytes] = []
    left = MOST_BYTES
    while piece := await stream.read(1 << 16):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise KubectlError(f"the answer is longer than {MOST_BYTES >> 20} MiB")
    return b"".join(pieces)


def _last_line(complaint: bytes) -> str:
    """The last line that says something beside the exit code, which kubectl adds."""
    said = (line for line in complaint.decode(errors="replace").splitlines() if line.strip())
    lines = [line for line in said if not line.startswith("command terminated with exit code")]
    return lines[-1].strip()[:_LONGEST_COMPLAINT] if lines else ""
