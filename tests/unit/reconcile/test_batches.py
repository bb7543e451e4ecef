"""Long work leaves turns of the event loop to others."""

import asyncio

import pytest

from kroute.model.steps import Steps
from kroute.reconcile.batches import in_portions, in_turns


async def test_others_run_between_two_steps() -> None:
    said: list[str] = []

    def work() -> Steps[str]:
        for number in range(3):
            said.append(f"step {number}")
            yield 1
        return "done"

    async def other() -> None:
        for number in range(3):
            said.append(f"other {number}")
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        working = group.create_task(in_turns(work()))
        group.create_task(other())
    assert working.result() == "done"
    assert said == ["step 0", "other 0", "step 1", "other 1", "step 2", "other 2"]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], []),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([4, 6, 1], [[4, 6], [1]]),
        ([4, 7, 1], [[4], [7, 1]]),
        ([99, 1, 99], [[99], [1], [99]]),
        ([0, 0, 0, 0], [[0, 0, 0], [0]]),
    ],
    ids=str,
)
def test_a_portion_is_small_by_number_and_by_weight(items: list[int], expected: list[list[int]]) -> None:
    assert list(in_portions(items, lambda weight: weight, most=10, size=3)) == expected
