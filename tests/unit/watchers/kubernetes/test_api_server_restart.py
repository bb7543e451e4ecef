"""When the API server comes back, every watch is there again before the server calls itself ready.

Times are those of a virtual clock: they are compared with the steps of a real server's restart.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog

from kroute.model.kinds import WATCHED
from kroute.settings import Settings
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.errors import UnreachableError
from kroute.watchers.kubernetes.server_presence import REFUSED_PAUSE
from kroute.watchers.kubernetes.timing import DOUBTED_FOR, Timing
from kroute.watchers.kubernetes.watcher import KubernetesWatcher
from tests.apiserver import ApiServer, Features
from tests.apiserver.restart import Restart
from tests.unit.watching import Follower, endpoint_slice, node, running, service
from tests.virtual_time import in_virtual_time

PLAIN = Features(streaming_lists=False)
GOAL = 2.0
"""Seconds from /readyz to the change."""


class Following(NamedTuple):
    """A watcher of all kinds with the stand-in."""

    server: ApiServer
    api: Api
    watcher: KubernetesWatcher
    follower: Follower

    @property
    def failures(self) -> int:
        return sum(reflector.statistics.failures for reflector in self.watcher.reflectors.values())

    @property
    def lists(self) -> int:
        return sum("sendInitialEvents" in seen.query or "watch" not in seen.query for seen in self.server.requests)


@asynccontextmanager
async def following(tmp_path: Path, features: Features | None = None) -> AsyncIterator[Following]:
    """Follow a Service, its slice and a Node."""
    follower = Follower()
    async with ApiServer(features=features or Features()) as server:
        for item in (service("web"), endpoint_slice("web-1"), node("node1")):
            server.apply(item)
        settings = Settings(node_name="node1", kubeconfig=server.kubeconfig(tmp_path / "config"))
        async with await Api.open(settings) as api:
            watcher = KubernetesWatcher(api, follower, Timing(clock=asyncio.get_running_loop().time))
            async with running(watcher.run()):
                await follower.until(lambda: len(follower.listed) == len(WATCHED))
                await asyncio.sleep(60)
                yield Following(server, api, watcher, follower)


async def change_all(server: ApiServer) -> None:
    for item in (service("new"), endpoint_slice("new-1"), node("node2")):
        server.apply(item)


async def moment_of_change(it: Following, restart: Restart) -> float:
    """Restart the server, with a change of every kind while it is away. Returns when all are known."""
    began = asyncio.get_running_loop().time()

    async def known() -> float:
        for name in ("new", "new-1", "node2"):
            await it.follower.until(lambda name=name: name in it.follower.names, within=restart.ready + 120)
        return asyncio.get_running_loop().time() - began

    async with asyncio.TaskGroup() as group:
        restarting = group.create_task(restart.of(it.server))
        arriving = group.create_task(known())
        await asyncio.sleep((restart.broken + restart.listening) / 2)
        await change_all(it.server)
        await restarting
    return arriving.result()


@pytest.mark.parametrize("features", [Features(), PLAIN], ids=["streaming list", "plain list"])
@pytest.mark.parametrize("away", [2.0, 10.0, 22.42, 29.0, 100.0])
def test_a_change_is_known_soon_after_the_server_is_ready(away: float, features: Features, tmp_path: Path) -> None:
    restart = Restart.recorded().lasting(away)

    async def run() -> None:
        async with following(tmp_path, features) as it:
            assert await moment_of_change(it, restart) < restart.ready + GOAL
            refused = len(WATCHED) if features is PLAIN else 0  # the first streaming list of each kind
            assert it.lists == 2 * len(WATCHED) + refused, "one list of each kind at the start, one after the restart"

    in_virtual_time(run())


@pytest.mark.parametrize("away", [2.0, 10.0, 29.0])
def test_nobody_waits_on_a_connection_that_the_server_has_given_up(away: float, tmp_path: Path) -> None:
    """One that was kept from before is open, and nothing that is asked on it is answered."""
    restart = Restart.recorded().lasting(away)

    async def run() -> None:
        async with following(tmp_path) as it:
            it.server.close_port = partial(it.server.close_port, deaf=True)  # type: ignore[method-assign]
            await asyncio.gather(*(it.api.get("/api/v1/nodes") for _ in range(3)))
            assert await moment_of_change(it, restart) < restart.ready + GOAL

    in_virtual_time(run())


def test_a_list_that_hangs_since_before_is_asked_for_again_when_the_server_is_back(tmp_path: Path) -> None:
    recorded = Restart.recorded()
    restart = recorded._replace(allowed=recorded.listening)  # else the answer may be that it denies everything

    async def run() -> None:
        async with following(tmp_path) as it:
            it.server.close_port = partial(it.server.close_port, deaf=True)  # type: ignore[method-assign]
            await it.api.get("/api/v1/nodes")
            began = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as group:
                group.create_task(restart.of(it.server))
                await asyncio.sleep(1)
                assert b"node1" in await it.api.get("/api/v1/nodes")
            assert restart.listening < asyncio.get_running_loop().time() - began < restart.ready + GOAL

    in_virtual_time(run())


def test_what_was_kept_is_left_when_a_watch_breaks(tmp_path: Path) -> None:
    async def run() -> None:
        async with following(tmp_path) as it:
            await it.api.get("/api/v1/nodes")
            await it.server.close_port(deaf=True)
            it.server.break_watches()
            await asyncio.sleep(0.1)
            with pytest.raises(UnreachableError, match=r"does not answer: .*refused"):
                await it.api.get("/api/v1/nodes")

    in_virtual_time(run())


def test_a_watch_is_not_asked_for_on_a_connection_that_was_kept(tmp_path: Path) -> None:
    """Nothing fails here, and nobody else asks: a server that has left the connection is not found out."""

    async def run() -> None:
        async with following(tmp_path) as it:
            await asyncio.gather(*(it.api.get("/api/v1/nodes") for _ in range(3)))
            await it.server.close_port(deaf=True)
            await it.server.open_port()
            it.server.end_watches()
            await change_all(it.server)
            for name in ("new", "new-1", "node2"):
                await it.follower.until(lambda name=name: name in it.follower.names, within=GOAL)

    in_virtual_time(run())


def test_watches_that_live_on_need_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with following(tmp_path) as it:
            await it.server.close_port()
            await asyncio.sleep(16)
            await change_all(it.server)
            await it.follower.until(lambda: "new" in it.follower.names)
            assert (it.failures, it.api.presence.is_away) == (0, False)

    in_virtual_time(run())


def test_one_asks_on_behalf_of_all(tmp_path: Path) -> None:
    away = 60.0

    async def run() -> None:
        async with following(tmp_path) as it:
            async with it.server.out_of_reach():
                with structlog.testing.capture_logs() as logs:
                    await asyncio.sleep(away)
            first_of_each = 2 * len(WATCHED)  # the watch that broke, and the first connection that was refused
            assert away / REFUSED_PAUSE / 3 <= it.failures <= away / REFUSED_PAUSE + first_of_each
            assert [entry["event"] for entry in logs].count("api.away") == 1
            assert len(logs) <= 1 + len(WATCHED), "it is not logged how often a server was asked that is away"

    in_virtual_time(run())


def test_the_first_refusals_of_a_server_are_no_loss_of_a_privilege(tmp_path: Path) -> None:
    async def run() -> None:
        async with following(tmp_path) as it:
            restart = Restart.recorded()._replace(allowed=25.0, ready=26.0)
            refused: list[bool] = []

            async def look() -> None:
                while True:
                    await asyncio.sleep(0.5)
                    refused.append(
                        any(reflector.statistics.denied_with for reflector in it.watcher.reflectors.values())
                    )

            async with running(look()):
                await moment_of_change(it, restart)
            assert sum(reflector.statistics.denied for reflector in it.watcher.reflectors.values()) > 0
            assert not any(refused)

    in_virtual_time(run())


def test_a_refusal_that_lasts_is_a_loss_until_it_ends(tmp_path: Path) -> None:
    async def run() -> None:
        async with following(tmp_path) as it:
            slices = it.watcher.reflectors["EndpointSlice"]
            for verb in ("list", "watch"):
                it.server.access.forbid(verb, "endpointslices")
            it.server.end_watches()
            await asyncio.sleep(DOUBTED_FOR / 2)
            assert slices.statistics.denied_with == 0
            await asyncio.sleep(DOUBTED_FOR * 2)
            assert slices.statistics.denied_with == 403
            it.server.access.allow_all()
            await asyncio.sleep(120)
            assert slices.statistics.denied_with == 0
            assert not it.watcher.reflectors["Service"].statistics.denied

    in_virtual_time(run())
