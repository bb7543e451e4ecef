"""`kroute status`: one screen, exit codes for scripts, and a wait that ends by itself."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from kroute.cli import status as module
from kroute.inspect import agent_socket
from kroute.inspect.status import Served, Severity, Source, State, Status, StatusProblem, with_problems
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.objects import RealServerState, VirtualServerOptions, VirtualServerState
from tests.unit.command_line import exit_code

READY = Status(
    node="node1",
    state=State.READY,
    version="1.2.3",
    started="2026-01-01T00:00:00Z",
    firewall="nftables",
    served=Served(12, 30, 70, 2, 0, 0, 103, 20),
    last_resync="2026-01-01T01:00:00Z",
    last_look="2026-01-01T01:10:30Z",
    source=Source("api", connected=True, objects={"Service": 12}),
)
OF_A_SERVICE = StatusProblem(Severity.WARNING, "default/web", "InvalidAnnotation", "x\x1b[2J is wrong", "correct it")
OF_THE_NODE = StatusProblem(Severity.FAIL, "", "ApiUnreachable", "the API server does not answer", "see kroute check")


@asynccontextmanager
async def agent(state_dir: Path, found: Status) -> AsyncIterator[None]:
    async def answer(_about: str) -> bytes:
        return msgspec.json.encode(found)

    async with agent_socket.serve(state_dir, {"status": answer}):
        yield


async def asked(state_dir: Path, found: Status, *arguments: str) -> int:
    async with agent(state_dir, found):
        return await asyncio.to_thread(exit_code, "status", "--state-dir", state_dir, *arguments)


async def test_a_node_without_problems_fits_on_a_screen_and_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asked(tmp_path, READY) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "kroute 1.2.3 on node1: ready, all right"
    assert "12 Services, 30 virtual servers, 70 real servers; 2 virtual servers refuse" in lines[1]
    assert len(lines) < 24
    assert max(map(len, lines)) <= 120


async def test_problems_come_with_their_next_steps_and_end_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asked(tmp_path, with_problems(READY, [OF_A_SERVICE] * 30 + [OF_THE_NODE])) == 1
    text = capsys.readouterr().out
    assert text.startswith("kroute 1.2.3 on node1: ready, 31 problems\n")
    assert text.index("FAIL     this node: ApiUnreachable") < text.index("         -> see kroute check")
    assert "WARNING  default/web: InvalidAnnotation: x\\x1b[2J is wrong" in text
    assert "and 19 more" in text


async def test_programs_get_a_document_with_its_kind_and_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asked(tmp_path, with_problems(READY, [OF_A_SERVICE]), "-o", "json") == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["apiVersion"], document["kind"], document["state"]) == ("kroute.io/v1", "Status", "ready")
    assert document["problems"][0]["message"] == OF_A_SERVICE.message


class KernelOnly(Ipvs):
    """A kernel with one virtual server."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def read(self) -> dict[tuple[int, str, int], VirtualServerState]:
        reals = {("10.244.1.5", 80): RealServerState(1, active=3)}
        return {(6, "10.96.0.10", 80): VirtualServerState(VirtualServerOptions("rr"), reals)}


async def test_without_an_agent_it_says_what_the_kernel_serves_and_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "Ipvs", KernelOnly)
    assert await asyncio.to_thread(exit_code, "status", "--state-dir", tmp_path) == 6
    text = capsys.readouterr().out
    assert "no agent answers" in text
    assert "in the kernel: 1 virtual servers, 1 real servers" in text
    assert "systemctl start kroute" in text


async def test_a_kernel_that_does_not_answer_either_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refusing(KernelOnly):
        async def open(self) -> None:
            raise KernelError("the kernel has no IPVS")

    monkeypatch.setattr(module, "Ipvs", Refusing)
    assert await asyncio.to_thread(exit_code, "status", "--state-dir", tmp_path) == 6
    text = capsys.readouterr().out
    assert "serves      not known" in text
    assert "the kernel has no IPVS" in text


async def waited(*looks: Status, seconds: float = 10.0) -> tuple[Status, str, float]:
    """Wait with these statuses, one after the other, the last one for ever; return the time as well."""
    now, more = 0.0, list(looks)

    async def look(left: float) -> Status:
        assert 2.0 <= left <= max(2.0, seconds)
        return more.pop(0) if len(more) > 1 else more[0]

    async def sleep(pause: float) -> None:
        nonlocal now
        assert pause > 0
        now += pause

    found, reason = await module.wait_until_settled(look, seconds, lambda: now, sleep)
    return found, reason, now


async def test_a_wait_ends_when_the_node_is_ready_and_everything_is_in_the_kernel() -> None:
    absent = Status(node="", state=State.NO_AGENT)
    starting = msgspec.structs.replace(READY, state=State.STARTING)
    pending = msgspec.structs.replace(READY, pending=3)
    found, reason, now = await waited(absent, starting, pending, READY)
    assert (found, reason, now) == (READY, "", 1.5)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (Status(node="", state=State.NO_AGENT), "no agent answers"),
        (msgspec.structs.replace(READY, state=State.STARTING), "the initial sync"),
        (msgspec.structs.replace(READY, pending=3), "changes of 3 Services"),
        (with_problems(READY, [OF_THE_NODE]), "the API server does not answer: see kroute check"),
    ],
)
async def test_a_wait_in_vain_ends_with_its_reason(last: Status, reason: str) -> None:
    _, said, now = await waited(last, seconds=2.2)
    assert reason in said
    assert now == pytest.approx(2.2)
    assert module.exit_code(last, waited=True) == (6 if last.state is State.NO_AGENT else 1)


async def test_a_wait_does_not_fail_for_a_problem_of_somebodys_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asked(tmp_path, with_problems(READY, [OF_A_SERVICE]), "--wait") == 0
    assert await asked(tmp_path, msgspec.structs.replace(READY, pending=3), "--wait", "0") == 1
    assert "kroute: not ready after 0 s: changes of 3 Services" in capsys.readouterr().err
