"""Long work leaves turns of the event loop to others."""

import asyncio

from kroute.model.bounds import Steps
from kroute.reconcile.batches import in_turns


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
