"""Run a program of kroute in the foreground to its end, and say in one line why it cannot continue."""

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from kroute.base.backoff import exhaustion, retry_when_exhausted
from kroute.kernel.errors import KernelError
from kroute.reconcile.ledger import LedgerError
from kroute.runtime.state_dir import StateDirectory, StateDirectoryError
from kroute.watchers.kubernetes.errors import ConfigurationError

log = structlog.get_logger(__name__)

T = TypeVar("T")
REFUSALS = (ConfigurationError, StateDirectoryError, KernelError, LedgerError)
"""Errors that end kroute with a sentence instead of a traceback."""
_SILENT_FOR = 60.0
"""Seconds between two lines about connections that cannot be accepted."""
MOST_LOOK_UPS = 2
"""Look-ups at once. The next ones wait for a thread to end."""
LOOK_UP_WITHIN = 5.0
"""Seconds for one look-up, its wait included."""


class Program(Protocol):
    """An agent or a director."""

    async def run(self, stop: asyncio.Event, state_dir: StateDirectory) -> None:
        """Run until `stop` is set."""


def stop_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; they have no other effect from now on.

    To be called before anything else.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def run_to_the_end(
    serving: Coroutine[None, None, int], new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> int:
    """Run `serving` to its end and return the exit code.

    An error of `REFUSALS` is logged: 2 for settings, 1 for others.
    """
    refusals: list[BaseException] = []
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(_watched(serving))
    except* REFUSALS as group:
        refusals += _leaves(group)
    for refusal in refusals:
        log.error("kroute.refused", reason=str(refusal))
    return 2 if any(isinstance(refusal, ConfigurationError) for refusal in refusals) else 1


async def unless(stop: asyncio.Event, starting: Awaitable[T]) -> T | None:
    """The result, or None as soon as `stop` is set: a start may wait for a resource for any time."""
    loop, is_over = asyncio.get_running_loop(), False

    def end(_: object) -> None:
        if not is_over:
            deadline.reschedule(loop.time())

    waiting = asyncio.ensure_future(stop.wait())
    try:
        async with asyncio.timeout(None) as deadline:
            waiting.add_done_callback(end)
            try:
                return await starting
            finally:
                is_over = True
                waiting.cancel()
    except TimeoutError:
        if not deadline.expired():
            raise
        log.info("kroute.stopping")
        return None


async def begun(stop: asyncio.Event, what: str, begin: Callable[[], Awaitable[T]]) -> T | None:
    """The result of `begin`, which is tried again while the system lacks a resource; None as soon as `stop` is set."""
    return await unless(stop, retry_when_exhausted(what, begin))


async def run_claimed(
    stop: asyncio.Event,
    claim: Callable[[AsyncExitStack], Awaitable[StateDirectory]],
    make: Callable[[StateDirectory, AsyncExitStack], Awaitable[Program]],
    clean_up: Callable[[StateDirectory], Awaitable[bool]] | None = None,
) -> int:
    """Claim the state directory, make a program, and run it until `stop` is set. Returns the exit code.

    The stacks close what `claim` and `make` open. `clean_up` follows the program's end, and says whether it succeeded.
    """
    async with AsyncExitStack() as claimed:
        state_dir = await begun(stop, "locking", lambda: claim(claimed))
        if state_dir is None:
            return 0
        async with AsyncExitStack() as stack:
            program = await begun(stop, "starting", lambda: opened(stack, partial(make, state_dir)))
            if program is not None:
                await program.run(stop, state_dir)
        is_clean = clean_up is None or await clean_up(state_dir)
    log.info("kroute.stopped")
    return 0 if is_clean else 1


async def opened(stack: AsyncExitStack, make: Callable[[AsyncExitStack], Awaitable[T]]) -> T:
    """One attempt at a program whose parts `stack` is to close: when it fails, what it has opened is closed again."""
    async with AsyncExitStack() as attempt:
        program = await make(attempt)
        stack.push_async_exit(attempt.pop_all())
        return program


async def _watched(serving: Coroutine[None, None, int]) -> int:
    """Run it with one line a minute where asyncio has a traceback a second: when a listener cannot accept.

    Names are resolved by `Names`.
    """
    loop, said_at = asyncio.get_running_loop(), -_SILENT_FOR

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal said_at
        error = context.get("exception")
        if isinstance(error, ValueError) and "_start_serving" in context["message"]:
            return  # asyncio tries to accept again, at a listener that has been closed meanwhile
        next_step = exhaustion(error) if isinstance(error, OSError) else None
        if next_step is None:
            loop.default_exception_handler(context)
        elif loop.time() - said_at >= _SILENT_FOR:
            said_at = loop.time()
            log.error("resources.exhausted", what="accepting connections", error=str(error), next_step=next_step)

    loop.set_exception_handler(report)
    loop.getaddrinfo = Names(loop).getaddrinfo  # type: ignore[method-assign]
    return await serving


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


class Names:
    """Looks names up for one event loop, in threads of their own, few at a time.

    asyncio resolves names in its default pool of threads. While the DNS servers are silent, a look-up holds its thread
    for half a minute, also after its caller has given up. Meanwhile everything else that needs a thread of that pool
    would wait, such as the announcement of a VIP, and so would the end of the process.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = asyncio.Semaphore(MOST_LOOK_UPS)

    async def getaddrinfo(self, host: Any, port: Any, **hints: int) -> list[Any]:
        """As `socket.getaddrinfo`. Raises socket.gaierror (EAI_AGAIN) if that takes too long."""
        try:
            async with asyncio.timeout(LOOK_UP_WITHIN):
                await self._threads.acquire()
                return await self._started(host, port, hints)
        except TimeoutError:
            said = f"the name {host} was not resolved within {LOOK_UP_WITHIN:g} s"
            raise socket.gaierror(socket.EAI_AGAIN, said) from None

    def _started(self, host: Any, port: Any, hints: dict[str, int]) -> asyncio.Future[list[Any]]:
        """What a thread finds. It keeps its place among the few until it ends."""
        found: asyncio.Future[list[Any]] = self._loop.create_future()

        def settle(addresses: list[Any], error: Exception | None) -> None:
            self._threads.release()
            if found.done():  # nobody waits any longer
                return
            if error is None:
                found.set_result(addresses)
            else:
                found.set_exception(error)

        def look_up() -> None:
            addresses, failure = [], None
            try:
                addresses = socket.getaddrinfo(host, port, **hints)
            except Exception as error:  # noqa: BLE001  it is the caller's
                failure = error
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(settle, addresses, failure)

        try:
            threading.Thread(target=look_up, name=f"look-up of {host}", daemon=True).start()
        except BaseException:
            self._threads.release()
            raise
        return found
