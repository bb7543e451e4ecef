"""The processor time of a coroutine, without that of the tasks that run while it waits."""

import asyncio

import pytest

from kroute.reconcile.resync_schedule import Metered


class Processor:
    """Counts the seconds that its `work` is said to take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def work(self, seconds: float) -> None:
        self.seconds += seconds


async def test_what_other_tasks_do_meanwhile_is_not_counted() -> None:
    processor = Processor()

    async def other() -> None:
        for _ in range(5):
            processor.work(100.0)
            await asyncio.sleep(0)

    async def work() -> str:
        processor.work(1.0)
        await asyncio.sleep(0)
        processor.work(2.0)
        await asyncio.sleep(0.01)
        processor.work(4.0)
        return "done"

    metered = Metered(work(), processor)
    async with asyncio.TaskGroup() as group:
        group.create_task(other())
        assert await metered == "done"
    assert metered.seconds == 7.0


async def test_an_error_comes_out_and_its_cost_is_counted() -> None:
    processor = Processor()

    async def work() -> None:
        await asyncio.sleep(0)
        processor.work(3.0)
        raise ValueError("no")

    metered = Metered(work(), processor)
    with pytest.raises(ValueError, match="no"):
        await metered
    assert metered.seconds == 3.0


async def test_a_timeout_reaches_the_work() -> None:
    ended = []

    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            ended.append("in time")
        return "done"

    assert await Metered(work()) == "done"
    assert ended == ["in time"]
