"""Which of several API servers is asked. With one address there is no choice, and this module is not loaded.

The addresses are in order of preference. The first one that is ready is used until it fails; its return changes
nothing. A server is ready if its `/readyz` answers with any status below 500. A server that shuts down, or has lost
etcd, answers with 500; a client that may not ask gets 401 or 403 from a server that works.

The server in use is asked every LOOK_EVERY seconds, on a connection that is kept. A watch alone would not show that a
machine is gone, or that a process hangs whose kernel still acknowledges what it gets. When the server fails, all are
asked at once, and the first that is ready takes its place. A server is left only for a better one. While no other is
better, its connections stay, because the failure may be this node's own: a load balancer that closed them has cut off a
whole control plane (K3s, issue 10240).
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import structlog

from kroute.base.wording import in_words
from kroute.settings.text import without_user
from kroute.watchers.kubernetes.errors import NoServerError
from kroute.watchers.kubernetes.http.client import HttpClient
from kroute.watchers.kubernetes.http.connection import Answer, HttpError
from kroute.watchers.kubernetes.server_presence import costs_nothing

log = structlog.get_logger(__name__)

LOOK_EVERY, LAST_PAUSE = 1.0, 8.0
"""Seconds between two looks at the server in use, and at most, while it fails and no other is better. A look costs this
process some 0.3 ms."""
HEAD_START = 0.5
"""Seconds that a server has to answer before the next one is asked beside it."""
FIRST_PATIENCE, LAST_PATIENCE = 1.0, 10.0
"""Seconds that a server has for an answer. A server that stops answering is so replaced within LOOK_EVERY and
FIRST_PATIENCE. Each time-out doubles the patience, so that slow servers do not take turns."""
CALM = 20.0
"""Seconds without a time-out after which the patience is FIRST_PATIENCE again."""
_LATE = 0.2
"""If an answer is missed by so many seconds more than it had, this process has stood still itself."""
_LONGEST_BODY = 64 << 10
"""Bytes of the body of `/readyz` that are read: `ok`, or a line for each check."""

_FAILURES = (HttpError, OSError, MemoryError, RuntimeError, ValueError)


class Standing(IntEnum):
    """How fit a server is, the fittest last."""

    SILENT = 0
    """There is no answer, or none that can be trusted."""
    NOT_READY = 1
    READY = 2


class Look(NamedTuple):
    """What became of a look at a server. `said` says it to people. `timed_out`: it was silent for all of its time."""

    address: str
    client: HttpClient
    standing: Standing
    said: str = ""
    timed_out: bool = False
    refused: bool = False

    @property
    def is_ready(self) -> bool:
        return self.standing is Standing.READY


class ServerChoice:
    """The server in use, of `addresses`, and how often another one has taken its place."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self.in_use = self._addresses[0]
        self.failovers = 0
        self.compared_at = -math.inf
        """When all were last asked, on the loop's clock."""
        self._patience = FIRST_PATIENCE
        self._silent_at = -math.inf

    def use(self, best: Look, because: str | None) -> None:
        """Note which server is used from now on. `because` says how the last one has failed, None: it is the first."""
        server = without_user(best.address)
        if because is None:
            log.info("api.chosen", server=server)
        elif best.address == self.in_use:
            log.warning("api.reconnected", server=server, error=because)
        else:
            self.failovers += 1
            log.warning("api.failed_over", server=server, instead_of=without_user(self.in_use), error=because)
        self.in_use = best.address

    async def look(self, address: str, client: HttpClient, headers: Mapping[str, str]) -> Look:
        """Ask whether a server is ready. It does not fail."""
        loop, patience = asyncio.get_running_loop(), self._current_patience()
        while True:
            began = loop.time()
            try:
                async with asyncio.timeout(patience):
                    answer = await client.request("GET", "/readyz", {}, headers, read_timeout=None)
                    await _drain(answer)
            except TimeoutError as error:
                if loop.time() - began > patience + _LATE:
                    continue
                said = str(error) or f"no answer within {patience:g} s"
                return Look(address, client, Standing.SILENT, said, timed_out=True)
            except _FAILURES as error:
                return Look(address, client, Standing.SILENT, in_words(error), refused=costs_nothing(error))
            if answer.status >= 500:
                return Look(address, client, Standing.NOT_READY, f"it is not ready: /readyz answers {answer.status}")
            return Look(address, client, Standing.READY)

    async def best(
        self, client_of: Callable[[str], HttpClient], headers: Mapping[str, str], *, in_use_last: bool = False
    ) -> Look:
        """The first server that is ready, with a client of its own; if none is, one that answers.

        The server in use comes first, or last, and the others in their order after it.

        Raises:
            NoServerError: none answers.
        """
        first = self._addresses.index(self.in_use) + in_use_last
        looks = await self._asked([*self._addresses[first:], *self._addresses[:first]], client_of, headers)
        self.compared_at = asyncio.get_running_loop().time()
        best = max(looks, key=lambda look: look.standing)  # the first of equals
        if in_use_last or best.standing is Standing.SILENT:
            self._note_silence()
        for look in looks:
            if look is not best or best.standing is Standing.SILENT:
                await look.client.close()
        if best.standing is Standing.SILENT:
            said = "; ".join(f"{look.client.url}: {look.said}" for look in looks)
            raise NoServerError(f"no API server answers: {said}", refused=all(look.refused for look in looks))
        return best

    async def _asked(
        self, order: Sequence[str], client_of: Callable[[str], HttpClient], headers: Mapping[str, str]
    ) -> list[Look]:
        """What has become of looks at these servers, in this order, when the first is ready or all are over."""
        tasks: list[asyncio.Task[Look]] = []
        clients = {address: client_of(address) for address in order}
        try:
            async with asyncio.TaskGroup() as group:
                running: set[asyncio.Task[Look]] = set()
                while len(tasks) < len(order) or running:
                    if len(tasks) < len(order):
                        address = order[len(tasks)]
                        tasks.append(group.create_task(self.look(address, clients[address], headers)))
                        running.add(tasks[-1])
                    head_start = HEAD_START if len(tasks) < len(order) else None
                    done, running = await asyncio.wait(running, timeout=head_start, return_when=asyncio.FIRST_COMPLETED)
                    if any(task.result().is_ready for task in done):
                        break
                for task in running:
                    task.cancel()
        except BaseException:
            for client in clients.values():
                await client.close()
            raise
        looks = [task.result() for task in tasks if not task.cancelled()]
        for address in set(order) - {look.address for look in looks}:
            await clients[address].close()
        return looks

    def _current_patience(self) -> float:
        if asyncio.get_running_loop().time() - self._silent_at > CALM:
            self._patience = FIRST_PATIENCE
        return self._patience

    def _note_silence(self) -> None:
        self._patience = min(2 * self._current_patience(), LAST_PATIENCE)
        self._silent_at = asyncio.get_running_loop().time()


async def _drain(answer: Answer) -> None:
    """Read the body, so that the connection can be kept; one that is too long is cut."""
    left = _LONGEST_BODY
    while piece := await answer.read():
        left -= len(piece)
        if left < 0:
            answer.close()
            return
