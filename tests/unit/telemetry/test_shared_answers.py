"""Who asks while an answer is computed, or has just been, gets the same one."""

import asyncio

import pytest

from kroute.telemetry.shared_answers import MOST_QUESTIONS, SHORTEST, BusyError, SharedAnswers
from tests.virtual_time import virtual


class Work:
    """Computes for some seconds of the loop's clock, and notes when it began to."""

    def __init__(self, seconds: float = 0.1) -> None:
        self.seconds = seconds
        self.began: list[tuple[str, float]] = []
        self.at_once = 0
        self.fails = False

    async def compute(self, question: str) -> int:
        self.began.append((question, asyncio.get_running_loop().time()))
        self.at_once += 1
        assert self.at_once == 1
        await asyncio.sleep(self.seconds)
        self.at_once -= 1
        if self.fails:
            raise OSError("no")
        return len(self.began)


@virtual(settles_within=0)
async def test_all_who_ask_within_a_second_share_one_computation() -> None:
    work = Work()
    answers = SharedAnswers(work.compute)
    assert await asyncio.gather(*(answers.get("") for _ in range(240))) == [1] * 240
    await asyncio.sleep(SHORTEST - 0.01)
    assert await answers.get("") == 1
    await asyncio.sleep(0.02)
    assert await answers.get("") == 2


@virtual(settles_within=0)
async def test_what_takes_longer_than_a_second_is_given_for_as_long() -> None:
    work = Work(5.0)
    answers = SharedAnswers(work.compute)
    await answers.get("")
    await asyncio.sleep(4.9)
    assert await answers.get("") == 1
    await asyncio.sleep(0.2)
    assert await answers.get("") == 2


@virtual(settles_within=0)
async def test_different_questions_take_turns_and_leave_half_of_the_time() -> None:
    work = Work(2.0)
    answers = SharedAnswers(work.compute)
    assert await asyncio.gather(*map(answers.get, "abc")) == [1, 2, 3]
    assert work.began == [("a", 0.0), ("b", 4.0), ("c", 8.0)]


@virtual(settles_within=0)
async def test_clients_that_are_cut_do_not_make_the_work_begin_again() -> None:
    work = Work(2.0)
    answers = SharedAnswers(work.compute)
    waiting = [asyncio.create_task(answers.get("")) for _ in range(3)]
    await asyncio.sleep(1.0)
    for task in waiting:
        task.cancel()
    assert await answers.get("") == 1
    assert len(work.began) == 1


@virtual(settles_within=0)
async def test_a_failure_is_shared_and_not_kept() -> None:
    work = Work()
    work.fails = True
    answers = SharedAnswers(work.compute)
    found = await asyncio.gather(*(answers.get("") for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [OSError] * 3
    work.fails = False
    assert await answers.get("") == 2


@virtual(settles_within=0)
async def test_few_questions_are_kept_or_wait() -> None:
    work = Work()
    answers = SharedAnswers(work.compute)
    await asyncio.gather(*(answers.get(str(number)) for number in range(MOST_QUESTIONS)))
    waiting = [asyncio.create_task(answers.get(f"more {number}")) for number in range(MOST_QUESTIONS)]
    await asyncio.sleep(0)
    assert len(answers._answers) == MOST_QUESTIONS
    with pytest.raises(BusyError):
        await answers.get("one too many")
    await asyncio.gather(*waiting)
