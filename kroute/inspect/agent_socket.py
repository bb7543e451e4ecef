"""The agent's Unix socket: one question per connection, answered with JSON.

A question is a line with a name and an argument. The answer is everything until the connection closes. The socket is in
the state directory and has mode 0600: a user who may read it may read the node's IPVS table anyway.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from kroute.base.backoff import hindrance, retry_when_exhausted
from kroute.kernel.errors import KernelError
from kroute.settings import Settings

log = structlog.get_logger(__name__)

T = TypeVar("T")

Answer = Callable[[str], Awaitable[bytes]]
"""Answers one question. The argument is the rest of the question's line."""

NAME = "agent.sock"
STATUS = "status"
"""The question that `kroute.inspect.status` is about."""
SHARED = "shared"
"""The question that `kroute.inspect.shared_state` is about."""
SETTINGS, NAMES = "settings", "names"
"""The questions for the agent's settings, and for the names of all Services that it knows."""
UNKNOWN_QUESTION = b'{"error": "unknown question"}'
"""The answer to a question that this version of the agent does not know."""
ANSWER_TIMEOUT = 30.0
LOOK_EVERY = 10.0
"""Seconds between two looks whether the socket is still there."""
_QUESTION_TIMEOUT = 5.0
_COMPLETION_TIMEOUT = 1.0
"""Seconds. A shell waits for the names."""


class AgentUnreachableError(Exception):
    """No agent answers on this node."""


@asynccontextmanager
async def serve(
    state_dir: Path, answers: Mapping[str, Answer], others: Callable[[], Awaitable[Mapping[str, Answer]]] | None = None
) -> AsyncIterator[Callable[[], Coroutine[None, None, None]]]:
    """Answer questions on the state directory's socket while the block runs.

    `others` returns the answers to questions that are not in `answers`. What the block gets makes the socket again
    whenever it was removed or replaced, until cancelled.
    """

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_QUESTION_TIMEOUT):
                question, _, about = (await reader.readline()).decode().strip().partition(" ")
            answer = answers.get(question)
            if answer is None and others is not None:
                answer = (await others()).get(question)
            writer.write(await answer(about) if answer else UNKNOWN_QUESTION)
            await writer.drain()
        except (TimeoutError, OSError, UnicodeDecodeError, ValueError):
            pass  # the client has gone, or speaks another protocol
        except KernelError as error:
            log.warning("question.unanswered", question=question, error=str(error))
        finally:
            writer.close()

    path = state_dir / NAME

    async def bound() -> tuple[asyncio.Server, tuple[int, int] | None]:
        server = await asyncio.start_unix_server(answer_one, sock=_bind(path))
        return server, _identity(path)

    server, ours = await bound()

    async def keep() -> None:
        nonlocal server, ours
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if ours is None or _identity(path) != ours:
                server.close()
                server, ours = await retry_when_exhausted("making the socket for questions again", bound, hindrance)
                log.warning("socket.restored", path=str(path))

    try:
        yield keep
    finally:
        server.close()
        path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """What distinguishes a file from one that has replaced it; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _bind(path: Path) -> socket.socket:
    """A bound socket, not listening yet. At no moment could another user open it."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    unix_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    earlier = os.umask(0o177)
    try:
        unix_socket.bind(str(path))
    except OSError:
        unix_socket.close()
        raise
    finally:
        os.umask(earlier)
    return unix_socket


async def ask(state_dir: Path, question: str) -> bytes:
    """Ask this node's agent. Raises AgentUnreachableError if none answers, or it does not know the question."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(state_dir / NAME)
            with closing(writer):
                writer.write(question.encode() + b"\n")
                answer = await reader.read()
    except (OSError, TimeoutError) as error:
        why = _WHY.get(type(error)) or error.strerror or type(error).__name__
        raise AgentUnreachableError(f"no agent answers on {state_dir / NAME}: {why}") from None
    if answer == UNKNOWN_QUESTION:
        raise AgentUnreachableError(
            f"the agent on {state_dir / NAME} does not know the question {question.partition(' ')[0]!r}: "
            "it is an older version (upgrade it), or a director"
        )
    return answer


_WHY: Mapping[type[OSError], str] = {
    FileNotFoundError: "it does not exist",
    PermissionError: "run this as root",
    ConnectionRefusedError: "no agent listens there any more",
    TimeoutError: f"nothing came within {ANSWER_TIMEOUT:.0f} s",
}
"""What the errors of a question mean."""


async def ask_for(state_dir: Path, question: str, read: Callable[[bytes], T]) -> T:
    """Ask this node's agent, and read its answer with `read`, which raises DecodeError. Raises as `ask` does.

    An answer that cannot be read also raises AgentUnreachableError: it is of another version, or empty because the
    agent could not find it out.
    """
    answer = await ask(state_dir, question)
    try:
        return read(answer)
    except msgspec.DecodeError:
        why = "is of another version than this command" if answer else "could not answer; its log says why"
        raise AgentUnreachableError(f"the agent on {state_dir / NAME} {why}") from None


async def ask_settings(state_dir: Path) -> Settings | None:
    """The settings of the agent of this state directory, or None if no agent answers."""
    try:
        answer = await ask(state_dir, SETTINGS)
        return msgspec.json.decode(answer, type=Settings, dec_hook=lambda kind, text: kind(text))
    except (AgentUnreachableError, msgspec.DecodeError):
        return None


def ask_names(state_dir: Path) -> list[str]:
    """The names of the agent's Services as NAMESPACE/NAME, for completion; none if no agent answers soon."""

    async def asked() -> list[str]:
        async with asyncio.timeout(_COMPLETION_TIMEOUT):
            return msgspec.json.decode(await ask(state_dir, NAMES), type=list[str])

    try:
        return asyncio.run(asked())
    except (AgentUnreachableError, TimeoutError, msgspec.DecodeError):
        return []
