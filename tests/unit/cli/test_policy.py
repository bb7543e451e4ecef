"""`kroute policy watch` shows refused packets as the agent logs them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from kroute.cli import policy
from kroute.cli.policy import narrowed
from kroute.cli.terminal.output import NO_AGENT, USAGE
from kroute.inspect import agent_socket, policies
from kroute.inspect.policies import Enforced
from kroute.inspect.refusals import Refusals, RefusedPacket, RefusedPacketList
from kroute.model.policy_plan import Direction
from tests.unit.command_line import exit_code

IN = RefusedPacket(
    *("2026-11-28T10:00:00.000Z", Direction.INGRESS, "TCP", "10.0.0.2", 40000, "shop/other"),
    *("10.0.0.1", 80, "shop/web", "shop", ["deny", "clients"], 25, "ingress-5e9b"),
)
OUT = RefusedPacket(
    *("2026-11-28T10:00:01.000Z", Direction.EGRESS, "ICMPv6", "fd00::1", None, "shop/web"),
    *("2001:db8::9", None, "", "shop", ["out"], 1, "egress-5e9b"),
)


OF_CLUSTER = msgspec.structs.replace(OUT, namespace="", policies=["web"])


class Agent:
    """Answers as an agent does that logs refused packets, one step of a story at each question; then it ends."""

    def __init__(self, story: Sequence[tuple[list[RefusedPacket], int]]) -> None:
        self.refusals = Refusals(0)
        self.asked: list[str] = []
        self._story = iter(story)

    async def answer(self, about: str) -> bytes:
        self.asked.append(about)
        step = next(self._story, None)
        if step is None:
            return b""
        packets, left_out = step
        for packet in packets:
            self.refusals.add(packet)
        self.refusals.leave_out(left_out)
        return await policies.answers_about(Enforced(None, None, None, self.refusals))[policies.REFUSED](about)


async def watched(agent: Agent, state_dir: Path, *words: str) -> int:
    async with agent_socket.serve(state_dir, {policies.REFUSED: agent.answer}):
        return await asyncio.to_thread(exit_code, "policy", "watch", "--state-dir", state_dir, *words)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "PAUSE", 0)


async def test_each_packet_is_a_line_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The last answer is that of an agent which has just started."""
    agent = Agent([([IN], 5), ([], 0), ([OUT, OF_CLUSTER], 9), ([], -14)])
    assert await watched(agent, tmp_path) == NO_AGENT
    written = capfd.readouterr()
    assert written.out.splitlines() == [
        (
            "2026-11-28T10:00:00.000Z TCP 10.0.0.2:40000 (shop/other) -> 10.0.0.1:80 (shop/web): ingress refused, "
            "isolated by shop: deny, clients and 23 more"
        ),
        "2026-11-28T10:00:01.000Z ICMPv6 fd00::1 (shop/web) -> 2001:db8::9: egress refused, isolated by shop: out",
        "2026-11-28T10:00:01.000Z ICMPv6 fd00::1 (shop/web) -> 2001:db8::9: egress refused, denied by web",
        "9 more were refused",
    ], "what was left out before the command began is not told"
    assert agent.asked == ["0", "1", "1", "3", "3"]
    assert "could not answer" in written.err


async def test_programs_get_a_line_for_each_answer_with_news(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    agent = Agent([([], 0), ([IN], 0), ([OUT], 0), ([], 0), ([], 9)])
    assert await watched(agent, tmp_path, "-o", "json", "--filter", "SHOP/OUT") == NO_AGENT
    lines = [msgspec.json.decode(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["RefusedPacketList"] * 2
    assert [[it["direction"] for it in line["items"]] for line in lines] == [["Egress"], []]
    assert [line["leftOut"] for line in lines] == [0, 9]


@pytest.mark.parametrize(
    ("text", "found"),
    [("", [IN, OUT]), ("other", [IN]), ("10.0.0.1", [IN]), ("2001:", [OUT]), ("shop/out", [OUT]), ("nobody", [])],
)
def test_packets_are_chosen_by_pod_policy_or_address(text: str, found: list[RefusedPacket]) -> None:
    assert narrowed(RefusedPacketList([IN, OUT], 2, 0), text).items == found


async def test_an_agent_that_logs_nothing_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with agent_socket.serve(tmp_path, policies.answers_about(Enforced(None, None, None))):
        assert await asyncio.to_thread(exit_code, "policy", "watch", "--state-dir", tmp_path) == NO_AGENT
    written = capfd.readouterr()
    assert (written.out, written.err.count("\n")) == ("", 1)
    assert "--policy-log" in written.err


@pytest.mark.parametrize("how", ["yaml", "name"])
def test_what_never_ends_is_no_document(how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code("policy", "watch", "-o", how, "--state-dir", tmp_path) == USAGE
    assert "-o table, wide or json" in capfd.readouterr().err
