"""The agent keeps the newest refused packets, and answers with those that come after a number."""

from pathlib import Path

import pytest

from kroute.inspect import agent_socket, policies
from kroute.inspect.policies import Enforced
from kroute.inspect.refusals import NEWEST, Refusals, RefusedPacket, RefusedPacketList, decode_refusals
from kroute.model.policy_plan import Direction


def refused(source_pod: str = "shop/other", direction: Direction = Direction.INGRESS) -> RefusedPacket:
    ends = "10.0.0.2", 40000, source_pod, "10.0.0.1", 80, "shop/web"
    return RefusedPacket("2026-11-28T10:00:00.000Z", direction, "TCP", *ends, "shop", ["deny"], 1, "ingress-5e9b")


def numbers(found: RefusedPacketList | None) -> list[int]:
    assert found is not None
    return [packet.number for packet in found.items]


async def test_only_what_is_new_is_answered(tmp_path: Path) -> None:
    refusals = Refusals(1000)

    async def asked(number: int) -> RefusedPacketList | None:
        return await agent_socket.ask_for(tmp_path, f"{policies.REFUSED} {number}", decode_refusals)

    async with agent_socket.serve(tmp_path, policies.answers_about(Enforced(None, None, None, refusals))):
        found = await asked(0)
        assert (numbers(found), found and found.newest) == ([], 1000)
        refusals.add(refused())
        refusals.add(refused())
        refusals.leave_out(7)
        found = await asked(0)
        assert (numbers(found), found and found.newest, found and found.left_out) == ([1001, 1002], 1002, 7)
        assert numbers(await asked(1001)) == [1002]
        assert numbers(await asked(1002)) == []


def test_a_bounded_number_of_packets_is_kept() -> None:
    refusals = Refusals(0)
    for _ in range(3 * NEWEST):
        refusals.add(refused())
    assert numbers(refusals.after(0)) == [*range(2 * NEWEST + 1, 3 * NEWEST + 1)]


@pytest.mark.parametrize("enforced", [None, Enforced(None, None, None)])
async def test_an_agent_that_logs_nothing_says_so(tmp_path: Path, enforced: Enforced | None) -> None:
    async with agent_socket.serve(tmp_path, policies.answers_about(enforced)):
        assert await agent_socket.ask_for(tmp_path, f"{policies.REFUSED} 0", decode_refusals) is None


async def test_a_question_without_a_number_is_refused(tmp_path: Path) -> None:
    async with agent_socket.serve(tmp_path, policies.answers_about(Enforced(None, None, None, Refusals(0)))):
        with pytest.raises(agent_socket.AgentUnreachableError, match="could not answer"):
            await agent_socket.ask_for(tmp_path, f"{policies.REFUSED} all", decode_refusals)


def test_the_names_are_those_of_the_isolated_pods() -> None:
    packets = [refused(), refused("shop/api", Direction.EGRESS)]
    assert [*RefusedPacketList(packets, 2, 0).names()] == ["pod/shop/web", "pod/shop/api"]
