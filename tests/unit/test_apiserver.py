"""The stand-in API server answers as the recorded one did, and fails on request."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from tests.apiserver import ApiServer, Features
from tests.apiserver.encoding import EventEncoder, encode
from tests.apiserver.recording import NAMES, Recording, deep_service, recorded_objects, replay
from tests.apiserver.resources import Object, key_of
from tests.apiserver.store import Store

SECOND = 0.005


def at_4477(store: Store) -> None:
    store.restore(recorded_objects(), 4477)


def after_the_edits(store: Store) -> None:
    at_4477(store)
    replay(store, "watch-bookmarks")


def after_a_compaction(store: Store) -> None:
    store.restore(recorded_objects(), 5420)


def with_edited_services(revision: int) -> Callable[[Store], None]:
    def prepare(store: Store) -> None:
        after_the_edits(store)
        store.advance(revision)

    return prepare


def with_edited_slices(store: Store) -> None:
    at_4477(store)
    replay(store, "watch-endpointslices")


def with_the_whole_history(store: Store) -> None:
    replay(store, "watch-old-rv-replayed")


def with_1001_services(store: Store) -> None:
    items = Recording.load("list-large-gzip").items
    more = [{**items[-1], "metadata": {**items[-1]["metadata"], "name": f"svc-{n:05}"}} for n in range(499, 1000)]
    store.restore([*items, *more], 4477)


def with_recorded(name: str) -> Callable[[Store], None]:
    """Hold the object that a recorded write made."""

    def prepare(store: Store) -> None:
        item = Recording.load(name).item
        store.restore([item], int(item["metadata"]["resourceVersion"]))

    return prepare


def with_list(name: str, *, then: str = "") -> Callable[[Store], None]:
    """Hold the objects of a recorded list at its revision; then make the changes of a recorded watch."""

    def prepare(store: Store) -> None:
        recording = Recording.load(name)
        store.restore(recording.items, int(recording.item["metadata"]["resourceVersion"]))
        if then:
            replay(store, then)

    return prepare


PREPARED: dict[str, Callable[[Store], None]] = {
    "error-410-continue": after_a_compaction,
    "get-daemonset": with_list("list-daemonsets"),
    "get-daemonset-404": with_list("list-daemonsets"),
    "list-daemonsets-page-1": with_list("list-daemonsets"),
    **{
        name: with_list(name)
        for name in NAMES
        if name.startswith(("list-daemonsets", "list-pods")) and name != "list-daemonsets-page-1"
    },
    "watch-daemonsets": with_list("list-daemonsets-generation-3", then="watch-daemonsets"),
    "watch-pods-of-node": with_list("list-pods-of-node-pending", then="watch-pods-of-node"),
    "event-create-again": with_recorded("event-create-named"),
    "lease-create-409": with_recorded("lease-create"),
    "lease-update": with_recorded("lease-create"),
    "lease-update-409": with_recorded("lease-update"),
    "list-continue-after-compaction": after_the_edits,
    "list-large-gzip": with_1001_services,
    "list-rv-future": with_edited_services(4514),
    "watch-410": after_a_compaction,
    "watch-bookmarks": with_edited_services(4495),
    "watch-endpointslices": with_edited_slices,
    "watch-old-rv-replayed": with_the_whole_history,
    "watch-rv0": after_the_edits,
    "watch-services": after_the_edits,
    "watchlist-services": with_edited_services(4510),
}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def authorization(name: str) -> dict[str, str]:
    """Return the token that a request had: recordings leave it out."""
    if name.startswith("error-403"):
        return {}
    return {"Authorization": "Bearer wrong" if name == "error-401" else "Bearer secret"}


def significant(lines: list[bytes], name: str) -> list[bytes]:
    """Leave out the ordinary bookmarks of short watches: how many come in their last seconds depends on timing."""
    if name not in {"watchlist-services", "watch-pods-of-node"}:
        return lines
    return [line for line in lines if b"BOOKMARK" not in line or b"initial-events-end" in line]


async def test_the_recorded_object_that_is_nested_1100_deep_is_given_out_as_it_was(
    session: aiohttp.ClientSession,
) -> None:
    recording = Recording.load("stored/service-deep-managed-fields")
    async with ApiServer() as api:
        api.store.put(deep_service(), verbatim=True)
        async with session.get(f"{api.url}{recording.path}") as response:
            assert response.status == recording.status
            assert await response.read() == recording.body


CHOSEN_BY_THE_SERVER = {"uid", "resourceVersion", "creationTimestamp", "managedFields"}
NOT_OF_THE_STAND_IN = {"deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"}
"""Fields of Events that nobody has written and nobody reads."""


def comparable(answer: bytes, recording: Recording) -> object:
    """What answers to a write have in common: what the server makes up is left out, the ends of names too."""
    content = json.loads(answer)
    if recording.is_write and content["kind"] != "Status":
        content = {name: value for name, value in content.items() if name not in NOT_OF_THE_STAND_IN}
        content["metadata"] = {
            name: value for name, value in content["metadata"].items() if name not in CHOSEN_BY_THE_SERVER
        }
    if recording.request_body and "generateName" in recording.request_body:
        prefix = re.escape(json.loads(recording.request_body)["metadata"]["generateName"])
        return json.loads(re.sub(f"({prefix})[a-z0-9]{{5}}", r"\1-----", json.dumps(content)))
    return content


@pytest.mark.parametrize("name", NAMES)
async def test_each_recorded_request_gets_the_recorded_answer(name: str, session: aiohttp.ClientSession) -> None:
    recording = Recording.load(name)
    async with ApiServer(token="secret", second=SECOND) as api:
        PREPARED.get(name, at_4477)(api.store)
        url = URL(api.url + recording.path, encoded=True)
        headers = {"Accept-Encoding": "identity", **recording.request_headers, **authorization(name)}
        if recording.is_write:
            headers["Content-Type"] = "application/json"
        async with session.request(recording.method, url, headers=headers, data=recording.request_body) as response:
            body = await response.read()

    assert response.status == recording.status
    assert {header: response.headers.get(header) for header in recording.headers} == recording.headers
    assert ("Transfer-Encoding" in response.headers) == ("Transfer-Encoding" in recording.headers)
    if recording.is_stream:
        lines = significant(body.splitlines(keepends=True), name)
        assert lines == significant(recording.lines, name)
    elif name == "list-large-gzip" or recording.is_write:
        assert comparable(body, recording) == comparable(recording.body, recording)
    else:
        assert body == recording.body


def service(name: str, **spec: object) -> Object:
    metadata = {"name": name, "namespace": "default"}
    return {"kind": "Service", "apiVersion": "v1", "metadata": metadata, "spec": {"clusterIP": "10.96.0.9", **spec}}


async def test_a_label_that_the_selector_excludes_turns_a_change_into_deleted_and_back_into_added(
    session: aiohttp.ClientSession,
) -> None:
    async with ApiServer(second=SECOND) as api:
        start = api.apply(service("web"))["metadata"]["resourceVersion"]
        labelled = service("web")
        labelled["metadata"]["labels"] = {"skip": "yes"}
        api.apply(labelled)
        api.apply(service("web"))
        query = {"watch": "1", "labelSelector": "!skip", "resourceVersion": start, "timeoutSeconds": "1"}
        async with session.get(f"{api.url}/api/v1/services", params=query) as response:
            events = [json.loads(line) for line in (await response.read()).splitlines()]

    assert [event["type"] for event in events] == ["DELETED", "ADDED"]
    assert "labels" not in events[0]["object"]["metadata"]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        pytest.param("app", ["a", "b"], id="exists"),
        pytest.param("!app", ["c"], id="does not exist"),
        pytest.param("app=one", ["a"], id="equals"),
        pytest.param("app!=one", ["b", "c"], id="differs or is absent"),
        pytest.param("app in (one, two),app!=two", ["a"], id="one of, and"),
        pytest.param("app notin (one)", ["b", "c"], id="none of"),
    ],
)
async def test_label_selectors(selector: str, names: list[str], session: aiohttp.ClientSession) -> None:
    async with ApiServer() as api:
        for name, label in (("a", "one"), ("b", "two"), ("c", None)):
            item = service(name)
            item["metadata"]["labels"] = {"app": label} if label else {}
            api.apply(item)
        async with session.get(f"{api.url}/api/v1/services", params={"labelSelector": selector}) as response:
            assert [item["metadata"]["name"] for item in (await response.json())["items"]] == names


async def test_pages_show_one_snapshot_whatever_happens_between_them(session: aiohttp.ClientSession) -> None:
    async with ApiServer() as api:
        for name in "abcd":
            api.apply(service(name))
        url = f"{api.url}/api/v1/services"
        async with session.get(url, params={"limit": "2"}) as response:
            first = await response.json()
        api.delete("Service", "c", "default")
        api.apply(service("e"))
        token = first["metadata"]["continue"]
        async with session.get(url, params={"limit": "2", "continue": token}) as response:
            second = await response.json()

    assert [item["metadata"]["name"] for page in (first, second) for item in page["items"]] == list("abcd")
    assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}


async def test_a_server_without_a_feature_says_so(session: aiohttp.ClientSession) -> None:
    features = Features(streaming_lists=False, service_fields=False)
    async with ApiServer(features=features) as api:
        url = f"{api.url}/api/v1/services"
        async with session.get(url, params={"fieldSelector": "spec.clusterIP!=None"}) as response:
            assert (response.status, (await response.json())["reason"]) == (400, "BadRequest")
        async with session.get(url, params={"watch": "1", "sendInitialEvents": "true"}) as response:
            assert (response.status, (await response.json())["reason"]) == (422, "Invalid")


async def test_objects_are_changed_by_ordinary_requests(session: aiohttp.ClientSession) -> None:
    async with ApiServer() as api:
        url = f"{api.url}/api/v1/namespaces/default/services"
        async with session.post(url, json=service("web")) as response:
            assert response.status == 201
            created = await response.json()
        async with session.post(url, json=service("web")) as response:
            assert response.status == 409
        patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"clusterIP": None, "type": "ExternalName"}}
        async with session.patch(f"{url}/web", json=patch) as response:
            assert response.status == 415
        headers = {"Content-Type": "application/merge-patch+json"}
        async with session.patch(f"{url}/web", json=patch, headers=headers) as response:
            patched = await response.json()
        async with session.put(f"{url}/web", json=created) as response:
            assert response.status == 409  # it has changed since then
        async with session.delete(f"{url}/web") as response:
            assert response.status == 200
        async with session.get(f"{url}/web") as response:
            assert (response.status, (await response.json())["message"]) == (404, 'services "web" not found')

    assert patched["metadata"]["uid"] == created["metadata"]["uid"]
    assert (patched["metadata"]["labels"], patched["spec"]) == ({"a": "b"}, {"type": "ExternalName"})


async def test_a_lease_is_replaced_by_who_has_read_it_and_made_by_whoever_puts_it(
    session: aiohttp.ClientSession,
) -> None:
    async with ApiServer() as api:
        url = f"{api.url}/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/director"
        lease = {"metadata": {"name": "director"}, "spec": {"holderIdentity": "one"}}
        async with session.put(
            url, json={**lease, "metadata": {"name": "director", "resourceVersion": "7"}}
        ) as response:
            assert (response.status, (await response.json())["reason"]) == (409, "Conflict")
        async with session.put(url, json=lease) as response:
            assert response.status == 201
            created = await response.json()
        async with session.put(url, json=lease) as response:
            assert (response.status, (await response.json())["reason"]) == (422, "Invalid")
        async with session.put(url, json=created) as response:
            assert response.status == 200
        async with session.put(url, json=created) as response:
            assert (response.status, (await response.json())["reason"]) == (409, "Conflict")


async def test_faults_are_met_once_by_the_requests_that_they_concern(session: aiohttp.ClientSession) -> None:
    async with ApiServer(second=SECOND) as api:
        api.apply(service("web"))
        fault = {"kind": "answer", "status": 429, "retry_after": 7, "where": "list", "resource": "services"}
        async with session.post(f"{api.url}/faults", json=fault) as response:
            assert response.status == 201
        async with session.get(f"{api.url}/api/v1/nodes") as response:
            assert response.status == 200
        async with session.get(f"{api.url}/api/v1/services") as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "7")
        async with session.get(f"{api.url}/api/v1/services") as response:
            assert response.status == 200


@pytest.mark.parametrize("kind", ["drop", "truncate"])
@pytest.mark.parametrize("query", [{}, {"watch": "1"}], ids=["list", "watch"])
async def test_a_broken_connection_is_an_error_for_the_client(
    kind: str, query: dict[str, str], session: aiohttp.ClientSession
) -> None:
    async with ApiServer() as api:
        api.apply(service("web"))
        api.faults.add(kind, times=2)  # aiohttp itself repeats once a GET that got no answer
        with pytest.raises((aiohttp.ClientError, ConnectionResetError)):
            async with session.get(f"{api.url}/api/v1/services", params=query) as response:
                await response.read()


async def test_a_cut_watch_ends_within_a_line(session: aiohttp.ClientSession) -> None:
    async with ApiServer() as api:
        api.apply(service("a"))
        api.apply(service("b"))
        api.faults.add("cut", where="watch", after=1)
        async with session.get(f"{api.url}/api/v1/services", params={"watch": "1"}) as response:
            first, rest = (await response.read()).split(b"\n")
    assert json.loads(first)["object"]["metadata"]["name"] == "a"
    assert rest
    assert not rest.endswith(b"}")


def test_an_event_of_kept_bytes_reads_like_any_other() -> None:
    encoder = EventEncoder()
    for item in recorded_objects():
        event = {"type": "ADDED", "object": item}
        assert encoder.encode(event) == encoder.encode(event) == encode(event)


async def test_objects_encoded_ahead_are_listed_as_they_are_now(session: aiohttp.ClientSession) -> None:
    query = {"watch": "1", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "timeoutSeconds": "1"}
    async with ApiServer(second=SECOND) as server:
        server.store.restore(recorded_objects(), 5420)
        server.encode_ahead()
        (changed,) = (item for item in server.objects("Service") if item["metadata"]["name"] == "nodeport")
        server.apply({**changed, "metadata": {**changed["metadata"], "labels": {"new": "label"}}})
        async with session.get(f"{server.url}/api/v1/services", params=query) as answer:
            listed = [json.loads(line)["object"] for line in (await answer.read()).splitlines()]
        assert listed == sorted(server.objects("Service"), key=key_of)


def test_it_runs_as_a_process_with_the_objects_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"kind": "List", "items": [service("a"), {"kind": "Secret"}]}))
    (tmp_path / "b.yaml").write_text("kind: Node\nmetadata:\n  name: node1\n---\n")
    command = [sys.executable, "-m", "tests.apiserver", "--port", "0", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        names = []
        for path in ("/api/v1/services", "/api/v1/nodes"):
            with urllib.request.urlopen(url + path) as response:
                names += [item["metadata"]["name"] for item in json.load(response)["items"]]
        process.terminate()
    assert names == ["a", "node1"]
    assert process.returncode == 0
