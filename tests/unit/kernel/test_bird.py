"""The control socket of BIRD: what its answers mean. They are those of BIRD 2.0.12 (tests/kernel/test_bird.py)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kroute.kernel.bird import Bird, BirdError, Session

GREETING = "0001 BIRD 2.0.12 ready.\n"
PROTOCOLS = """2002-Name       Proto      Table      State  Since         Info
1002-device1    Device     ---        up     13:31:10.551
1006-
1002-kroute_vips4 Static     kroute4    up     13:31:10.551
1006-  Channel ipv4
     State:          UP
     Routes:         2 imported, 0 exported, 2 preferred
 \n1002-kroute-10.0.0.2 BGP        ---        up     13:31:15.082  Established
1006-  BGP state:          Established
     Neighbor address: 10.0.0.2
     Neighbor AS:      64513
     Local AS:         64512
   Channel ipv4
     Routes:         0 imported, 2 exported, 0 preferred
   Channel ipv6
     Routes:         1 imported, 3 filtered, 4 exported, 1 preferred
 \n1002-kroute-10.0.0.3 BGP        ---        start  13:31:45.477  Active        Error: BFD session down
1006-  BGP state:          Active
     Neighbor address: 10.0.0.3
     Neighbor AS:      4200000000
     Last error:       Error: BFD session down
   Channel ipv4
     State:          DOWN
 \n0000 \n"""
WITH_BFD = PROTOCOLS.replace(
    "1002-kroute_vips4", "1002-kroute_bfd BFD        ---        up     13:31:10.551\n1006-\n1002-kroute_vips4"
)
BFD = """1020-kroute_bfd:
 IP address                Interface  State      Since         Interval  Timeout
 10.0.0.2                  eth0       Up         13:31:16.000    0.300    0.900
 10.0.0.3                  ---        Down       13:31:45.477    1.000    0.000
0000 \n"""


@asynccontextmanager
async def answering(directory: Path, answer: Callable[[str], str], greeting: str = GREETING) -> AsyncIterator[Bird]:
    ended: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(is_over := asyncio.Event())
        writer.write(greeting.encode())
        while line := await reader.readline():
            writer.write(answer(line.decode().strip()).encode())
        writer.close()
        is_over.set()

    bird = Bird(directory / "bird.ctl", directory / "kroute.conf")
    async with await asyncio.start_unix_server(serve, bird.socket):
        yield bird
        for is_over in ended:
            await is_over.wait()


def files_of(bird: Bird) -> set[str]:
    return {path.name for path in bird.path.parent.iterdir()}


@pytest.mark.parametrize(
    ("answer", "has"),
    [("0023 3632233996\n", True), ("0023 7\n", False), ("9001 syntax error, unexpected CF_SYM_UNDEFINED\n", False)],
    ids=["this one", "another one", "one that is not kroute's"],
)
async def test_it_says_by_a_checksum_which_text_it_has(tmp_path: Path, answer: str, has: bool) -> None:
    async with answering(tmp_path, lambda _: answer) as bird:
        assert await bird.has("test") is has


async def test_sessions_with_the_routes_of_both_families(tmp_path: Path) -> None:
    async with answering(tmp_path, lambda _: PROTOCOLS) as bird:
        up, down = await bird.sessions()
    assert up == Session("kroute-10.0.0.2", "Established", "13:31:15.082", "10.0.0.2", 64513, 1, 6)
    assert (down.state, down.asn, down.last_error) == ("Active", 4200000000, "Error: BFD session down")


async def test_sessions_of_bfd_stand_beside_those_of_bgp(tmp_path: Path) -> None:
    async with answering(tmp_path, lambda command: BFD if command == "show bfd sessions" else WITH_BFD) as bird:
        assert [session.bfd for session in await bird.sessions()] == ["Up", "Down"]


async def test_a_configuration_is_read_once_then_put_in_place(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(command: str) -> str:
        asked.append(command)
        return "0002-Reading configuration\n0004 Reconfiguration in progress\n"

    async with answering(tmp_path, answer) as bird:
        await bird.configure("text")
    assert asked == [f'configure "{tmp_path}/kroute.new"']
    assert bird.read() == "text"
    assert bird.path.stat().st_mode & 0o777 == 0o600
    assert files_of(bird) == {"bird.ctl", "kroute.conf"}


async def test_a_refused_configuration_changes_nothing(tmp_path: Path) -> None:
    async with answering(tmp_path, lambda _: "0002-Reading\n8002 kroute.new:2:1 syntax error\n") as bird:
        bird.path.write_text("before")
        with pytest.raises(BirdError, match=r"kroute\.new:2:1 syntax error") as caught:
            await bird.configure("nonsense")
    assert caught.value.is_refusal
    assert bird.read() == "before"
    assert files_of(bird) == {"bird.ctl", "kroute.conf"}


async def test_what_is_no_bird_is_told_apart(tmp_path: Path) -> None:
    async with answering(tmp_path, lambda _: "", "HTTP/1.1 400 Bad Request\r\n") as bird:
        with pytest.raises(BirdError, match="what answers is not BIRD"):
            await bird.has("text")


async def test_without_its_directory_or_with_a_file_in_its_place_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bird = Bird(tmp_path / "file" / "bird.ctl", tmp_path / "file" / "kroute.conf")
    assert bird.read() is None
    with pytest.raises(BirdError, match="--bird-directory"):
        await bird.configure("text")
