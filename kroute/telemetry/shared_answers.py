"""Answers that clients share when they ask at about the same time: to ask more often causes no more computations."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

SHORTEST = 1.0
"""Seconds for which an answer is given at least."""
MOST_QUESTIONS = 16
"""Different questions whose answers are kept or waited for."""


class BusyError(Exception):
    """Too many other questions wait."""


class SharedAnswers(Generic[K, T]):
    """Answers questions by `compute`, one computation at a time.

    An answer is given for SHORTEST seconds, or for as long as its computation took. After a computation, as much time
    is left to other work. A computation goes on when the clients that wait for it are cancelled: otherwise one that
    connects again and again could keep it from ever ending.
    """

    def __init__(self, compute: Callable[[K], Awaitable[T]]) -> None:
        self._compute = compute
        self._turn = asyncio.Lock()
        self._rests_until = 0.0
        self._answers: dict[K, asyncio.Task[T]] = {}

    async def get(self, question: K) -> T:
        """The answer, of now or some time ago. A failure is shared by all clients that wait, and is not kept.

        Raises:
            BusyError: MOST_QUESTIONS others wait.
        """
        answer = self._answers.get(question)
        if answer is None:
            self._make_room()
            answer = self._answers[question] = asyncio.get_running_loop().create_task(self._answer(question))
        return await asyncio.shield(answer)

    async def _answer(self, question: K) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with self._turn:
                await asyncio.sleep(self._rests_until - loop.time())
                began = loop.time()
                try:
                    found = await self._compute(question)
                finally:
                    took = loop.time() - began
                    self._rests_until = loop.time() + took
        except BaseException:
            self._forget(question, asyncio.current_task())
            raise
        loop.call_later(max(SHORTEST, took), self._forget, question, asyncio.current_task())
        return found

    def _forget(self, question: K, answer: object) -> None:
        if self._answers.get(question) is answer:
            del self._answers[question]

    def _make_room(self) -> None:
        if len(self._answers) < MOST_QUESTIONS:
            return
        oldest = next((question for question, answer in self._answers.items() if answer.done()), None)
        if oldest is None:
            raise BusyError
        del self._answers[oldest]
