"""A reflector lists, watches and passes on the differences."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kroute.model.kinds import ENDPOINT_SLICES
from kroute.model.objects import Applied, EndpointSlice, Service
from kroute.watchers.kubernetes import reflector as reflector_module
from tests.apiserver import ApiServer, Features
from tests.unit.watching import Follower, Pauses, endpoint_slice, eventually, key, quick, reflecting, service

PLAIN = Features(streaming_lists=False)


def watches(server: ApiServer) -> list[dict[str, str]]:
    return [seen.query for seen in server.requests if "watch" in seen.query]


def lists(server: ApiServer) -> list[dict[str, str]]:
    return [seen.query for seen in server.requests if "watch" not in seen.query]


TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"


@pytest.mark.parametrize("features", [Features(), PLAIN], ids=["streaming list", "plain list"])
async def test_a_change_of_a_slice_tells_when_it_was_triggered_and_a_list_does_not(
    features: Features, tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    def piece(name: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "default", "annotations": {TRIGGER: "2023-11-14T22:13:20Z"}}
        return {"kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4"}

    async with ApiServer(features=features) as server:
        server.apply(piece("old"))
        async with reflecting(server, tmp_path, follower, quick(pauses), ENDPOINT_SLICES):
            await follower.until_listed()
            server.apply(piece("new"))
            await follower.until(lambda: follower.names == {"old", "new"})
    applied = [change for change in follower.changes if isinstance(change, Applied)]
    assert [(it.item.key.name, it.triggered) for it in applied] == [("old", None), ("new", 1_700_000_000.0)]


async def test_denials_are_counted(tmp_path: Path, follower: Follower, pauses: Pauses) -> None:
    async with ApiServer(features=PLAIN) as server:
        for status in (403, 500, 401):
            server.faults.add("answer", where="list", status=status)
        async with reflecting(server, tmp_path, follower, quick(pauses)) as reflector:
            await follower.until_listed()
    assert (reflector.statistics.failures, reflector.statistics.denied) == (3, 2)


@pytest.mark.parametrize("features", [Features(), PLAIN], ids=["streaming list", "plain list"])
async def test_everything_is_listed_once_and_then_followed(
    features: Features, tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer(features=features) as server:
        server.apply(service("a"))
        server.apply(service("b"))
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
            assert follower.take() == ["applied a", "applied b", "listed Service"]
            server.apply(service("c"))
            server.apply(service("a", type="NodePort"))
            server.delete("Service", "b", "default")
            await follower.until(lambda: follower.names == {"a", "c"})
            assert follower.take() == ["applied c", "applied a", "deleted b"]
    item = follower.items[Service, key("a")]
    assert isinstance(item, Service)
    assert item.spec.type == "NodePort"
    assert pauses.taken == []


async def test_an_empty_cluster_is_listed_too(tmp_path: Path, follower: Follower, pauses: Pauses) -> None:
    async with ApiServer(features=PLAIN) as server, reflecting(server, tmp_path, follower, quick(pauses)):
        await follower.until_listed()
    assert follower.take() == ["listed Service"]


async def test_requests_name_their_selectors_and_versions(tmp_path: Path, follower: Follower, pauses: Pauses) -> None:
    async with ApiServer(features=PLAIN) as server, reflecting(server, tmp_path, follower, quick(pauses)):
        await follower.until_listed()
        server.apply(service("a"))
        await follower.until(lambda: bool(follower.items))
        first, second = watches(server)
        selectors = {"fieldSelector": "spec.clusterIP!=None"}
        follow = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "300", **selectors}
        assert lists(server) == [{**selectors, "limit": "500", "resourceVersion": "0"}]
        assert first == {**follow, "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        assert second == {**follow, "resourceVersion": "1"}
        assert "gzip" in server.requests[0].headers["Accept-Encoding"]


async def test_a_server_without_streaming_lists_is_asked_for_one_only_once(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer(features=PLAIN) as server, reflecting(server, tmp_path, follower, quick(pauses)):
        await follower.until_listed()
        server.faults.add("answer", status=410, where="watch")
        server.end_watches()
        await pauses.until(1)
        server.apply(service("a"))
        await follower.until(lambda: bool(follower.items))
        assert sum("sendInitialEvents" in query for query in watches(server)) == 1
        assert len(lists(server)) == 2


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_every_refusal_of_a_streaming_list_leads_to_a_plain_one(
    status: int, tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer() as server:
        server.faults.add("answer", status=status, where="watch")
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
            assert len(lists(server)) == 1


async def test_pages_are_joined(
    tmp_path: Path, follower: Follower, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector_module, "PAGE_SIZE", 2)
    async with ApiServer(features=Features(streaming_lists=False, watch_cache=False)) as server:
        for name in "abcde":
            server.apply(service(name))
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
            assert follower.names == set("abcde")
            assert [("continue" in query, query["limit"]) for query in lists(server)] == [
                (False, "2"),
                (True, "2"),
                (True, "2"),
            ]


async def test_an_expired_page_leads_to_a_full_list(
    tmp_path: Path, follower: Follower, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector_module, "PAGE_SIZE", 2)
    async with ApiServer(features=Features(streaming_lists=False, watch_cache=False)) as server:
        for name in "abcde":
            server.apply(service(name))

        original = server.faults.take

        def compact_before_the_second_page(where, resource):  # type: ignore[no-untyped-def]
            if "continue" in server.requests[-1].query:
                server.delete("Service", "a", "default")
                server.compact()
            return original(where, resource)

        server.faults.take = compact_before_the_second_page  # type: ignore[method-assign]
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
            assert follower.names == set("bcde")
            assert lists(server)[-1].keys() == {"fieldSelector"}
            assert pauses.taken == []


async def test_bookmarks_move_the_version_from_which_the_next_watch_goes_on(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer(second=0.002) as server:
        server.apply(service("a"))
        async with reflecting(server, tmp_path, follower, quick(pauses, watch_timeout=61.0)):
            await follower.until_listed()
            server.store.advance(777)
            server.compact()
            await eventually(lambda: len(watches(server)) == 2)
            assert watches(server)[1]["resourceVersion"] == "777"


@pytest.mark.parametrize("how", ["status", "line"])
@pytest.mark.parametrize("features", [Features(), PLAIN], ids=["streaming list", "plain list"])
async def test_an_expired_watch_leads_to_a_difference(
    how: str, features: Features, tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer(features=features) as server:
        for name in "abcd":
            server.apply(service(name))
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
            follower.take()
            if how == "status":
                server.faults.add("answer", status=410, where="watch")
            # the watch ends first, so it misses all of this
            server.end_watches()
            server.delete("Service", "a", "default")
            server.apply(service("b", type="NodePort"))
            server.apply(service("e"))
            server.compact()
            await follower.until(lambda: follower.names == set("bcde"))
    assert follower.take() == ["applied b", "applied e", "deleted a"]


async def test_an_object_that_the_selector_excludes_is_deleted_and_comes_back(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer() as server:
        server.apply(endpoint_slice("a"))
        async with reflecting(server, tmp_path, follower, quick(pauses), ENDPOINT_SLICES):
            await follower.until_listed()
            assert watches(server)[0]["labelSelector"] == "!service.kubernetes.io/headless"
            server.apply(endpoint_slice("a", **{"service.kubernetes.io/headless": ""}))
            await follower.until(lambda: not follower.items)
            server.apply(endpoint_slice("a"))
            await follower.until(lambda: bool(follower.items))
    assert follower.take() == ["applied a", "listed EndpointSlice", "deleted a", "applied a"]


async def test_a_server_that_cannot_select_by_cluster_ip_is_helped_out(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer(features=Features(service_fields=False)) as server:
        server.apply(service("a"))
        server.apply(service("headless", clusterIP="None"))
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
            assert follower.names == {"a"}
            server.apply(service("a", clusterIP="None"))
            await follower.until(lambda: not follower.items)
            assert "sendInitialEvents" in watches(server)[-1]


async def test_a_large_list_is_compressed_and_passed_on_in_batches(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer(features=PLAIN) as server:
        for number in range(1000):
            server.apply(service(f"s{number:04}"))
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
    assert len(follower.items) == 1000
    assert max(follower.batches) <= 101


async def test_a_line_of_several_mebibytes_is_one_line(tmp_path: Path, follower: Follower, pauses: Pauses) -> None:
    endpoints = [{"addresses": [f"10.{n >> 8}.{n & 255}.1"], "hostname": "h" * 4000} for n in range(1000)]
    large = {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": "large", "namespace": "default"},
        "addressType": "IPv4",
        "endpoints": endpoints,
    }
    async with ApiServer() as server, reflecting(server, tmp_path, follower, quick(pauses), ENDPOINT_SLICES):
        await follower.until_listed()
        server.apply(large)
        await follower.until(lambda: bool(follower.items))
    item = follower.items[EndpointSlice, key("large")]
    assert isinstance(item, EndpointSlice)
    assert len(item.endpoints or ()) == 1000


@pytest.mark.parametrize("features", [Features(), PLAIN], ids=["streaming list", "plain list"])
async def test_a_malformed_object_is_named_counted_and_skipped(
    features: Features, tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer(features=features) as server:
        server.apply(service("a"))
        server.apply(service("bad", ports=[{"port": "eighty"}]))
        server.apply(service("c"))
        with capture_logs() as logs:
            async with reflecting(server, tmp_path, follower, quick(pauses)) as reflector:
                await follower.until_listed()
                server.apply(service("a", ports="none"))
                server.apply(service("d"))
                await follower.until(lambda: "d" in follower.names)
                assert reflector.statistics.malformed == 2
    assert follower.names == {"a", "c", "d"}  # a is in its last readable state
    malformed = [entry for entry in logs if entry["event"] == "object.malformed"]
    assert [entry["object"] for entry in malformed] == ["default/bad", "default/a"]
    assert "$.spec.ports[0].port" in malformed[0]["problem"]


async def test_an_object_that_turned_malformed_is_not_deleted_by_a_relist(
    tmp_path: Path, follower: Follower, pauses: Pauses
) -> None:
    async with ApiServer() as server:
        server.apply(service("a"))
        async with reflecting(server, tmp_path, follower, quick(pauses)) as reflector:
            await follower.until_listed()
            server.end_watches()
            server.apply(service("a", ports="none"))
            server.apply(service("b"))
            server.compact()
            await follower.until(lambda: "b" in follower.names)
            assert reflector.statistics.malformed == 1
    assert follower.take() == ["applied a", "listed Service", "applied b"]
