"""Check the nodes: each probe runs alone, as long as a plan depends on it."""

import asyncio
import os
from collections.abc import Callable, Collection

import structlog

from kroute.backoff import exhaustion
from kroute.director.plan import Probe, ProbeKind
from kroute.director.settings import ProbeSettings
from kroute.model.addresses import host_port

log = structlog.get_logger(__name__)

_LONGEST_STATUS_LINE = 1024

MOST_A_SECOND = 1000
"""Checks that begin in a second, of all nodes and Services together: each takes some 0.2 ms of a processor. If very
many began at once, the director would be so busy that it took answers for late."""


class ProbeState:
    """The verdict on one node from a row of results. The first result counts at once, since no better one is known."""

    def __init__(self, settings: ProbeSettings) -> None:
        self.passes: bool | None = None
        self._settings = settings
        self._contrary = 0

    def take(self, result: bool) -> bool:
        """Record one result. Returns whether the verdict has changed."""
        if self.passes is None:
            self.passes = result
            return True
        if result is self.passes:
            self._contrary = 0
            return False
        self._contrary += 1
        if self._contrary < (self._settings.successes if result else self._settings.failures):
            return False
        self.passes, self._contrary = result, 0
        return True


class Probes:
    """Runs the probes. `notify` is called in the event loop whenever `failing` may have changed."""

    def __init__(self, settings: ProbeSettings, notify: Callable[[], None]) -> None:
        self._settings = settings
        self._notify = notify
        self._states: dict[Probe, ProbeState] = {}
        self._tasks: dict[Probe, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._is_lacking = False
        self._last_turn = 0.0

    @property
    def failing(self) -> frozenset[Probe]:
        return frozenset(probe for probe, state in self._states.items() if state.passes is False)

    @property
    def settled(self) -> bool:
        """Whether every probe has had a result."""
        return all(state.passes is not None for state in self._states.values())

    async def run(self) -> None:
        """Run the probes until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for probe in self._states:
                self._start(probe)
            await asyncio.Event().wait()

    def want(self, probes: Collection[Probe]) -> None:
        """Start the probes that are new in `probes`, and stop those that are not in it."""
        for probe in self._states.keys() - set(probes):
            del self._states[probe]
            if (task := self._tasks.pop(probe, None)) is not None:
                task.cancel()
        for probe in sorted(set(probes) - self._states.keys()):
            self._states[probe] = ProbeState(self._settings)
            self._start(probe)

    def _start(self, probe: Probe) -> None:
        if self._group is not None:
            self._tasks[probe] = self._group.create_task(self._repeat(probe), name=f"probe {probe}")

    async def _repeat(self, probe: Probe) -> None:
        state = self._states[probe]
        while True:
            await self._turn()
            try:
                reason = await check(probe, self._settings.timeout)
            except Exception as error:
                if (next_step := exhaustion(error)) is None:
                    raise
                self._lacks(error, next_step)
                await asyncio.sleep(self._settings.interval)
                continue
            self._is_lacking = False
            was = state.passes
            if state.take(reason is None):
                if reason is not None:
                    log.warning("node.failing", address=probe.address, port=probe.port, probe=probe.kind, reason=reason)
                elif was is False:
                    log.info("node.recovered", address=probe.address, port=probe.port, probe=probe.kind)
                self._notify()
            await asyncio.sleep(self._settings.interval)

    async def _turn(self) -> None:
        """Wait until one more check may begin: with very many, the pauses between two of one node grow."""
        now = asyncio.get_running_loop().time()
        self._last_turn = max(now, self._last_turn + 1 / MOST_A_SECOND)
        if self._last_turn > now:
            await asyncio.sleep(self._last_turn - now)

    def _lacks(self, error: Exception, next_step: str) -> None:
        """Log once, for all probes, that this machine lacks a resource. The verdicts stay."""
        if not self._is_lacking:
            what = "checking the nodes: what is known of them stays"
            log.warning("resources.exhausted", what=what, error=str(error), next_step=f"{next_step}; trying again")
        self._is_lacking = True


async def check(probe: Probe, timeout: float) -> str | None:  # noqa: ASYNC109  the timeout is the probe's own
    """Make one check. Returns None if the node passes, else the reason why it does not.

    Raises what says that this machine lacks a resource: it says nothing about the node.
    """
    try:
        async with asyncio.timeout(timeout):
            return await _check(probe)
    except ConnectionRefusedError as error:
        return None if probe.kind is ProbeKind.REACH else _words(error)
    except TimeoutError:
        return f"no answer within {timeout} s"
    except OSError as error:
        if exhaustion(error) is not None:
            raise
        return _words(error)


async def _check(probe: Probe) -> str | None:
    reader, writer = await asyncio.open_connection(probe.address, probe.port)
    try:
        if probe.kind is not ProbeKind.HTTP:
            return None
        host = host_port(probe.address, probe.port)
        writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        words = (await reader.readline())[:_LONGEST_STATUS_LINE].split()
        status = words[1].decode("ascii", "replace") if len(words) > 1 else "nothing"
        return None if status.isdigit() and 200 <= int(status) < 400 else f"answered {status}"
    except ValueError:
        return "answered with a line that is too long"
    finally:
        writer.transport.abort()


def _words(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else type(error).__name__
