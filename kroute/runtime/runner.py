"""Run a program of kroute in the foreground to its end, and say in one line why it cannot go on."""

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
"""What ends kroute with a sentence instead of a traceback."""


def stop_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; they do nothing else from now on. A program asks for it first of all."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def run_to_the_end(
    serving: Coroutine[None, None, int], new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> int:
    """Run until it ends; what ends it with a sentence is logged. Returns the exit code."""
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
