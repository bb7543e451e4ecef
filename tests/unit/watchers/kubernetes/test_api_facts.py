"""The API server's addresses and the ranges of ClusterIPs are found, and followed when they change."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kroute.model.node_facts import ApiFacts
from kroute.settings import Settings
from kroute.watchers.kubernetes import api_facts
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.api_facts import SERVICE_CIDRS, ApiFactsWatcher, read_api_facts, resolved
from kroute.watchers.kubernetes.errors import ApiError, UnreachableError
from kroute.watchers.kubernetes.server_presence import Peers
from tests.apiserver import ApiServer
from tests.unit.watching import eventually, running

LIST = b'{"items": [{"spec": {"cidrs": ["10.97.0.0/16", "fd00:97::/108"]}}, {"spec": {"cidrs": ["10.96.0.0/16"]}}, {}]}'


class Connection:
    def get_extra_info(self, _: str) -> tuple[str, int]:
        return "192.0.2.9", 6443


class FakeApi:
    """An API server that gives one fixed answer."""

    def __init__(self, answer: bytes | ApiError) -> None:
        self.addresses = ("https://192.0.2.1:6443",)
        self.peers = Peers()
        self.answer = answer
        self.asked: list[str] = []

    async def get(self, path: str, _: Mapping[str, str] | None = None) -> bytes:
        self.asked.append(path)
        if isinstance(self.answer, ApiError):
            raise self.answer
        return self.answer


def watcher(api: FakeApi, told: list[ApiFacts]) -> ApiFactsWatcher:
    return ApiFactsWatcher(api, told.append)  # type: ignore[arg-type]  # as far as it is used


async def test_the_ranges_of_all_objects_are_known() -> None:
    api, told = FakeApi(LIST), list[ApiFacts]()
    async with running(watcher(api, told).run()):
        await eventually(lambda: len(told) == 2)
    assert api.asked == [SERVICE_CIDRS]
    assert told == [
        ApiFacts(frozenset({"192.0.2.1"})),
        ApiFacts(frozenset({"192.0.2.1"}), ("10.96.0.0/16", "10.97.0.0/16", "fd00:97::/108")),
    ]


@pytest.mark.parametrize(
    ("answer", "is_asked_again"),
    [
        pytest.param(ApiError(404, "NotFound", "no such kind"), False, id="before Kubernetes 1.33"),
        pytest.param(ApiError(403, "Forbidden", "no right"), False, id="without the right"),
        pytest.param(b"<html>", False, id="something else"),
        pytest.param(b'{"items": ' + b"[" * 5000 + b"]" * 5000 + b"}", False, id="something deep"),
        pytest.param(UnreachableError("gone"), True, id="nobody"),
    ],
)
async def test_no_answer_costs_nothing_and_is_asked_for_again_if_nobody_gave_it(
    answer: bytes | ApiError, is_asked_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_facts, "RESOLVE_EVERY", 0.01)
    turns: list[str] = []

    async def counted(server: str) -> frozenset[str]:
        turns.append(server)
        return await resolved(server)

    monkeypatch.setattr(api_facts, "resolved", counted)
    api, told = FakeApi(answer), list[ApiFacts]()
    async with running(watcher(api, told).run()):
        await eventually(lambda: len(turns) == 4)
    assert (len(api.asked) > 1) is is_asked_again
    assert told == [ApiFacts(frozenset({"192.0.2.1"}))]


async def test_a_connection_to_another_address_is_news_at_once() -> None:
    api, told = FakeApi(b"{}"), list[ApiFacts]()
    async with running(watcher(api, told).run()):
        await eventually(lambda: bool(api.asked and told))
        api.peers.saw(Connection())
        await eventually(lambda: len(told) == 2)
    assert told[-1].servers == {"192.0.2.1", "192.0.2.9"}


async def test_a_name_that_no_longer_resolves_keeps_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_facts, "RESOLVE_EVERY", 0.01)
    answers = [frozenset({"192.0.2.1"}), frozenset[str](), frozenset[str](), frozenset({"192.0.2.2"})]

    async def given(_: str) -> frozenset[str]:
        return answers.pop(0) if answers else frozenset({"192.0.2.2"})

    monkeypatch.setattr(api_facts, "resolved", given)
    told: list[ApiFacts] = []
    async with running(watcher(FakeApi(b"{}"), told).run()):
        await eventually(lambda: not answers and len(told) > 1)
    assert [it.servers for it in told] == [{"192.0.2.1"}, {"192.0.2.2"}]


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://192.0.2.1:6443", {"192.0.2.1"}),
        ("https://[FD00:0::1]:6443/prefix", {"fd00::1"}),
        ("http://localhost", {"127.0.0.1"}),
        ("https://" + "a" * 80 + ".example", set()),
        ("https://[", set()),
    ],
)
async def test_a_servers_addresses(server: str, expected: set[str]) -> None:
    assert expected <= await resolved(server)
    if not expected:
        assert await resolved(server) == set()


async def test_who_answers_is_noticed(tmp_path: Path) -> None:
    async with ApiServer() as server:
        settings = Settings(node_name="node1", kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"))
        async with await Api.open(settings) as api:
            events: Any = api.stream("/api/v1/services", {"watch": "true", "timeoutSeconds": "1"})
            async for _ in events:
                pass
            assert api.peers.recent() == {"127.0.0.1"}
        assert (await read_api_facts(settings)).servers == {"127.0.0.1"}
