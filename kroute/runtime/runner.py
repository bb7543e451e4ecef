"""Run a program of kroute in the foreground to its end, and say in one line why it cannot continue."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator

import structlog

from kroute.kernel.errors import KernelError
from kroute.reconcile.ledger import LedgerError
from kroute.runtime.state_dir import StateDirectoryError
from kroute.watchers.kubernetes.errors import ConfigurationError

log = structlog.get_logger(__name__)

REFUSALS = (ConfigurationError, StateDirectoryError, KernelError, LedgerError)
"""Errors that end kroute with a sentence instead of a traceback."""


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
            return runner.run(serving)
    except* REFUSALS as group:
        refusals += _leaves(group)
    for refusal in refusals:
        log.error("kroute.refused", reason=str(refusal))
    return 2 if any(isinstance(refusal, ConfigurationError) for refusal in refusals) else 1


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
