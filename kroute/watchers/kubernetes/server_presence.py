"""Whether the API server answers: one knowledge for all that ask it, so that they find a returning server together.

While it is away, requests take turns: one asks on behalf of all, after a pause that depends on what asking costs. Where
nothing listens, the kernel refuses the connection, which costs a server nothing, so the pauses are short, and their
random lengths are what spreads the agents of a cluster over the first second after its return. Where nobody answers at
all, a connection may be lost halfway, at a load balancer that has no server left, for example, so the pauses grow. The
first answer, whatever it says, ends the waiting of all.

A watch that is open when the server closes its port lives on until the server has ended. It needs nothing, and nobody
asks.
"""

import asyncio
import errno
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import structlog

from kroute.base.backoff import Backoff
from kroute.model.addresses import canonical
from kroute.watchers.kubernetes.errors import NoServerError, UnreachableError

log = structlog.get_logger(__name__)

REFUSED_PAUSE = 0.5
"""Seconds between two refused connections; a random part of it is added. The SYN and the kernel's reset are all that
they cost."""
FIRST_SILENT_PAUSE, LAST_SILENT_PAUSE = 0.8, 2.0
"""Seconds between attempts that nobody answers; a random part is added. An attempt itself takes up to
`api.CONNECT_TIMEOUT`, in which the kernel sends its SYN after 0, 1, 3 and 7 s: a server that returns is found within
some 5 s."""
_COSTS_NOTHING = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EMFILE, errno.ENFILE})
LATELY = 1800.0
"""Seconds for which a peer counts after its answer. Every connection is asked something more often: a watch ends within
ten minutes."""
MOST_PEERS = 16


class ServerPresence:
    """Presence of one server. All methods are called in the event loop, whose clock counts."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311  it spreads attempts, and guards nothing
        self._present = asyncio.Event()
        self._present.set()
        self._since = 0.0
        self._answered_at = -math.inf
        self._refuses = False
        self._due = 0.0
        self._silent = Backoff(FIRST_SILENT_PAUSE, LAST_SILENT_PAUSE, self._rng)

    @property
    def is_away(self) -> bool:
        """Whether the last request had no answer."""
        return not self._present.is_set()

    def answered(self) -> bool:
        """Note an answer of any kind: the server is there, and all that wait go on. Returns whether it was away."""
        self._answered_at = _now()
        if not self.is_away:
            return False
        log.info("api.back", away_for=round(_now() - self._since, 1))
        self._silent.reset()
        self._present.set()
        return True

    def missed(self, said: str, *, refused: bool, asked: float = math.inf) -> None:
        """Note that a request had no answer; `said` says it to people. `refused`: it has cost no server anything.

        `asked`: when it was made, on the loop's clock. If another was answered since, then the server is there.
        """
        if not self.is_away:
            if asked < self._answered_at:
                return
            log.warning("api.away", error=said, next="asked until it answers; what is in the kernel stays")
            self._since = _now()
            self._present.clear()
        elif refused == self._refuses:
            return
        self._refuses = refused
        self._due = _now() + self.pause()

    def pause(self) -> float:
        """Seconds until the server, which is away, is asked again."""
        return REFUSED_PAUSE * (1.0 + self._rng.random()) if self._refuses else self._silent.delay()

    async def turn(self) -> None:
        """Return when the caller may ask: at once if the server is there, else when it has answered, or is to be asked.

        Of all that wait, one returns whenever it is to be asked. The others do not depend on what becomes of it.
        """
        while self.is_away:
            if (left := self._due - _now()) <= 0:
                self._due = _now() + self.pause()
                return
            await self.sleep(left)

    async def sleep(self, seconds: float) -> None:
        """Sleep, but if the server is away, only until it answers."""
        if not self.is_away:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._present.wait()

    async def returned(self) -> None:
        """Wait, without asking, until the server is there."""
        await self._present.wait()


class ApiWriter(Protocol):
    """Makes writes. Each raises UnreachableError if there was no answer."""

    async def create(self, path: str, body: Mapping[str, Any]) -> object:
        """Create an object in the collection."""

    async def patch(self, path: str, patch: Mapping[str, Any]) -> None:
        """Change the fields of the object at the path that a JSON merge patch names."""


class WritesWhenUp:
    """Writes that wait while the server is away, and are made again if the connection was refused."""

    def __init__(self, writer: ApiWriter, presence: ServerPresence) -> None:
        self._writer = writer
        self._presence = presence

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        """Create an object once the server is there."""
        await self._insist(lambda: self._writer.create(path, body))

    async def patch(self, path: str, patch: Mapping[str, Any]) -> None:
        """Patch an object once the server is there."""
        await self._insist(lambda: self._writer.patch(path, patch))

    async def _insist(self, write: Callable[[], Awaitable[object]]) -> object:
        while True:
            await self._presence.returned()
            try:
                return await write()
            except UnreachableError as error:
                if not (isinstance(error, NoServerError) or costs_nothing(error)):  # it may have been written
                    raise


def _now() -> float:
    return asyncio.get_running_loop().time()


def costs_nothing(error: BaseException | None) -> bool:
    """Whether no server has worked for this attempt: it was refused, or could not leave this machine."""
    while error is not None:
        if getattr(error, "errno", None) in _COSTS_NOTHING:
            return True
        error = error.__cause__
    return False


class Peers:
    """The addresses that have answered, and when last; `changed` is set when a new one has.

    A connection whose source address has left the node is ended: the kernel sends nothing from that address, and a
    watch that only listens would wait until it counts as stalled.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.changed = asyncio.Event()
        self._clock = clock
        self._answered: dict[str, float] = {}
        self._sources: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._own: frozenset[str] = frozenset()

    def saw(self, transport: Any) -> None:
        """Take the other end of an answer's connection; None is one that has been closed."""
        address = _end_of(transport, "peername")
        if address is None:
            return
        source = _end_of(transport, "sockname")
        if source is not None:
            self._sources[transport] = source
        known = self.recent()
        self._answered.pop(address, None)
        self._answered[address] = self._clock()
        while len(self._answered) > MOST_PEERS:
            del self._answered[next(iter(self._answered))]
        if address not in known:
            self.changed.set()

    def recent(self) -> frozenset[str]:
        """Those that have answered lately."""
        since = self._clock() - LATELY
        return frozenset(address for address, at in self._answered.items() if at >= since)

    def keep_to(self, own: frozenset[str]) -> None:
        """End the connections from an address that the node had at the last call, and has not among these."""
        gone, self._own = self._own - own, own
        for transport, source in tuple(self._sources.items()):
            if source in gone:
                transport.abort()


def _end_of(transport: Any, which: str) -> str | None:
    """The address of one end of a connection, or None without any."""
    name = transport.get_extra_info(which) if transport is not None else None
    return canonical(str(name[0])) if name else None
