"""The stand-in API server refuses what kube-apiserver 1.36 refuses of writes, lists and watches, and takes the rest."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.apiserver import ApiServer
from tests.apiserver.resources import Object

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
SERVICES = "/api/v1/namespaces/default/services"
EVENT: Object = {
    "metadata": {"name": "web.187d1f5a9c3e7b20"},
    "eventTime": "2026-11-21T12:00:00.000000Z",
    "action": "Plan",
    "reason": "InvalidPort",
    "type": "Warning",
    "note": "port 0 is not served",
    "regarding": {"kind": "Service", "namespace": "default", "name": "web"},
    "reportingController": "kroute.io/kroute",
    "reportingInstance": "node1",
}
LEASE: Object = {"metadata": {"name": "director"}, "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15}}
MICRO_TIME = "2026-11-21T12:00:00.000000Z"


class Client:
    """Sends requests to a stand-in of its own."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._session = session

    async def send(self, method: str, path: str, body: Any = None, content_type: str = "") -> tuple[int, str]:
        """Return the status code and the reason of the answer."""
        default = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": content_type or default}
        url = URL(self.server.url + path, encoded=True)
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, url, data=data, headers=headers) as response:
            answer = await response.text()
            first = json.loads(answer.partition("\n")[0] or "{}")
            return response.status, first.get("reason", "") if first.get("kind") == "Status" else ""


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with ApiServer(second=0.005) as server, aiohttp.ClientSession() as session:
        yield Client(server, session)


def event(metadata: Object | None = None, **fields: Any) -> Object:
    return {**EVENT, **fields, "metadata": metadata or EVENT["metadata"]}


def lease(**spec: Any) -> Object:
    return {**LEASE, "spec": {**LEASE["spec"], **spec}}


def named(name: str) -> Object:
    return {"metadata": {"name": name}, "spec": {}}


WEB: Object = {"kind": "Service", "metadata": {"name": "web", "namespace": "default"}, "spec": {"type": "LoadBalancer"}}


def status(*addresses: str, version: str = "") -> Object:
    """What is sent to a Service's status."""
    metadata = {"name": "web", **({"resourceVersion": version} if version else {})}
    return {"metadata": metadata, "status": {"loadBalancer": {"ingress": [{"ip": it} for it in addresses]}}}


TAKEN = (201, "")
INVALID = (422, "Invalid")
BAD = (400, "BadRequest")


