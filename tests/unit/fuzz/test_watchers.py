"""Whatever bytes objects contain, no exception leaves the watchers, and the victims among them are read unchanged."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kroute.director import lease
from kroute.inspect.planned_state import read_key
from kroute.model.kinds import POLICY_KINDS, WATCHED
from kroute.model.objects import Applied
from kroute.watchers import json_text
from kroute.watchers.kubernetes.authentication import exec_plugin
from kroute.watchers.kubernetes.authentication.kubeconfig import KubeconfigCredentials
from kroute.watchers.kubernetes.decoding import (
    LineBuffer,
    Malformed,
    ObjectDecoder,
    read_event,
    read_page,
    trigger_time,
)
from kroute.watchers.kubernetes.errors import LONGEST_MESSAGE, ApiError, ConfigurationError
from kroute.watchers.kubernetes.reflector import Reflector
from kroute.watchers.kubernetes.server_presence import ServerPresence
from kroute.watchers.manifests import UnreadableError, read_manifest
from tests.apiserver.encoding import encode
from tests.unit.fuzz.objects import LEASE, NODE, SERVICE, SLICE
from tests.unit.fuzz.strategies import damaged, fuzzed, hostile_json, spoilt
from tests.unit.planning.policies.cluster import block, cluster_policy, ingress, namespace, pod, pods_with, port
from tests.unit.watchers import json_steps
from tests.unit.watchers.kubernetes.test_reflector_failures import END
from tests.unit.watching import Follower, Pauses, quick, running

POLICY = ingress(pods_with(app="client"), block("10.0.0.0/8", "10.1.0.0/16"), ports=[{"port": "http", "endPort": 90}])
POD = pod("web", "10.244.1.5", "fd00:244:1::5", ports=[port("http", 8080)], app="web")
TEMPLATES = {
    "Service": SERVICE,
    "EndpointSlice": SLICE,
    "Node": NODE,
    "NetworkPolicy": POLICY,
    "ClusterNetworkPolicy": cluster_policy(egress=[{"action": "Deny", "to": [{"networks": ["10.0.0.0/8"]}]}]),
    "Pod": POD,
    "Namespace": namespace("shop", team="a"),
}
KINDS = [pytest.param(kind, TEMPLATES[kind.name], id=kind.name) for kind in (*WATCHED, *POLICY_KINDS)]
REFUSED = ApiError(422, "Invalid", "streaming lists are not offered")
PAGE = b'{"kind":"List","metadata":{"resourceVersion":"5"},"items":[%b]}\n'
LINE = b'{"type":"%b","object":%b}'


def victim(template: dict[str, Any], name: str, version: int) -> bytes:
    item = copy.deepcopy(template)
    item["metadata"] |= {"name": name, "resourceVersion": str(version)}
    return encode(item).rstrip()


class Answers:
    """A server without streaming lists: it returns one list, one watch, and then the same last list every time."""

    def __init__(self, before: bytes, lines: list[bytes] | None = None, after: bytes = b"") -> None:
        self._lists = [before]
        self._watches: list[list[bytes] | ApiError] = [REFUSED, *([lines] if lines else [])]
        self._after = after
        self.presence = ServerPresence()
        self.done = asyncio.Event()

    async def get(self, _path: str, _params: Mapping[str, str], **_: bool) -> bytes:
        return self._lists.pop() if self._lists else self._after

    async def stream(
        self, _path: str, _params: Mapping[str, str], **_: object
    ) -> AsyncGenerator[Sequence[bytes], None]:
        if not self._watches:
            self.done.set()
            await asyncio.Event().wait()
        lines = self._watches.pop(0)
        if isinstance(lines, ApiError):
            raise lines
        yield lines


def followed(kind: Any, before: bytes, lines: list[bytes] | None = None, after: bytes = b"") -> Follower:
    """Return the follower after all answers."""
    follower = Follower()

    async def follow() -> None:
        requests = Answers(before, lines, after)
        async with running(Reflector(requests, kind, follower, quick(Pauses())).run()):
            async with asyncio.timeout(60):
                await requests.done.wait()

    with capture_logs():
        asyncio.run(follow())
    return follower


def delivered(follower: Follower) -> dict[str, Any]:
    """Return the victims as last delivered. None was ever deleted: a Follower fails at a deletion of what it lacks."""
    return {key.name: item for (_, key), item in follower.items.items() if key.name in {"first", "last"}}


@pytest.mark.parametrize(("kind", "template"), KINDS)
@fuzzed
@given(data=st.data())
def test_victims_in_a_list_are_unchanged(kind: Any, template: dict[str, Any], data: st.DataObject) -> None:
    hostile = data.draw(st.lists(st.one_of(spoilt(template), hostile_json), min_size=1, max_size=3))
    victims = victim(template, "first", 1), victim(template, "last", 2)
    alone = followed(kind, PAGE % b",".join(victims))
    beside = followed(kind, PAGE % b",".join([victims[0], *hostile, victims[1]]))
    assert delivered(beside) == delivered(alone)
    assert beside.listed == [kind.type]


@pytest.mark.parametrize(("kind", "template"), KINDS)
@fuzzed
@given(data=st.data())
def test_victims_in_a_watch_are_unchanged(kind: Any, template: dict[str, Any], data: st.DataObject) -> None:
    types = st.sampled_from((b"ADDED", b"MODIFIED", b"DELETED"))
    hostile = data.draw(st.lists(st.tuples(types, spoilt(template)), min_size=1, max_size=3))
    victims = victim(template, "first", 6), victim(template, "last", 7)
    first, last = (LINE % (b"ADDED", it) for it in victims)
    lines = [first, *(LINE % it for it in hostile), last]
    again = PAGE % b",".join(victims)  # when deletions cannot be recognised, all objects are listed again
    follower = followed(kind, PAGE % b"", lines, again)
    alone = followed(kind, again)
    assert delivered(follower) == delivered(alone)


@pytest.mark.parametrize(("kind", "template"), KINDS)
@fuzzed
@given(data=st.data())
def test_damaged_answers_lose_nobody(kind: Any, template: dict[str, Any], data: st.DataObject) -> None:
    """Bytes that are no JSON may cause another list; the known objects stay until it arrives."""
    known = victim(template, "first", 1), victim(template, "last", 2)
    page = PAGE % b",".join(known)
    line = LINE % (b"MODIFIED", victim(template, "attacker", 3))
    lines = data.draw(st.lists(damaged(line, END, LINE % (b"ERROR", b'{"code":410}')), max_size=3))
    follower = followed(kind, page, [it.replace(b"\n", b"") for it in lines], page)
    assert set(delivered(follower)) == {"first", "last"}


@fuzzed
@given(damaged(PAGE % encode(SERVICE), PAGE % b"", PAGE % encode(SLICE), PAGE % b",".join([encode(NODE)] * 3)))
def test_a_list_is_read_or_refused(body: bytes) -> None:
    try:
        page = asyncio.run(read_page(body))
    except msgspec.DecodeError:
        return
    assert len(page.items or ()) <= body.count(b",") + 1
    for raw in page.items or ():
        for kind in WATCHED:
            decoder = ObjectDecoder(kind.type)
            item = decoder.decode(raw)
            assert isinstance(item, Malformed | kind.type)
            if not isinstance(item, Malformed):
                trigger_time(item)


@fuzzed
@given(damaged(LINE % (b"ADDED", encode(SERVICE)), LINE % (b"DELETED", encode(SLICE)), END))
def test_a_watch_line_is_read_or_refused(line: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        event = read_event(line)
        decoder = ObjectDecoder(WATCHED[0].type)
        decoder.decode(event.object)
        ApiError.from_status(bytes(event.object))


@fuzzed
@given(st.one_of(hostile_json, damaged(PAGE % encode(SERVICE))))
def test_the_work_is_proportional_to_the_text(text: bytes) -> None:
    with json_steps.counted() as steps:
        found = [(it.start, it.stop) for it in json_text.members(text).values()]
        with contextlib.suppress(msgspec.DecodeError):
            assert sum(map(len, json_text.elements(text))) <= len(text)
    assert all(0 <= start <= end <= len(text) for start, end in found)
    assert steps.taken <= 4 * len(text) + 16


@fuzzed
@given(st.lists(st.binary(max_size=40), max_size=20))
def test_lines_are_those_of_the_whole_however_they_arrive(pieces: list[bytes]) -> None:
    buffer = LineBuffer()
    assert [line for piece in pieces for line in buffer.take(piece)] == b"".join(pieces).split(b"\n")[:-1]


@fuzzed
@given(
    st.one_of(
        hostile_json, damaged(b'{"code":500,"reason":"x","details":{"causes":[{"reason":"y"}],"retryAfterSeconds":1}}')
    ),
    st.one_of(st.none(), st.text(max_size=20)),
)
def test_a_status_is_an_error_of_bounded_length_and_pause(body: bytes, header: str | None) -> None:
    error = ApiError.from_status(body, 0, header)
    assert len(str(error)) <= 2 * LONGEST_MESSAGE + 100
    assert 0 <= (error.retry_after or 0) <= 300
    assert 0 <= error.status <= 599


@fuzzed
@given(st.one_of(spoilt(LEASE), damaged(encode(LEASE)), hostile_json))
def test_a_lease_is_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        lease._decode(body)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


KUBECONFIG = {
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", "certificate-authority-data": "YQ=="}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "users": [{"name": "u", "user": {"token": "t", "client-certificate-data": "YQ==", "client-key": "key"}}],
}


@fuzzed
@given(st.one_of(spoilt(KUBECONFIG), damaged(encode(KUBECONFIG)), hostile_json))
def test_a_kubeconfig_is_read_or_refused(directory: Path, text: bytes) -> None:
    file = directory / "kubeconfig"
    file.write_bytes(text)
    with contextlib.suppress(ConfigurationError):
        asyncio.run(KubeconfigCredentials(file).load())


ANSWER = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "t", "expirationTimestamp": "2030-01-01T00:00:00Z", "clientCertificateData": "c"},
}


@fuzzed
@given(st.one_of(spoilt(ANSWER), damaged(encode(ANSWER)), hostile_json))
def test_the_answer_of_a_plugin_is_read_or_refused(output: bytes) -> None:
    with contextlib.suppress(ConfigurationError):
        credential = exec_plugin.credential_in(output, "plugin", "client.authentication.k8s.io/v1")
        assert credential.token or credential.client_certificate_data


YAML = b"""\
apiVersion: v1
kind: Service
metadata: &m {name: web, labels: {app: &a web}}
spec:
  clusterIP: 10.96.0.10
  ports:
  - {port: 80, name: *a}
