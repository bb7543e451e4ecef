"""Checks of nodes: what passes, and how many results in a row change a verdict."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kroute.director.probes import NodeProbes
from kroute.http.probes import ProbeState, check
from kroute.model.probes import Probe, ProbeKind, ProbeSettings
from tests.unit.watching import PATIENCE, eventually, running
from tests.virtual_time import virtual

TENANT = frozenset({"default"})


@asynccontextmanager
async def listener(answer: bytes | None) -> AsyncIterator[int]:
    """A port that sends this answer to every client; None: it never answers."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if answer is not None:
            await reader.readline()
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("kind", "answer", "reason"),
    [
        (ProbeKind.HTTP, b"HTTP/1.1 200 OK\r\n\r\n", None),
        (ProbeKind.HTTP, b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "answered 503"),
        (ProbeKind.HTTP, b"", "answered nothing"),
        (ProbeKind.HTTP, b"SSH-2.0\r\n", "answered nothing"),
        (ProbeKind.HTTP, b"x" * 200_000, "answered with a line that is too long"),
        (ProbeKind.HTTP, None, "no answer within 0.2 s"),
        (ProbeKind.CONNECT, None, None),
        (ProbeKind.REACH, None, None),
    ],
    ids=["200", "503", "closed", "not HTTP", "endless", "silent", "connected", "reached"],
)
async def test_what_passes(kind: ProbeKind, answer: bytes | None, reason: str | None) -> None:
    timeout = 0.2 if reason and "within" in reason else PATIENCE  # an answer comes as soon as the machine has time
    async with listener(answer) as port:
        assert await check(Probe(kind, "127.0.0.1", port), timeout) == reason


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (ProbeKind.HTTP, "Connection refused"),
        (ProbeKind.CONNECT, "Connection refused"),
        (ProbeKind.REACH, None),
    ],
)
async def test_a_refusal_only_shows_that_a_node_is_there(kind: ProbeKind, reason: str | None) -> None:
    async with listener(None) as port:
        pass
    assert await check(Probe(kind, "127.0.0.1", port), PATIENCE) == reason


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EADDRNOTAVAIL])
async def test_a_connection_that_this_machine_cannot_make_is_no_result(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def connect(*_: object) -> None:
        raise OSError(number, "lacking")

    monkeypatch.setattr(asyncio, "open_connection", connect)
    with pytest.raises(OSError, match="lacking"):
        await check(Probe(ProbeKind.CONNECT, "127.0.0.1", 80), PATIENCE)


def test_the_first_result_counts_at_once_and_later_ones_in_a_row() -> None:
    verdict = ProbeState(ProbeSettings(failures=3, successes=2))
    results = [True, False, False, True, False, False, False, True, False, True, True]
    changes = [verdict.take(result) for result in results]
    assert [at for at, changed in enumerate(changes) if changed] == [0, 6, 10]
    assert verdict.passes


async def test_a_node_that_fails_and_recovers_is_told_of_and_one_not_needed_is_forgotten() -> None:
    told = asyncio.Event()
    probes = NodeProbes(ProbeSettings(interval=0.01, timeout=PATIENCE, failures=2, successes=2), told.set)
    async with running(probes.run()):
        async with listener(None) as port:
            probe = Probe(ProbeKind.CONNECT, "127.0.0.1", port)
            probes.want({probe: TENANT})
            assert not probes.settled
            await eventually(lambda: probes.settled)
            assert probes.failing == frozenset()
        await eventually(lambda: probes.failing == {probe})
        assert told.is_set()
        probes.want({probe: frozenset()})
        assert probes.failing == frozenset()
        assert probes.settled


@virtual()
async def test_very_many_checks_begin_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[tuple[float, Probe]] = []

    async def look(probe: Probe, _timeout: float) -> str | None:
        began.append((asyncio.get_running_loop().time(), probe))
        return None

    monkeypatch.setattr("kroute.http.probes.check", look)
    monkeypatch.setattr("kroute.director.probes.MOST_A_SECOND", 20)
    probes = NodeProbes(ProbeSettings(interval=1.0), lambda: None)
    few, many = ([Probe(ProbeKind.REACH, f"10.0.0.{number}", 80) for number in range(count)] for count in (10, 60))
    async with running(probes.run()):
        probes.want(dict.fromkeys(few, TENANT))
        await asyncio.sleep(2.9)
        assert len(began) == 30, "few are checked as often as the settings say"
        probes.want(dict.fromkeys(many, TENANT))
        await asyncio.sleep(3.5)
        assert probes.settled
    times = [at for at, _ in began]
    assert all(sum(at <= other < at + 1 for other in times) <= 21 for at in times)