class TestWrites:
    @pytest.mark.parametrize(
        ("path", "body", "answer"),
        [
            pytest.param(EVENTS, EVENT, TAKEN, id="an event"),
            pytest.param(EVENTS, event({"name": "x" * 253}), TAKEN, id="a name of 253"),
            pytest.param(EVENTS, event({"name": "x" * 254}), INVALID, id="a name of 254"),
            pytest.param(EVENTS, event({"name": "Web.1"}), INVALID, id="upper case"),
            pytest.param(EVENTS, event({"name": "web."}), INVALID, id="a dot at the end"),
            pytest.param(EVENTS, event({"name": "a..b"}), INVALID, id="two dots"),
            pytest.param(EVENTS, event({"labels": {}}), INVALID, id="no name"),
            pytest.param(EVENTS, event({"generateName": "web-"}), TAKEN, id="a prefix with a dash"),
            pytest.param(EVENTS, event({"generateName": "web"}), TAKEN, id="a prefix with neither"),
            pytest.param(EVENTS, event({"generateName": "web."}), INVALID, id="a prefix with a dot"),
            pytest.param(EVENTS, event({"name": "web.1", "generateName": "web."}), INVALID, id="a bad prefix unused"),
            pytest.param(EVENTS, event({"name": "web.1", "namespace": "shop"}), BAD, id="another namespace"),
            pytest.param(EVENTS, event({"name": "web.1", "resourceVersion": "7"}), (500, ""), id="a version"),
            pytest.param(EVENTS, event(kind="Lease"), BAD, id="another kind"),
            pytest.param(EVENTS, event(apiVersion="v1"), BAD, id="another version of the API"),
            pytest.param(EVENTS, event(note="x" * 1024), TAKEN, id="a note of 1024"),
            pytest.param(EVENTS, event(note="ü" * 513), INVALID, id="a note of 1026 bytes"),
            pytest.param(EVENTS, event(note=""), TAKEN, id="no note"),
            pytest.param(EVENTS, event(reportingInstance="x" * 129), INVALID, id="a long instance"),
            pytest.param(EVENTS, event(reportingInstance=""), INVALID, id="no instance"),
            pytest.param(EVENTS, event(reportingController="a b"), INVALID, id="a controller that is no name"),
            pytest.param(EVENTS, event(reason="x" * 129), INVALID, id="a long reason"),
            pytest.param(EVENTS, event(action=""), INVALID, id="no action"),
            pytest.param(EVENTS, event(type="Error"), INVALID, id="another type"),
            pytest.param(EVENTS, event(eventTime=None), INVALID, id="no time"),
            pytest.param(EVENTS, event(eventTime="2026-11-21T12:00:00Z"), BAD, id="a time without microseconds"),
            pytest.param(EVENTS, event(series={"count": 2, "lastObservedTime": MICRO_TIME}), TAKEN, id="a series"),
            pytest.param(EVENTS, event(series={"count": 1, "lastObservedTime": MICRO_TIME}), INVALID, id="of one"),
            pytest.param(EVENTS, event(series={"count": 2}), INVALID, id="a series without time"),
            pytest.param(EVENTS, event(regarding={"kind": "Node", "name": "n"}), TAKEN, id="about a node"),
            pytest.param(
                EVENTS.replace("default", "shop"),
                event(regarding={"kind": "Node"}),
                INVALID,
                id="a node in a namespace",
            ),
            pytest.param(LEASES, LEASE, TAKEN, id="a lease"),
            pytest.param(LEASES, lease(leaseDurationSeconds=0), INVALID, id="a lease for no time"),
            pytest.param(LEASES, lease(leaseDurationSeconds=1 << 31), BAD, id="a lease for too long"),
            pytest.param(LEASES, lease(leaseTransitions=-1), INVALID, id="fewer transitions than none"),
            pytest.param(LEASES, lease(renewTime="2026-11-21T12:00:00.123Z"), BAD, id="a time in milliseconds"),
            pytest.param(LEASES, lease(renewTime=MICRO_TIME), TAKEN, id="a time in microseconds"),
            pytest.param(SERVICES, named("x" * 63), TAKEN, id="a service's name of 63"),
            pytest.param(SERVICES, named("x" * 64), INVALID, id="a service's name of 64"),
            pytest.param(SERVICES, named("web.shop"), INVALID, id="a service's name with a dot"),
            pytest.param(SERVICES, [], BAD, id="a list"),
        ],
    )
    async def test_of_a_new_object(self, client: Client, path: str, body: Any, answer: tuple[int, str]) -> None:
        assert await client.send("POST", path, body) == answer

    async def test_of_a_name_that_is_taken(self, client: Client) -> None:
        assert await client.send("POST", EVENTS, EVENT) == TAKEN
        assert await client.send("POST", EVENTS, event(note="another")) == (409, "AlreadyExists")

    @pytest.mark.parametrize(
        ("patch", "answer"),
        [
            pytest.param({"series": {"count": 2, "lastObservedTime": MICRO_TIME}}, (200, ""), id="the series"),
            pytest.param({"series": {"count": 1, "lastObservedTime": MICRO_TIME}}, INVALID, id="a series of one"),
            pytest.param({"note": "another"}, INVALID, id="the note"),
            pytest.param({"eventTime": "2026-11-21T13:00:00.000000Z"}, INVALID, id="the time"),
            pytest.param({"regarding": {"name": "other"}}, INVALID, id="what it is about"),
            pytest.param({"metadata": {"name": "other"}}, BAD, id="the name"),
            pytest.param({"metadata": {"resourceVersion": "1"}}, (409, "Conflict"), id="an older version"),
        ],
    )
    async def test_of_an_event_that_changes(self, client: Client, patch: Object, answer: tuple[int, str]) -> None:
        await client.send("POST", EVENTS, EVENT)
        assert await client.send("PATCH", f"{EVENTS}/{EVENT['metadata']['name']}", patch) == answer

    async def test_of_an_event_that_is_not_there(self, client: Client) -> None:
        assert await client.send("PATCH", f"{EVENTS}/gone", {"series": {"count": 2}}) == (404, "NotFound")

    @pytest.mark.parametrize("method", ["POST", "PATCH"])
    async def test_of_another_media_type(self, client: Client, method: str) -> None:
        path = EVENTS if method == "POST" else f"{EVENTS}/web"
        assert await client.send(method, path, EVENT, "text/plain") == (415, "UnsupportedMediaType")

    @pytest.mark.parametrize("method", ["PUT", "PATCH"])
    @pytest.mark.parametrize(
        ("kind", "body", "answer"),
        [
            pytest.param("LoadBalancer", status("192.0.2.1"), (200, ""), id="an address"),
            pytest.param("LoadBalancer", status(), (200, ""), id="none"),
            pytest.param("LoadBalancer", status("192.0.2"), INVALID, id="no address"),
            pytest.param("ClusterIP", status("192.0.2.1"), INVALID, id="another type"),
            pytest.param("LoadBalancer", status("192.0.2.1", version="1"), (409, "Conflict"), id="an older version"),
        ],
    )
    async def test_of_the_status_of_a_service(
        self, client: Client, method: str, kind: str, body: Object, answer: tuple[int, str]
    ) -> None:
        before = client.server.apply({**WEB, "spec": {"type": kind}})
        assert await client.send(method, f"{SERVICES}/web/status", {**body, "spec": {"type": "NodePort"}}) == answer
        [after] = client.server.objects("Service")
        assert after["spec"] == before["spec"]
        assert after.get("status") == (body["status"] if answer == (200, "") else None)

    async def test_of_a_status_that_is_not_there_or_is_forbidden(self, client: Client) -> None:
        assert await client.send("PATCH", f"{SERVICES}/web/status", status()) == (404, "NotFound")
        client.server.apply(WEB)
        client.server.access.forbid("patch", "services/status")
        assert await client.send("PATCH", f"{SERVICES}/web/status", status()) == (403, "Forbidden")
        assert await client.send("PATCH", f"{SERVICES}/web", {"spec": {"type": "NodePort"}}) == (200, "")
        assert await client.send("PATCH", f"{EVENTS}/web/status", status()) == (404, "NotFound")

    async def test_of_an_object_at_the_path_of_another(self, client: Client) -> None:
        await client.send("POST", SERVICES, named("web"))
        assert await client.send("PUT", f"{SERVICES}/web", named("other")) == BAD

    async def test_a_long_prefix_is_cut(self, client: Client) -> None:
        assert await client.send("POST", EVENTS, event({"generateName": "x" * 100})) == TAKEN
        [stored] = client.server.objects("Event")
        assert len(stored["metadata"]["name"]) == 63


