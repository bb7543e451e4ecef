"""The agent answers questions on a Unix socket that only its owner can open."""

import asyncio
import contextlib
import shutil
import stat
from pathlib import Path

import pytest

from kroute.inspect import agent_socket
from tests.unit.watching import PATIENCE, eventually, running


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


@pytest.mark.parametrize("damage", ["removed", "replaced", "moved", "with its directory"])
async def test_a_socket_that_somebody_takes_away_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    async def answer(about: str) -> bytes:
        return about.encode()

    async def is_answered() -> bool:
        with contextlib.suppress(agent_socket.AgentUnreachableError):
            return await agent_socket.ask(state_dir, "echo yes") == b"yes"
        return False

    monkeypatch.setattr(agent_socket, "LOOK_EVERY", 0.001)
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    path = state_dir / agent_socket.NAME
    async with agent_socket.serve(state_dir, {"echo": answer}) as keep, running(keep()):
        for _ in range(2):
            match damage:
                case "removed":
                    path.unlink()
                case "replaced":
                    path.unlink()
                    path.touch()
                case "moved":
                    path.rename(tmp_path / "elsewhere")
                case _:
                    shutil.rmtree(state_dir)
            async with asyncio.timeout(PATIENCE):
                while not await is_answered():  # noqa: ASYNC110  the answer sets no event here
                    await asyncio.sleep(0.002)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_a_socket_that_is_there_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    look = agent_socket._identity
    monkeypatch.setattr(agent_socket, "_identity", lambda path: looks.append(path) or look(path))
    monkeypatch.setattr(agent_socket, "LOOK_EVERY", 0.001)
    async with agent_socket.serve(tmp_path, {}) as keep, running(keep()):
        before = look(tmp_path / agent_socket.NAME)
        await eventually(lambda: len(looks) > 5)
        assert look(tmp_path / agent_socket.NAME) == before


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
