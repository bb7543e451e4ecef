"""Of several API servers one is asked, until it fails: no change is missed, and none is left without a better one.

Times are virtual, except where processes are killed.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from kroute.checks.api_checks import API, check_api
from kroute.checks.finding import Level
from kroute.model.kinds import WATCHED
from kroute.settings import Settings
from kroute.watchers.kubernetes import server_choice
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.api_facts import read_api_facts
from kroute.watchers.kubernetes.authentication import service_account
from kroute.watchers.kubernetes.errors import NoServerError, UnreachableError
from kroute.watchers.kubernetes.server_choice import FIRST_PATIENCE, HEAD_START
from kroute.watchers.kubernetes.timing import Timing
from kroute.watchers.kubernetes.watcher import KubernetesWatcher
from tests.apiserver import ApiServer
from tests.apiserver.relay import Relay, RelayProcess
from tests.unit.test_apiserver_refusals import EVENT, EVENTS
from tests.unit.watchers.kubernetes.test_api import make_certificate, tls_server
from tests.unit.watching import Follower, endpoint_slice, eventually, node, running, service
from tests.virtual_time import in_virtual_time

GOAL = 3.0
"""Seconds from the failure of the server in use until a change of that moment is known."""
NODES = "/api/v1/nodes"


def now() -> float:
    return asyncio.get_running_loop().time()


class Member(NamedTuple):
    """One API server of a cluster, and the address by which it is reached."""

    server: ApiServer
    relay: Relay

    @property
    def url(self) -> str:
        return self.relay.url


@asynccontextmanager
async def cluster(size: int = 3) -> AsyncIterator[list[Member]]:
    """API servers with one store, which holds an object of every kind."""
    async with AsyncExitStack() as stack:
        members: list[Member] = []
        for _ in range(size):
            server = ApiServer(store=members[0].server.store if members else None)
            await stack.enter_async_context(server)
            members.append(Member(server, await stack.enter_async_context(Relay(server.port))))
        for item in (service("web"), endpoint_slice("web-1"), node("node1")):
            members[0].server.apply(item)
        yield members


def settings(*members: Member, **others: Any) -> Settings:
    return Settings(node_name="node1", master=tuple(member.url for member in members), **others)


class Following(NamedTuple):
    """What a watcher of all kinds knows, and its requests."""

    api: Api
    follower: Follower

    @property
    def failovers(self) -> int:
        return self.api.use().failovers

    async def knows(self, *names: str) -> None:
        await self.follower.until(lambda: self.follower.names >= set(names))


@asynccontextmanager
async def following(servers: Settings) -> AsyncIterator[Following]:
    """Follow Services, slices and Nodes; yields when all are listed, and all has been calm for a while."""
    follower = Follower()
    async with await Api.open(servers) as api:
        watcher = KubernetesWatcher(api, follower, Timing(clock=asyncio.get_running_loop().time))
        async with running(watcher.run()):
            await follower.until(lambda: len(follower.listed) == len(WATCHED))
            await asyncio.sleep(20)
            yield Following(api, follower)


def change_all(server: ApiServer, name: str) -> tuple[str, ...]:
    """Create an object of every kind. Returns their names."""
    names = f"{name}-service", f"{name}-slice", f"{name}-node"
    for item in (service(names[0]), endpoint_slice(names[1]), node(names[2])):
        server.apply(item)
    return names


# Ways to fail


async def _is_gone(member: Member) -> None:
    await member.relay.go()


async def _hangs(member: Member) -> None:
    member.relay.hang()


async def _is_not_ready(member: Member) -> None:
    member.server.is_ready = False


async def _closes_its_port(member: Member) -> None:
    """As in an orderly end: watches go on for a while."""
    member.server.is_ready = False
    await member.server.close_port()


async def _leads_elsewhere(member: Member) -> None:
    """Another program has the port now."""
    member.relay.says = b"SSH-2.0-OpenSSH_9.2\r\n"
    member.server.break_watches()


WAYS_TO_FAIL = (_is_gone, _hangs, _is_not_ready, _closes_its_port, _leads_elsewhere)
Fail = Callable[[Member], Awaitable[None]]


@pytest.mark.parametrize("fail", WAYS_TO_FAIL, ids=lambda it: it.__name__.strip("_"))
def test_a_change_in_the_moment_of_a_failure_is_known_within_three_seconds(fail: Fail) -> None:
    async def run() -> None:
        async with cluster() as members, following(settings(*members)) as it:
            assert it.api.server == members[0].url
            with structlog.testing.capture_logs() as logs:
                await fail(members[0])
                began = now()
                await it.knows(*change_all(members[1].server, "new"))
                assert now() - began < GOAL
                await asyncio.sleep(30)
            assert (it.api.server, it.failovers) == (members[1].url, 1)
            assert len(it.follower.listed) == len(WATCHED), "the watches go on where they were: nothing is listed again"
            [told] = [entry for entry in logs if entry["event"] == "api.failed_over"]
            assert (told["server"], told["instead_of"]) == (members[1].url, members[0].url)
            assert "\n" not in told["error"]
            assert not {entry["event"] for entry in logs} & {"watch.failed", "list.failed", "api.away"}

    in_virtual_time(run())


@pytest.mark.parametrize("fail", [_is_gone, _hangs], ids=["gone", "hangs"])
def test_the_last_of_three_is_found_as_soon(fail: Fail) -> None:
    async def run() -> None:
        async with cluster() as members, following(settings(*members)) as it:
            await fail(members[1])
            await asyncio.sleep(60)
            assert it.failovers == 0, "what is not in use concerns nobody"
            await fail(members[0])
            began = now()
            await it.knows(*change_all(members[2].server, "new"))
            assert now() - began < GOAL
            assert (it.api.server, it.failovers) == (members[2].url, 1)

    in_virtual_time(run())


def test_a_server_that_works_is_kept_when_another_comes_back() -> None:
    async def run() -> None:
        async with cluster() as members, following(settings(*members)) as it:
            await members[0].relay.go()
            await eventually(lambda: it.api.server == members[1].url)
            await members[0].relay.open_port()
            connections = members[1].relay.connections
            await asyncio.sleep(120)  # less than a watch lasts
            assert (it.api.server, it.failovers) == (members[1].url, 1)
            assert members[1].relay.connections == connections, "looks go over a connection that is kept"

    in_virtual_time(run())


def test_each_fails_in_turn_and_the_order_goes_round() -> None:
    async def run() -> None:
        async with cluster() as members, following(settings(*members)) as it:
            used = []
            for number in range(6):
                member = members[number % 3]
                await member.relay.go()
                await it.knows(*change_all(member.server, f"turn-{number}"))
                used.append(it.api.server)
                await member.relay.open_port()
                await asyncio.sleep(10)
            assert used == [members[number % 3].url for number in range(1, 7)]
            assert (it.failovers, len(it.follower.listed)) == (6, len(WATCHED))

    in_virtual_time(run())


@pytest.mark.parametrize("status", [200, 401, 403, 404, 429, 500, 503])
def test_readyz_counts_only_where_it_is_answered_with_an_error_of_the_server(
    status: int,
) -> None:
    async def run() -> None:
        async with cluster() as members, following(settings(*members)) as it:
            members[0].relay.says = f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode()  # to new connections
            await asyncio.sleep(0.5)  # between two looks
            it.api._client.leave_idle()  # type: ignore[union-attr]
            await asyncio.sleep(10)
            assert it.failovers == (status >= 500)

    in_virtual_time(run())


class TestWithoutABetterOne:
    def test_a_server_that_is_not_ready_is_kept_while_none_is(self) -> None:
        async def run() -> None:
            async with cluster() as members, following(settings(*members)) as it:
                for member in members:
                    member.server.is_ready = False
                await asyncio.sleep(20)
                await it.knows(*change_all(members[0].server, "new"))
                assert (it.api.server, it.failovers, it.api.presence.is_away) == (members[0].url, 0, False)
                seen = members[1].relay.connections
                await asyncio.sleep(30)
                assert members[1].relay.connections - seen <= 30 / server_choice.LAST_PAUSE + 1
                members[2].server.is_ready = True
                await eventually(lambda: it.api.server == members[2].url)

        in_virtual_time(run())

    def test_watches_that_live_on_are_not_cut(self) -> None:
        async def run() -> None:
            async with cluster() as members, following(settings(*members)) as it:
                for member in members:
                    await member.server.close_port()
                await asyncio.sleep(60)
                assert it.api.presence.is_away
                await it.knows(*change_all(members[0].server, "new"))
                assert it.failovers == 0

        in_virtual_time(run())

    @pytest.mark.parametrize("back", [0, 2])
    @pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "hanging"])
    def test_the_first_that_comes_back_is_used(self, back: int, is_killed: bool) -> None:
        async def run() -> None:
            async with cluster() as members, following(settings(*members)) as it:
                for member in members:
                    await member.relay.go() if is_killed else member.relay.hang()
                await asyncio.sleep(100)
                assert it.api.presence.is_away
                assert it.failovers == 0
                await members[back].relay.open_port() if is_killed else members[back].relay.resume()
                began = now()
                await it.knows(*change_all(members[0].server, "new"))
                assert now() - began < (1.5 if is_killed else 2 * server_choice.LAST_PATIENCE)
                assert it.api.server == members[back].url
                assert not it.api.presence.is_away

        in_virtual_time(run())

    def test_all_are_named_with_what_each_says(self) -> None:
        async def run() -> None:
            async with cluster() as members:
                await members[0].relay.go()
                members[1].relay.hang()
                await members[2].relay.go()
                async with await Api.open(settings(*members)) as api:
                    with pytest.raises(NoServerError) as raised:
                        await api.get(NODES)
                said = str(raised.value)
                assert said == (
                    f"no API server answers: {members[0].url}: Connection refused; "
                    f"{members[1].url}: no answer within 1 s; {members[2].url}: Connection refused"
                )

        in_virtual_time(run())


class TestAtTheStart:
    @pytest.mark.parametrize(
        ("fail", "used"),
        [((_hangs, _is_not_ready), 2), ((_is_gone, _is_not_ready, _is_not_ready), 1)],
        ids=["the first that is ready", "the first that answers, if none is ready"],
    )
    def test_the_best_is_used(self, fail: tuple[Fail, ...], used: int) -> None:
        async def run() -> None:
            async with cluster() as members:
                for member, fails in zip(members, fail, strict=False):
                    await fails(member)
                began = now()
                async with await Api.open(settings(*members)) as api:
                    await api.get(NODES)
                    assert now() - began <= HEAD_START + 0.1
                    assert (api.server, api.use().failovers) == (members[used].url, 0)
                assert [len(member.server.requests) for member in members] == [number == used for number in range(3)]

        in_virtual_time(run())

    def test_the_first_address_is_used_although_a_later_one_answers_sooner(self) -> None:
        async def run() -> None:
            async with cluster() as members:
                members[0].relay.hang()
                asyncio.get_running_loop().call_later(HEAD_START - 0.1, members[0].relay.resume)
                async with await Api.open(settings(*members)) as api:
                    await api.get(NODES)
                    assert api.server == members[0].url

        in_virtual_time(run())

    async def test_the_certificate_has_to_name_each_address_and_have_the_same_authority(self, tmp_path: Path) -> None:
        good, other = make_certificate(tmp_path, "good"), make_certificate(tmp_path, "other")  # for 127.0.0.1 alone
        async with tls_server(*good, token="secret") as server, tls_server(*other, token="secret") as foreign:
            urls = foreign.url, server.url.replace("127.0.0.1", "localhost"), server.url
            kubeconfig = server.kubeconfig(tmp_path / "config", authority=good[0])
            async with await Api.open(Settings(node_name="n", kubeconfig=kubeconfig, master=urls)) as api:
                await api.get(NODES)
                assert api.server == server.url
                assert "its certificate is not trusted" in (await api.faults())[foreign.url]
                assert "localhost" in (await api.faults())[urls[1]]
            assert foreign.requests == []

    async def test_in_a_pod_the_service_account_is_for_all_of_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        certificate, key = make_certificate(tmp_path, "ca")
        (tmp_path / "token").write_text("secret")
        (tmp_path / "ca.crt").write_bytes(certificate.read_bytes())
        monkeypatch.setattr(service_account, "DIRECTORY", tmp_path)
        async with tls_server(certificate, key, token="secret") as server:
            master = "https://127.0.0.1:1", server.url
            async with await Api.open(Settings(node_name="n", master=master)) as api:
                await api.get(NODES)
                assert server.requests[-1].headers["Authorization"] == "Bearer secret"
        async with ApiServer() as server, await Api.open(Settings(node_name="n", master=(server.url,))) as api:
            await api.get(NODES)
            assert "Authorization" not in server.requests[-1].headers, "a token is not sent in clear text"

    def test_with_one_address_nothing_of_this_is_loaded_or_asked(self) -> None:
        script = (
            "import asyncio, sys\n"
            "from kroute.watchers.kubernetes.api import Api, Settings\n"
            "async def run():\n"
            "    async with await Api.open(Settings(node_name='n', master=('http://127.0.0.1:1',))) as api:\n"
            "        await api.stay_reachable()\n"
            "asyncio.run(run()); print('kroute.watchers.kubernetes.server_choice' in sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"


class TestWrites:
    def test_one_that_was_refused_is_made_by_the_next_server(self) -> None:
        async def run() -> None:
            async with cluster() as members, await Api.open(settings(*members)) as api:
                await api.get(NODES)
                await members[0].relay.go()
                await asyncio.sleep(0.1)
                await api.create(EVENTS, EVENT)
                assert api.server == members[1].url
            assert [seen.method for member in members for seen in member.server.requests] == ["GET", "POST"]

        in_virtual_time(run())

    def test_one_that_may_have_been_made_is_not_repeated(self) -> None:
        async def run() -> None:
            async with cluster() as members, following(settings(*members)) as it:
                members[0].relay.hang()
                with pytest.raises(UnreachableError) as raised:
                    await it.api.create(EVENTS, EVENT)
                assert raised.value.moved
                await it.api.get(NODES)
                assert it.api.server == members[1].url
            methods = [seen.method for member in members for seen in member.server.requests]
            assert "POST" not in methods

        in_virtual_time(run())

    def test_one_waits_until_any_server_is_back(self) -> None:
        async def run() -> None:
            async with cluster() as members, following(settings(*members)) as it, asyncio.TaskGroup() as group:
                for member in members:
                    await member.relay.go()
                writing = group.create_task(it.api.when_up.create(EVENTS, EVENT))
                await asyncio.sleep(30)
                assert not writing.done()
                await members[2].relay.open_port()
            assert [seen.method for seen in members[2].server.requests].count("POST") == 1

        in_virtual_time(run())


class TestNoFlapping:
    def test_slow_servers_do_not_take_turns(self) -> None:
        """All answer, each after longer than a look has at first."""

        async def run() -> None:
            async with cluster() as members, following(settings(*members)) as it:
                for member in members:
                    member.relay.delay = 1.5 * FIRST_PATIENCE
                await asyncio.sleep(150)
                assert it.failovers <= 2
                await it.knows(*change_all(members[0].server, "new"))

        in_virtual_time(run())

    def test_a_process_that_stood_still_itself_blames_no_server(self) -> None:
        async def run() -> None:
            async with cluster() as members, following(settings(*members)) as it:
                loop: Any = asyncio.get_running_loop()
                client: Any = it.api._client
                ask, looks = client.request, list[float]()

                async def request(*what: Any, **how: Any) -> Any:
                    looks.append(now())
                    if len(looks) % 2:
                        loop.call_soon(setattr, loop._virtual, "now", now() + 10 * FIRST_PATIENCE)
                    return await ask(*what, **how)

                client.request = request
                await eventually(lambda: len(looks) > 6)
                assert it.failovers == 0
                assert members[1].relay.connections == 0

        in_virtual_time(run())

    def test_connections_that_lead_nowhere_are_left_though_the_address_works(self) -> None:
        """A load balancer whose server has gone without a word: new connections lead to another one."""

        async def run() -> None:
            async with cluster() as members:
                balancer, behind = members[0], members[1]
                await members[2].relay.go()
                async with following(settings(balancer, members[2])) as it:
                    balancer.relay.forget()
                    balancer.relay.to = behind.server.port
                    began = now()
                    await it.knows(*change_all(behind.server, "new"))
                    assert now() - began < GOAL
                    assert (it.api.server, it.failovers) == (balancer.url, 0)

        in_virtual_time(run())


async def test_kroute_check_names_each_server_that_could_not_be_used() -> None:
    async with cluster() as members:
        await members[1].relay.go()
        found, _ = await check_api(settings(*members))
        assert [(finding.level, finding.message) for finding in found if finding.check == API] == [
            (Level.OK, f"{members[0].url} answers"),
            (Level.WARNING, f"{members[1].url}: Connection refused"),
            (Level.OK, f"{members[2].url} is ready"),
        ]


async def test_the_addresses_of_all_servers_are_needed_by_the_node() -> None:
    async with ApiServer() as server:
        servers = (server.url, "http://192.0.2.7:6443", "http://[2001:db8::7]:6443")
        facts = await read_api_facts(Settings(node_name="n", master=servers))
        assert facts.servers == {"127.0.0.1", "192.0.2.7", "2001:db8::7"}


async def test_processes_that_are_killed_and_stopped_in_turn_lose_no_change(tmp_path: Path) -> None:
    """In real time, with real signals: each of three servers ends, while objects change all the time."""
    async with ApiServer() as server:
        with RelayProcess(server.port) as one, RelayProcess(server.port) as two, RelayProcess(server.port) as three:
            relays = [one, two, three]
            follower, written = Follower(), set[str]()
            addresses = tuple(relay.url for relay in relays)
            async with await Api.open(Settings(node_name="node1", master=addresses)) as api:
                watcher = KubernetesWatcher(api, follower)
                async with running(watcher.run(), _keep_changing(server, written)):
                    await follower.until(lambda: len(follower.listed) == len(WATCHED))
                    for number, end in enumerate((RelayProcess.kill, RelayProcess.stop, RelayProcess.kill)):
                        assert api.server == relays[number].url
                        seen = len(written)
                        end(relays[number])
                        await eventually(lambda seen=seen: len(written) > seen + 5)
                        await follower.until(lambda: follower.names >= written)
                        relays[number].kill()
                        relays[number].start()
                assert api.use().failovers == 3
                assert api.server == one.url
            assert len(follower.listed) == len(WATCHED), "nothing was listed again"


async def _keep_changing(server: ApiServer, written: set[str]) -> None:
    for number in range(1_000_000):
        written.add(f"web-{number}")
        server.apply(service(f"web-{number}"))
        await asyncio.sleep(0.05)