class TestReads:
    @pytest.mark.parametrize(
        ("query", "answer"),
        [
            pytest.param("resourceVersion=1&resourceVersionMatch=NotOlderThan", (200, ""), id="not older"),
            pytest.param("resourceVersionMatch=NotOlderThan", INVALID, id="no version to match"),
            pytest.param("resourceVersion=1&resourceVersionMatch=Newer", INVALID, id="no such match"),
            pytest.param("resourceVersion=0&resourceVersionMatch=Exact", INVALID, id="exactly any"),
            pytest.param("resourceVersion=1&limit=5", (410, "Expired"), id="pages of an old version"),
            pytest.param("resourceVersion=0&limit=5", (200, ""), id="pages of any version"),
            pytest.param("resourceVersion=-1", (500, ""), id="a negative version"),
            pytest.param("sendInitialEvents=true", INVALID, id="a list with initial events"),
            pytest.param("limit=five", BAD, id="a limit that is no number"),
            pytest.param("continue=Z2FyYmFnZQ", BAD, id="a token that is no JSON"),
            pytest.param("continue=e30", BAD, id="a token of no version"),
            pytest.param("continue=e30&resourceVersion=1", BAD, id="a token and a version"),
            pytest.param("labelSelector=a%20b", BAD, id="a label with a space"),
            pytest.param(f"labelSelector={'x' * 64}", BAD, id="a label of 64"),
            pytest.param(f"labelSelector=a%3D{'x' * 64}", BAD, id="a value of 64"),
            pytest.param("labelSelector=a,,b", BAD, id="a selector with nothing in it"),
            pytest.param("labelSelector=kubernetes.io%2Fname%3Dweb", (200, ""), id="a label with a prefix"),
            pytest.param("fieldSelector=spec.ports%3D80", BAD, id="a field that cannot select"),
            pytest.param("watch=1&resourceVersionMatch=NotOlderThan", INVALID, id="a watch with a match"),
            pytest.param("watch=1&sendInitialEvents=true", INVALID, id="initial events without a match"),
            pytest.param("watch=1&timeoutSeconds=0.5", BAD, id="half a second"),
            pytest.param("watch=1&timeoutSeconds=1", (200, ""), id="a watch"),
        ],
    )
    async def test_of_options(self, client: Client, query: str, answer: tuple[int, str]) -> None:
        client.server.apply({"kind": "Service", **named("web"), "metadata": {"name": "web", "namespace": "default"}})
        client.server.compact()
        assert await client.send("GET", f"{SERVICES}?{query}") == answer
