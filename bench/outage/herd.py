"""Many agents come back to one API server: a simulation in virtual time.

With the same seed it is the same, but for which of two requests of one moment comes first: among 5,000 agents a figure
may differ by a thousandth.
"""

import asyncio
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import structlog

from bench.outage import client_go, kroute_agent
from bench.outage.server import Capacity, Server
from kroute.model.kinds import WATCHED
from tests.apiserver.restart import Restart
from tests.virtual_time import in_virtual_time

AGENTS = 5000
SEED = 20261122
GIVES_UP_AFTER = 3600.0
"""Seconds of virtual time."""
CLIENTS = ("kroute", "client-go")


class Outcome(NamedTuple):
    """What became of a herd. Times are seconds from the moment when the server listens again.

    `half`, `nearly_all` and `all`: when 50 %, 99 % and all agents had listed every kind. `lists`: lists that the server
    made. `answered`: requests with any answer, of which `denied` with 403 and `refused` with 429; `peak`: the most in
    flight. `connections_refused`: in all, while nothing listened.
    """

    client: str
    half: float
    nearly_all: float
    all: float
    lists: int
    answered: int
    denied: int
    refused: int
    peak: int
    connections_refused: int


class _Herd:
    """The agents that have recovered, and when."""

    def __init__(self, agents: int) -> None:
        self._missing = [len(WATCHED)] * agents
        self.moments: list[float] = []
        self.is_back = asyncio.Event()

    def recovered(self, agent: int) -> None:
        """Note that one more kind of this agent is listed."""
        self._missing[agent] -= 1
        if not self._missing[agent]:
            self.moments.append(asyncio.get_running_loop().time())
            if len(self.moments) == len(self._missing):
                self.is_back.set()


def simulate(client: str, restart: Restart, capacity: Capacity, agents: int = AGENTS, seed: int = SEED) -> Outcome:
    """Let a herd of these clients meet a server that restarts so. Raises TimeoutError if it never recovers."""
    with _silence():
        return in_virtual_time(_simulate(client, restart, capacity, agents, seed), settles_within=0.0)


async def _simulate(client: str, restart: Restart, capacity: Capacity, agents: int, seed: int) -> Outcome:
    server, herd = Server(restart, capacity), _Herd(agents)
    tasks = [asyncio.create_task(server.run())]
    for number in range(agents):
        rng, recovered = random.Random(f"{seed} {number}"), partial(herd.recovered, number)
        if client == "kroute":
            tasks.append(asyncio.create_task(kroute_agent.watcher(server, rng, recovered).run()))
        else:
            reflectors = (client_go.Reflector(server, rng, recovered) for _ in WATCHED)
            tasks += [asyncio.create_task(reflector.run()) for reflector in reflectors]
    async with asyncio.timeout(GIVES_UP_AFTER):
        await herd.is_back.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    moments = [moment - restart.listening for moment in herd.moments]
    return Outcome(
        client=client,
        half=moments[agents // 2],
        nearly_all=moments[agents * 99 // 100],
        all=moments[-1],
        lists=server.lists,
        answered=server.answers.total(),
        denied=server.answers[403],
        refused=server.answers[429],
        peak=server.peak,
        connections_refused=server.connections_refused,
    )


@contextmanager
def _silence() -> Iterator[None]:
    """Log nothing: a hundred thousand failures are the point of it."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
