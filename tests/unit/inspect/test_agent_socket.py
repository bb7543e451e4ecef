"""The agent answers questions on a Unix socket that only its owner can open."""

import asyncio
import contextlib
import stat
from pathlib import Path

import pytest

from kroute.inspect import agent_socket


async def test_a_question_gets_its_answer(tmp_path: Path) -> None:
    async def answer(about: str) -> bytes:
        return b"x" * int(about)

    async with agent_socket.serve(tmp_path, {"size": answer}):
        assert len(await agent_socket.ask(tmp_path, "size 1000000")) == 1_000_000


async def test_what_answers_other_questions_is_made_when_one_is_asked(tmp_path: Path) -> None:
    asked: list[str] = []

    async def answer(about: str) -> bytes:
        return about.encode()

    async def others() -> dict[str, agent_socket.Answer]:
        asked.append("others")
        return {"echo": answer}

    async with agent_socket.serve(tmp_path, {"say": answer}, others):
        assert await agent_socket.ask(tmp_path, "say yes") == b"yes"
        assert asked == []
        assert await agent_socket.ask(tmp_path, "echo no") == b"no"
        assert asked == ["others"]
        with pytest.raises(agent_socket.AgentUnreachableError, match="older version"):
            await agent_socket.ask(tmp_path, "weather")


async def test_an_older_agent_does_not_know_every_question(tmp_path: Path) -> None:
    async with agent_socket.serve(tmp_path, {}):
        with pytest.raises(agent_socket.AgentUnreachableError, match="older version"):
            await agent_socket.ask(tmp_path, "weather")


async def test_the_socket_is_private_and_replaces_a_dead_one(tmp_path: Path) -> None:
    (tmp_path / agent_socket.NAME).touch()
    async with agent_socket.serve(tmp_path, {}):
        mode = (tmp_path / agent_socket.NAME).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not (tmp_path / agent_socket.NAME).exists()


async def test_without_an_agent_the_error_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(agent_socket.AgentUnreachableError, match=str(tmp_path)):
        await agent_socket.ask(tmp_path, "show")


@pytest.mark.parametrize(
    "question",
    [
        b"\xff\xfe\n",
        b"\n",
        b" \n",
        b"size\n",
        b"size x\n",
        b"size -\xc3\xa9\n",
        b"size " + b"9" * 5000 + b"\n",
        b"x" * 1000000 + b"\n",
        b"no line",
        b"",
        b"size\x00 1\n",
    ],
    ids=lambda question: repr(question[:12]),
)
async def test_a_question_that_makes_no_sense_costs_its_connection(tmp_path: Path, question: bytes) -> None:
    async def answer(about: str) -> bytes:
        return b"x" * int(about)

    async with agent_socket.serve(tmp_path, {"size": answer}):
        reader, writer = await asyncio.open_unix_connection(tmp_path / agent_socket.NAME)
        writer.write(question)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() in {b"", agent_socket.UNKNOWN_QUESTION}
        writer.close()
        assert await agent_socket.ask(tmp_path, "size 3") == b"xxx"
