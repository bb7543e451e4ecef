"""A reflector survives failures of networks and servers, without losing or inventing a change."""

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from kroute.base.backoff import Backoff
from kroute.model.kinds import CLUSTER_NETWORK_POLICIES, SERVICES
from kroute.model.objects import Service
from kroute.watchers.kubernetes.errors import ApiError
from kroute.watchers.kubernetes.reflector import Reflector
from kroute.watchers.kubernetes.server_presence import ServerPresence
from kroute.watchers.kubernetes.timing import FIRST_RETRY, LAST_RETRY, Timing
from tests.apiserver import ApiServer, Features
from tests.unit.watching import Follower, Pauses, eventually, key, quick, reflecting, running, service
from tests.virtual_time import virtual

PLAIN = Features(streaming_lists=False)


def listed(server: ApiServer) -> int:
    """Return how many lists were requested."""
    return sum("sendInitialEvents" in seen.query or "watch" not in seen.query for seen in server.requests)


def test_pauses_double_up_to_some_seconds_and_start_over_after_success() -> None:
    class Dice(random.Random):
        def random(self) -> float:
            return 0.5

    backoff = Backoff(FIRST_RETRY, LAST_RETRY, Dice())
    assert [backoff.delay() for _ in range(6)] == [1.5 * base for base in (0.8, 1.6, 3.2, 6.4, 8.0, 8.0)]
    backoff.reset()
    assert backoff.delay() == 1.5 * 0.8


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@pytest.mark.parametrize("where", ["list", "watch"])
async def test_server_errors_are_retried_ever_more_slowly(
    status: int, where: str, tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer(features=PLAIN) as server:
        server.apply(service("a"))
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
            server.faults.add("answer", status=status, where=where, times=3)
            if where == "list":
                server.faults.add("answer", status=410, where="watch")
            server.end_watches()
            before = len(pauses.taken)
            await pauses.until(before + 3)
            server.apply(service("b"))
            await follower.until(lambda: "b" in follower.names)
    assert pauses.taken[:3] == [0.8, 1.6, 3.2]
    assert "deleted" not in " ".join(follower.take())


@pytest.mark.parametrize("status", [429, 503, 504])
async def test_the_server_says_when_to_come_back(
    status: int, tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer() as server:
        server.faults.add("answer", status=status, retry_after=17)
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
    assert pauses.taken == [17.0]


async def test_a_pause_that_the_server_asks_for_does_not_grow(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer() as server:
        server.faults.add("answer", status=429, retry_after=1, times=5)
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
    assert pauses.taken == [1.0] * 5


async def test_a_version_that_is_too_old_leads_to_a_list_at_once_but_not_again_and_again(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    clock = [0.0]
    async with ApiServer(features=PLAIN) as server:
        server.apply(service("a"))
        async with reflecting(server, tmp_path, follower, quick(pauses, clock=lambda: clock[0])):
            await follower.until_listed()
            clock[0] = 100.0
            for number in range(4):
                server.store.advance(100 + number)
                server.compact()
                server.faults.add("answer", status=410, where="watch")
                server.end_watches()
                await eventually(lambda: not server.faults.due and server.watching == 1)
    assert pauses.taken == [0.8, 1.6, 3.2]


async def test_a_change_after_trouble_makes_the_next_pause_short_again(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer() as server, reflecting(server, tmp_path, follower, quick(pauses)):
        await follower.until_listed()
        for name in "ab":
            server.faults.add("answer", status=500, times=2)
            server.end_watches()
            await pauses.until(len(pauses.taken) + 2)
            server.apply(service(name))
            await follower.until(lambda name=name: name in follower.names)
    assert pauses.taken == [0.8, 1.6, 0.8, 1.6]


async def test_a_server_that_is_away_is_found_again(tmp_path: Path, follower: Follower, pauses: Pauses) -> None:
    async with ApiServer() as server:
        server.apply(service("a"))
        async with reflecting(server, tmp_path, follower, quick(pauses)) as reflector:
            await follower.until_listed()
            async with server.out_of_reach():
                await eventually(lambda: reflector.statistics.failures >= 3)
                server.apply(service("b"))
            await follower.until(lambda: follower.names == {"a", "b"})
            assert listed(server) == 1
    assert follower.take() == ["applied a", "listed Service", "applied b"]


@pytest.mark.parametrize("kind", ["drop", "truncate", "cut"])
async def test_a_broken_watch_goes_on_from_the_last_version_without_a_list(
    kind: str, tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer() as server, reflecting(server, tmp_path, follower, quick(pauses)):
        await follower.until_listed()
        server.faults.add(kind, where="watch", after=1)
        server.end_watches()
        server.apply(service("a"))
        server.apply(service("b"))
        server.apply(service("c"))
        await follower.until(lambda: "c" in follower.names)
        assert listed(server) == 1
    assert follower.take() == ["listed Service", "applied a", "applied b", "applied c"]
    assert pauses.taken == [0.8]


@pytest.mark.parametrize("kind", ["drop", "truncate", "cut", "stall"])
@pytest.mark.parametrize("features", [Features(), PLAIN], ids=["streaming list", "plain list"])
async def test_a_broken_list_is_begun_again_and_deletes_nothing(
    kind: str, features: Features, tmp_path: Path, follower: Follower, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kroute.watchers.kubernetes.api.READ_TIMEOUT", 0.05)
    async with ApiServer(features=features) as server:
        for name in "abc":
            server.apply(service(name))
        async with reflecting(server, tmp_path, follower, quick(pauses, list_stall_timeout=0.05)):
            await follower.until_listed()
            server.faults.add("answer", status=410, where="watch")
            server.faults.add(kind, where="watch" if features.streaming_lists else "list", after=1, times=2)
            server.end_watches()
            server.delete("Service", "a", "default")
            server.apply(service("d"))
            server.compact()
            await follower.until(lambda: follower.names == set("bcd"))
            await eventually(lambda: not server.faults.due)  # a list was in vain already if the first watch was slow
    assert sorted(follower.take()[4:]) == ["applied d", "deleted a"]


async def test_a_silent_watch_is_left_and_its_silence_not_believed(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer() as server:
        server.apply(service("a"))
        async with reflecting(server, tmp_path, follower, quick(pauses, stall_timeout=0.05)):
            await follower.until_listed()
            server.faults.add("stall", where="watch")
            server.end_watches()
            await eventually(lambda: not server.faults.due)
            server.apply(service("b"))
            await follower.until(lambda: "b" in follower.names)
            assert listed(server) >= 2
    assert follower.take() == ["applied a", "listed Service", "applied b"]


async def test_a_cluster_that_was_put_back_in_time_is_listed_as_it_is(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer(features=PLAIN) as server:
        for name in "ab":
            server.apply(service(name))
        server.store.advance(1000)
        async with reflecting(server, tmp_path, follower, quick(pauses, stall_timeout=0.05)):
            await follower.until_listed()
            assert follower.names == {"a", "b"}
            items = server.objects("Service")
            server.store.restore(items[:1], 10)
            server.end_watches()
            await follower.until(lambda: follower.names == {"a"})
            server.apply(service("c"))
            await follower.until(lambda: follower.names == {"a", "c"})


async def test_a_storm_of_relists_changes_nothing(tmp_path: Path, follower: Follower, pauses: Pauses) -> None:
    async with ApiServer() as server:
        for name in "abc":
            server.apply(service(name))
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
            follower.take()
            for number in range(5):
                server.store.advance(100 + number)
                server.compact()
                server.end_watches()
                await pauses.until(number + 1)
                await eventually(lambda: server.watching == 1)
            assert follower.take() == []
            assert listed(server) == 6


class Scripted:
    """Requests that are answered from a script; after its end every request hangs."""

    def __init__(self, *answers: bytes | list[bytes] | ApiError) -> None:
        self.presence = ServerPresence()
        self._answers = list(answers)
        self.done = asyncio.Event()

    async def _next(self) -> Any:
        if not self._answers:
            self.done.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def get(self, path, params, *, only_metadata):  # type: ignore[no-untyped-def]
        return await self._next()

    async def stream(self, path, params, *, silent, only_metadata):  # type: ignore[no-untyped-def]
        lines = await self._next()
        if lines:
            yield lines


EMPTY = b'{"metadata":{"resourceVersion":"5"},"items":null}'
END = (
    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5",'
    b'"annotations":{"k8s.io/initial-events-end":"true"}}}}'
)


def added(name: str, version: int) -> bytes:
    metadata = f'{{"name":"{name}","namespace":"default","resourceVersion":"{version}"}}'
    return b'{"type":"ADDED","object":{"metadata":' + metadata.encode() + b"}}"


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(b"not JSON", id="not JSON"),
        pytest.param(b'["ADDED"]', id="not an event"),
        pytest.param(b'{"type":"RENAMED","object":{"metadata":{"name":"a"}}}', id="an unknown type of event"),
        pytest.param(b'{"type":"DELETED","object":{"metadata":7}}', id="a deletion of nothing"),
        pytest.param(b'{"type":"BOOKMARK","object":null}', id="a bookmark without a version"),
    ],
)
async def test_an_unreadable_line_leads_to_a_list(nonsense: bytes, follower: Follower, pauses: Pauses) -> None:
    again = [added("a", 6), added("b", 7), END]
    requests = Scripted([END], [added("a", 6), nonsense, added("lost", 8)], again)
    async with running(Reflector(requests, SERVICES, follower, quick(pauses)).run()):
        await requests.done.wait()
    assert follower.take() == ["listed Service", "applied a", "applied b"]
    assert pauses.taken == [0.8]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([added("a", 3)], id="a watch of an old server that has no end of initial events"),
        pytest.param(
            [added("a", 3), b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"4"}}}'],
            id="an ordinary bookmark comes first",
        ),
    ],
)
async def test_what_is_no_streaming_list_is_not_taken_for_one(
    answer: list[bytes], follower: Follower, pauses: Pauses
) -> None:
    requests = Scripted(answer, EMPTY)
    async with running(Reflector(requests, SERVICES, follower, quick(pauses)).run()):
        await requests.done.wait()
    assert follower.take() == ["applied a", "deleted a", "listed Service"]


async def test_an_unreadable_list_is_asked_for_again(follower: Follower, pauses: Pauses) -> None:
    requests = Scripted(ApiError(404, "NotFound", "no"), b"<html>busy</html>", EMPTY)
    async with running(Reflector(requests, SERVICES, follower, quick(pauses)).run()):
        await requests.done.wait()
    assert follower.take() == ["listed Service"]
    assert pauses.taken == [0.8]


async def test_a_watch_that_ends_at_once_is_not_repeated_at_once(follower: Follower, pauses: Pauses) -> None:
    requests = Scripted([END], [], [], [added("a", 6)])
    async with running(Reflector(requests, SERVICES, follower, quick(pauses, short_watch=60.0)).run()):
        await requests.done.wait()
    assert pauses.taken == [0.8, 1.6]


async def test_what_came_before_a_failure_has_happened(follower: Follower, pauses: Pauses) -> None:
    gone = b'{"type":"ERROR","object":{"kind":"Status","reason":"Expired","code":410,"message":"too old"}}'
    requests = Scripted([END], [added("a", 6), gone])
    async with running(Reflector(requests, SERVICES, follower, quick(pauses)).run()):
        await requests.done.wait()
    assert (Service, key("a")) in follower.items


@virtual(settles_within=0)
async def test_a_streaming_list_that_trickles_is_requested_in_pages() -> None:
    follower, pauses = Follower(), Pauses()

    class Trickling(Scripted):
        async def stream(self, path, params, *, silent, only_metadata):  # type: ignore[no-untyped-def]
            for number in itertools.count():
                await asyncio.sleep(20.0)
                yield [added(f"a{number}", number + 1)]

    clock = asyncio.get_running_loop().time
    follows = Reflector(Trickling(EMPTY), SERVICES, follower, quick(pauses, clock=clock))
    async with running(follows.run()):
        await follower.until(lambda: bool(follower.listed), within=3600)
    assert clock() == Timing().list_timeout


def cluster_policy(name: str) -> dict[str, Any]:
    version = f"{CLUSTER_NETWORK_POLICIES.group}/{CLUSTER_NETWORK_POLICIES.version}"
    return {"apiVersion": version, "kind": "ClusterNetworkPolicy", "metadata": {"name": name}, "spec": {}}


async def test_a_kind_that_a_cluster_need_not_have_is_empty_until_it_is_served(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer() as server:
        server.apply(cluster_policy("deny"))
        server.faults.add("answer", status=404, times=2)
        async with reflecting(server, tmp_path, follower, quick(pauses), CLUSTER_NETWORK_POLICIES) as reflector:
            await follower.until_listed()
            assert reflector.statistics.failures == 0
            await follower.until(lambda: "deny" in follower.names)
    assert follower.take() == ["listed ClusterNetworkPolicy", "applied deny"]
    assert pauses.taken == [60.0]


async def test_when_such_a_kind_is_served_no_more_its_objects_are_gone_if_a_list_says_so_too(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer() as server:
        server.apply(cluster_policy("deny"))
        async with reflecting(server, tmp_path, follower, quick(pauses), CLUSTER_NETWORK_POLICIES):
            await follower.until_listed()
            server.faults.add("answer", status=404, where="watch")
            server.end_watches()
            await pauses.until(1)
            server.apply(cluster_policy("allow"))
            await follower.until(lambda: "allow" in follower.names)
            assert follower.take() == ["applied deny", "listed ClusterNetworkPolicy", "applied allow"]
            server.faults.add("answer", status=404, times=3)
            server.end_watches()
            await pauses.until(3)
            await follower.until(lambda: follower.names == {"allow", "deny"})
    assert sorted(follower.take()) == ["applied allow", "applied deny", "deleted allow", "deleted deny"]
    assert pauses.taken == [0.8, 0.8, 60.0]
