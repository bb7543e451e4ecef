"""An event loop whose clock runs only while nothing else happens: what waits for seconds takes none.

Sockets and threads are real: the clock stands still while a thread works for the loop. A test can compare moments of
this clock with each other, however slow the machine is.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SETTLES_WITHIN = 0.005
"""Seconds of real time after which nothing comes any more that is on its way between two sockets of this process."""


class _Selector(selectors.DefaultSelector):
    """Waits for what is on its way, then advances the clock instead of waiting."""

    def __init__(self, settles_within: float) -> None:
        super().__init__()
        self.now = 0.0
        self.threads_at_work = 0
        self._settles_within = settles_within

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(min(timeout, self._settles_within))
        if not ready and not self.threads_at_work:
            self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, settles_within: float) -> None:
        self._virtual = _Selector(settles_within)
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        future = super().run_in_executor(executor, func, *args)
        self._virtual.threads_at_work += 1
        future.add_done_callback(self._thread_is_done)
        return future

    def _thread_is_done(self, _future: "asyncio.Future[Any]") -> None:
        self._virtual.threads_at_work -= 1


def in_virtual_time(coroutine: Coroutine[Any, Any, T], settles_within: float = SETTLES_WITHIN) -> T:
    """The result of a coroutine that runs in a loop of its own. Without sockets, nothing has to settle: 0."""
    with asyncio.Runner(loop_factory=lambda: _Loop(settles_within)) as runner:
        return runner.run(coroutine)


def virtual(
    *, settles_within: float = SETTLES_WITHIN
) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Run a test in virtual time, in a loop of its own, which fixtures do not share."""

    def decorate(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*arguments: P.args, **named: P.kwargs) -> None:
            in_virtual_time(test(*arguments, **named), settles_within)

        return run

    return decorate