---
kind: List
items: [{kind: Node, metadata: *m}]
"""


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@fuzzed
@given(data=st.data())
def test_a_manifest_is_read_or_refused(directory: Path, suffix: str, data: st.DataObject) -> None:
    valid = (encode(SERVICE), encode({"kind": "List", "items": [SLICE, NODE]}))
    text = data.draw(
        st.one_of(spoilt(SERVICE), damaged(*valid, *([YAML.replace(b"*m", b"{name: b}"), YAML] * (suffix == "yaml"))))
    )
    path = directory / f"a.{suffix}"
    path.write_bytes(text)
    with contextlib.suppress(UnreadableError):
        parts = read_manifest(path)
        assert len(parts) <= text.count(b"{") + text.count(b":") + text.count(b"-") + text.count(b",") + 2


@fuzzed
@given(st.text(max_size=60))
def test_a_question_about_a_frontend_makes_sense_or_none(about: str) -> None:
    with contextlib.suppress(ValueError):
        read_key(about)


def test_the_templates_are_valid() -> None:
    """Otherwise the hostile objects would have no valid neighbours."""
    for kind in WATCHED:
        follower = followed(kind, PAGE % victim(TEMPLATES[kind.name], "first", 1))
        assert [type(it) for it in follower.changes if isinstance(it, Applied)] == [Applied]
        assert set(delivered(follower)) == {"first"}
