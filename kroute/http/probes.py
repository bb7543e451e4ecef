"""Check ports of others: each probe runs as long as it is wanted, one for all Services that ask for the same."""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count

import structlog

from kroute.base.backoff import exhaustion
from kroute.base.wording import host_port, in_words
from kroute.model.probes import Probe, ProbeKind, ProbeSettings

log = structlog.get_logger(__name__)

_LONGEST_STATUS_LINE = 1024

FIRST_RESULTS_WITHIN = 10.0
"""Seconds after which a start no longer waits for the first results. What has no result counts as passing, and
in these seconds each namespace has had its share of the checks."""

_LAG = 0.02
"""Seconds that the checks may be behind their turns, and still all begin: the loop was busy."""


class ProbeState:
    """A probe in use: the namespaces that ask for it, whether it waits for its turn, and its verdict.

    The verdict is made from a row of results. The first result counts at once, since no better one is known.
    """

    def __init__(self, settings: ProbeSettings) -> None:
        self.namespaces: frozenset[str] = frozenset()
        self.is_waiting = True
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
    """Runs the probes. `notify` is called in the event loop whenever `failing` or `settled` may have changed.

    At most `most_a_second` begin in a second, so some `settings.timeout` times as many run at one time.

    When more are due than may begin, the namespaces whose Services ask for them have a turn each, so that one with very
    many delays its own alone. A probe for which several ask has the turn of any of them.
    """

    def __init__(self, settings: ProbeSettings, notify: Callable[[], None], most_a_second: int) -> None:
        self._settings = settings
        self._notify = notify
        self._pause = 1 / most_a_second
        self._asked: dict[Probe, ProbeState] = {}
        self._later: list[tuple[float, int, Probe, ProbeState]] = []
        self._number = count()
        self._turns: dict[str, deque[tuple[Probe, ProbeState]]] = {}
        self._due = asyncio.Event()
        self._unknown: set[Probe] = set()
        self._failing: set[Probe] = set()
        self._is_late: bool | None = None
        self._is_lacking = False

    @property
    def failing(self) -> frozenset[Probe]:
        return frozenset(self._failing)

    @property
    def settled(self) -> bool:
        """Whether every probe has had a result, or the first ones for `FIRST_RESULTS_WITHIN` seconds their chance."""
        return not self._unknown or bool(self._is_late)

    @property
    def wanted(self) -> Set[Probe]:
        return self._asked.keys()

    def passes(self, probe: Probe) -> bool | None:
        """The verdict; None: no result yet, or the probe is not wanted."""
        asked = self._asked.get(probe)
        return asked.passes if asked is not None else None

    def want(self, changed: Mapping[Probe, frozenset[str]]) -> None:
        """Run each of these probes for these namespaces from now on; for none: stop it. Others go on as they are."""
        for probe, namespaces in changed.items():
            if not namespaces:
                self._asked.pop(probe, None)
                self._unknown.discard(probe)
                self._failing.discard(probe)
                continue
            if probe not in self._asked:
                self._asked[probe] = ProbeState(self._settings)
                self._unknown.add(probe)
            asked = self._asked[probe]
            if asked.is_waiting:
                self._queue(probe, asked, namespaces - asked.namespaces)
            asked.namespaces = namespaces
        if self._unknown and self._is_late is None:
            self._is_late = False
            asyncio.get_running_loop().call_later(FIRST_RESULTS_WITHIN, self._be_late)

    async def run(self) -> None:
        """Run the probes until cancelled."""
        loop = asyncio.get_running_loop()
        turn = 0.0
        async with asyncio.TaskGroup() as group:
            while True:
                probe, asked = await self._next()
                turn = max(turn + self._pause, loop.time() - _LAG)
                if turn > loop.time():
                    await asyncio.sleep(turn - loop.time())
                group.create_task(self._make(probe, asked), name=f"probe {probe}")

    async def _next(self) -> tuple[Probe, ProbeState]:
        """The next probe that is due, of the namespace whose turn has been over for longest."""
        while True:
            now = asyncio.get_running_loop().time()
            while self._later and self._later[0][0] <= now:
                _, _, probe, asked = heappop(self._later)
                asked.is_waiting = True
                self._queue(probe, asked, asked.namespaces)
            while self._turns:
                namespace = next(iter(self._turns))
                queue = self._turns.pop(namespace)
                probe, asked = queue.popleft()
                if queue:
                    self._turns[namespace] = queue  # behind all others
                if asked.is_waiting and self._asked.get(probe) is asked:
                    asked.is_waiting = False
                    return probe, asked
            self._due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._later[0][0] if self._later else None):
                    await self._due.wait()

    def _queue(self, probe: Probe, asked: ProbeState, namespaces: Iterable[str]) -> None:
        for namespace in namespaces:
            self._turns.setdefault(namespace, deque()).append((probe, asked))
        self._due.set()

    async def _make(self, probe: Probe, asked: ProbeState) -> None:
        """Make a check and note its result. Have the next one made after the interval."""
        try:
            reason = await check(probe, self._settings.timeout)
        except Exception as error:
            if (next_step := _lack(error)) is None:
                raise
            if not self._is_lacking:  # once for all probes
                what = "probes: what is known by earlier ones stays"
                log.warning("resources.exhausted", what=what, error=str(error), next_step=f"{next_step}; trying again")
            self._is_lacking = True
        else:
            self._is_lacking = False
            if self._asked.get(probe) is asked:
                self._take(probe, asked, reason)
        if self._asked.get(probe) is asked:
            due = asyncio.get_running_loop().time() + self._settings.interval
            heappush(self._later, (due, next(self._number), probe, asked))
            self._due.set()

    def _take(self, probe: Probe, asked: ProbeState, reason: str | None) -> None:
        """Note a result: None, or why it is a failure."""
        was = asked.passes
        if not asked.take(reason is None):
            return
        self._unknown.discard(probe)
        if reason is None:
            self._failing.discard(probe)
        else:
            self._failing.add(probe)
        if reason is not None or was is False:
            self.tell(probe, asked.namespaces, reason)
        self._notify()

    def tell(self, probe: Probe, namespaces: frozenset[str], reason: str | None) -> None:
        """Called with each verdict of failure, the reason, and with the end of one. Subclasses log that."""

    def _be_late(self) -> None:
        self._is_late = True
        self._notify()


async def check(probe: Probe, timeout: float) -> str | None:  # noqa: ASYNC109  the timeout is the probe's own
    """Make one check. Returns None if the address passes, else the reason why it does not.

    Raises what says that this machine lacks a resource: it says nothing about the address.
    """
    try:
        async with asyncio.timeout(timeout):
            return await _check(probe)
    except ConnectionRefusedError as error:
        return None if probe.kind is ProbeKind.REACH else in_words(error)
    except TimeoutError:
        return f"no answer within {timeout} s"
    except OSError as error:
        if _lack(error) is not None:
            raise
        return in_words(error)


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


def _lack(error: Exception) -> str | None:
    """The next step if this machine lacks what a connection needs, such as a free port; else None."""
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return "widen the range of local ports (sysctl net.ipv4.ip_local_port_range)"
    return exhaustion(error)
