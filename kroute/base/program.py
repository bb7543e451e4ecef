"""Programs that are run for what they print: none may take forever, print without end, or leave others behind."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

LAST_WORDS = 5.0
"""Seconds in which a killed program has to be gone; what has left its session may hold its outputs longer."""


class Ended(NamedTuple):
    """A program that has ended: its exit code, and what it printed to standard output and to standard error."""

    code: int
    output: bytes
    errors: bytes


async def run(
    argv: Sequence[str],
    question: bytes = b"",
    *,
    seconds: float,
    most: int,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program that reads `question`, in a session of its own, which is killed with all that it has started.

    Raises TimeoutError after `seconds`, OverflowError for more than `most` bytes on one output, and OSError if it
    cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    pipes = (process.stdin, process.stdout, process.stderr)
    asking, answer, complaint = cast("tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]", pipes)
    asking.write(question)
    asking.close()
    try:
        async with asyncio.timeout(seconds):
            async with asyncio.TaskGroup() as group:
                output, errors = (group.create_task(_read(stream, most)) for stream in (answer, complaint))
            code = await process.wait()
    except ExceptionGroup as group_of_one:
        raise group_of_one.exceptions[0] from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):  # asyncio knows of the end when the outputs have been read to theirs
            async with asyncio.timeout(LAST_WORDS):
                await asyncio.gather(_discard(answer), _discard(complaint), process.wait())
    return Ended(code, output.result(), errors.result())


async def _read(stream: asyncio.StreamReader, most: int) -> bytes:
    text = bytearray()
    while piece := await stream.read(1 << 16):
        text += piece
        if len(text) > most:
            raise OverflowError("too long")
    return bytes(text)


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass
