"""The time-outs of the lab's calls (tests/lab/patience.py): seconds that a machine has stood still are not counted."""

import asyncio

import pytest

from tests.lab.patience import MOST_OF_A_TURN, Looks, patience
from tests.virtual_time import in_virtual_time


class Stalls:
    """Lets the running loop's clock jump."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        clock, self._seconds = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: clock() + self._seconds)

    def stall(self, seconds: float) -> None:
        self._seconds += seconds


@pytest.mark.parametrize("seconds", [0.05, 0.9, 5.0])
def test_without_a_stall_it_is_a_time_out(seconds: float) -> None:
    async def wait() -> None:
        async with patience(seconds):
            await asyncio.sleep(60)

    async def time() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            await wait()
        return loop.time() - began

    assert in_virtual_time(time(), 0) == pytest.approx(seconds)


def test_a_stall_does_not_use_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> None:
        stalls = Stalls(monkeypatch)
        async with patience(0.9):
            for _ in range(2):
                await asyncio.sleep(0.25)
                stalls.stall(2.5)
        await asyncio.sleep(1)  # nothing is left of it that could cancel what follows

    in_virtual_time(wait(), 0)


def test_after_a_stall_it_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(stalls: Stalls) -> None:
        async with patience(0.9):
            stalls.stall(30)
            await asyncio.sleep(60)

    async def time() -> float:
        loop, stalls = asyncio.get_running_loop(), Stalls(monkeypatch)
        began = loop.time()
        with pytest.raises(TimeoutError):
            await wait(stalls)
        return loop.time() - began

    assert in_virtual_time(time(), 0) == pytest.approx(30 + 0.9 - MOST_OF_A_TURN, abs=MOST_OF_A_TURN)


def test_neither_stalls_nor_slow_looks_use_up_the_time_for_looks() -> None:
    now = 0.0
    taken = [*[0.05] * 10, 30.0, *[2.0] * 9]  # seconds that each look takes, and the pause after it
    looks = Looks(0.4 + 10 * MOST_OF_A_TURN, lambda: now)
    for seconds in taken:
        assert not looks.are_over()
        now += seconds
    assert looks.are_over()


def test_other_errors_and_a_cancellation_from_outside_pass_through() -> None:
    async def refused() -> None:
        async with patience(1):
            raise ConnectionRefusedError

    async def cancelled() -> None:
        task = asyncio.create_task(asyncio.sleep(9))

        async def wait() -> None:
            async with patience(1):
                await task

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.5)
        waiting.cancel()
        await waiting

    with pytest.raises(ConnectionRefusedError):
        in_virtual_time(refused(), 0)
    with pytest.raises(asyncio.CancelledError):
        in_virtual_time(cancelled(), 0)
