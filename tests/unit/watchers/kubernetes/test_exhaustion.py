"""When the system has run out of something, requests to the API fail, say what, and work later."""

import asyncio
import errno
import resource
import socket
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.base.backoff import exhaustion
from kroute.model.kinds import SERVICES
from kroute.settings import Settings
from kroute.watchers.kubernetes import api_facts
from kroute.watchers.kubernetes.api import Api, _clients
from kroute.watchers.kubernetes.authentication import kubeconfig, service_account
from kroute.watchers.kubernetes.authentication.configuration import Configuration
from kroute.watchers.kubernetes.errors import ConfigurationError, UnreachableError
from kroute.watchers.kubernetes.reflector import Reflector
from kroute.watchers.kubernetes.timing import Timing
from tests import starting
from tests.apiserver import ApiServer
from tests.openings import EVENTS, Openings
from tests.unit.watchers.kubernetes.authentication.test_exec_plugin import ANSWER, VERSION
from tests.unit.watchers.kubernetes.test_api import make_certificate
from tests.unit.watching import Follower, Pauses, running, service

NODES = "/api/v1/nodes"
NUMBERS = range(4)
NO_THREAD = RuntimeError("can't start new thread")
NAMES = [
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    socket.gaierror(socket.EAI_MEMORY, "Memory allocation failure"),
    NO_THREAD,
    MemoryError(),
]


@pytest.fixture(autouse=True)
def _always_read_again_and_ask_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kubeconfig, service_account):
        monkeypatch.setattr(module, "REFRESH_PERIOD", 0.0)
    starting.do_not_wait(monkeypatch)


async def opened(settings: Settings, openings: Openings) -> Api:
    """Open the API as an agent does at its start: until nothing is lacking."""
    while True:
        before = dict(openings.failed)
        try:
            with openings.failing():
                return await Api.open(settings)
        except ConfigurationError as error:
            if exhaustion(error) is None or openings.failed == before:
                raise


async def asked(api: Api, openings: Openings) -> int:
    """Ask until there is an answer; return how often there was none."""
    failures = 0
    while True:
        before = dict(openings.failed)
        try:
            with openings.failing():
                await api.get(NODES)
        except UnreachableError as error:
            if exhaustion(error) is None or openings.failed == before:
                raise
            failures += 1
        else:
            return failures


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_reflector_lists_in_the_end_and_says_what_to_raise(
    number: int, tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    openings = Openings(number, times=3, only={"socket.__new__": ""})
    async with ApiServer() as server, await Api.open(Settings(node_name="a", master=(server.url,))) as api:
        server.apply(service("a"))
        reflector = Reflector(api, SERVICES, follower, Timing(sleep=pauses))
        with capture_logs() as logs, openings.failing():
            async with running(reflector.run()):
                await follower.until_listed()
    assert reflector.statistics.failures == 3
    assert [line["event"] for line in logs] == ["api.away", "api.back", "list.complete"]
    assert "raise the" in logs[0]["error"] or "free memory" in logs[0]["error"]


@pytest.mark.parametrize("error", NAMES, ids=repr)
async def test_a_name_that_cannot_be_resolved_for_want_of_a_resource_is_resolved_later(
    error: Exception, follower: Follower, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = socket.getaddrinfo, [error] * 3

    def resolve(*arguments: object, **named: object) -> object:
        if left:
            raise left.pop()
        return real(*arguments, **named)  # type: ignore[arg-type]

    async with ApiServer() as server:
        by_name = server.url.replace("127.0.0.1", "localhost")
        async with await Api.open(Settings(node_name="a", master=(by_name,))) as api:
            monkeypatch.setattr(socket, "getaddrinfo", resolve)
            reflector = Reflector(api, SERVICES, follower, Timing(sleep=pauses))
            with capture_logs() as logs:
                async with running(reflector.run()):
                    await follower.until_listed()
    assert reflector.statistics.failures == 3
    assert [line["event"] for line in logs] == ["api.away", "api.back", "list.complete"]


@pytest.mark.parametrize("error", NAMES, ids=repr)
async def test_the_servers_addresses_stay_as_they_were(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail)
    assert await api_facts.resolved("http://localhost:80") == frozenset()


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_kubeconfig_file_and_its_token_file_are_read_in_the_end(number: int, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    openings = Openings(number)
    async with ApiServer(token="secret") as server:
        file = server.kubeconfig(tmp_path / "config", tokenFile=str(tmp_path / "token"))
        async with await opened(Settings(node_name="a", kubeconfig=file), openings) as api:
            assert await asked(api, openings) > 0
            file.touch()
            openings.failed.clear()
            assert await asked(api, openings) > 0
    assert {str(file), str(tmp_path / "token")} <= {name for _, name, _ in openings.failed}


@pytest.mark.parametrize("number", NUMBERS)
async def test_the_files_of_a_service_account_are_read_in_the_end(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("secret")
    authority.write_text("not looked at")
    monkeypatch.setattr(service_account, "DIRECTORY", tmp_path)
    openings = Openings(number)
    async with ApiServer(token="secret") as server:
        monkeypatch.setattr(service_account, "_host", lambda: server.url)
        async with await opened(Settings(node_name="a"), openings) as api:
            assert {str(token), str(authority)} <= {name for _, name, _ in openings.failed}
            openings.failed.clear()
            assert await asked(api, openings) > 0
    assert str(token) in {name for _, name, _ in openings.failed}


def test_certificates_that_cannot_be_opened_say_what_to_raise(tmp_path: Path) -> None:
    certificate, _ = make_certificate(tmp_path, "server")
    configuration = Configuration(host="https://127.0.0.1:1")
    configuration.authority = certificate
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # OpenSSL opens the file itself: the error is a real one
    try:
        with pytest.raises(ConfigurationError) as refused:
            _clients(configuration, [configuration.host])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "limit of open files" in str(exhaustion(refused.value))


@pytest.mark.parametrize("number", range(len(EVENTS["subprocess.Popen"])))
async def test_a_plugin_that_cannot_be_started_is_started_later(number: int, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho '{ANSWER}'\n")
    plugin.chmod(stat.S_IRWXU)
    openings = Openings(number, times=2, only={"subprocess.Popen": "plugin"})
    async with ApiServer(token="secret") as server:
        file = server.kubeconfig(tmp_path / "config", exec={"apiVersion": VERSION, "command": str(plugin)})
        async with await opened(Settings(node_name="a", kubeconfig=file), openings) as api:
            assert list(openings.failed.values()) == [2]
            openings.failed.clear()
            assert await asked(api, openings) == 2


async def test_a_plugin_for_which_there_is_no_thread_is_a_failure_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ApiServer() as server, await Api.open(Settings(node_name="a", master=(server.url,))) as api:

        async def refresh(**_: object) -> None:
            raise NO_THREAD

        monkeypatch.setattr(api._credentials, "refresh", refresh)
        with pytest.raises(UnreachableError, match="limit of processes and threads"):
            await api.get(NODES)
