"""Bytes of any kind in one object affect that object only: its neighbours in lists and watches are read."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from kroute.model.kinds import SERVICES
from kroute.model.objects import (
    Applied,
    ClusterNetworkPolicy,
    ClusterNetworkPolicySpec,
    ClusterPeer,
    ClusterPolicyRule,
    EndpointSlice,
    LabelSelector,
    NetworkPolicy,
    NetworkPolicySpec,
    ObjectMeta,
    Service,
)
from kroute.watchers.kubernetes import decoding, reflector
from kroute.watchers.kubernetes.decoding import TRIGGER_TIME, LineBuffer, Malformed, ObjectDecoder, trigger_time
from kroute.watchers.kubernetes.errors import LONGEST_MESSAGE, AnswerTooLongError, ApiError
from kroute.watchers.kubernetes.reflector import Reflector
from tests.apiserver import ApiServer, Features
from tests.apiserver.encoding import Verbatim, encode, nested
from tests.apiserver.recording import deep_service
from tests.unit.watchers import json_steps
from tests.unit.watchers.kubernetes.test_reflector_failures import END, Scripted
from tests.unit.watching import PATIENCE, Follower, Pauses, eventually, quick, reflecting, running, service

REFUSED = ApiError(422, "Invalid", "streaming lists are not offered")
RECORDED = "deep"
FIVE_MINUTES = 300
"""Seconds; as a number here, since a bound that is compared with itself holds always."""


def with_metadata(member: bytes) -> bytes:
    return (
        b'{"metadata":{"name":"bad","namespace":"default","resourceVersion":"3",%b},"spec":{"clusterIP":""}}' % member
    )


def with_spec(member: bytes) -> bytes:
    return b'{"metadata":{"name":"bad","namespace":"default","resourceVersion":"3"},"spec":{%b}}' % member


def in_depth(levels: int) -> bytes:
    return with_metadata(b'"managedFields":' + encode(nested(levels)).rstrip())


SERVED = {
    "nested 900 deep": in_depth(900),
    "invalid UTF-8 that is not read": with_metadata(b'"generateName":"\xff"'),
    "a huge number that is not read": with_metadata(b'"generation":' + b"9" * 10_000),
    "a name twice": with_metadata(b'"name":"bad"'),
}
REFUSED_OBJECTS = {
    "nested 1,100 deep, as recorded": encode(deep_service()).rstrip(),
    "nested as deep as the API server takes": in_depth(9_990),
    "invalid UTF-8": with_metadata(b'"uid":"\xff\xfe"'),
    "an overlong form": with_metadata(b'"uid":"\xc0\xaf"'),
    "an encoded surrogate": with_metadata(b'"uid":"\xed\xa0\x80"'),
    "invalid UTF-8 in a label": with_metadata(b'"labels":{"a":"\xe9"}'),
    "a lone surrogate": with_metadata(b'"uid":"\\ud800"'),
    "a lone surrogate that is not read": with_metadata(b'"generateName":"\\udfff!"'),
    "an unknown escape": with_metadata(b'"generateName":"\\q"'),
    "a control character": with_metadata(b'"generateName":"\x01"'),
    "no number": with_metadata(b'"generation":NaN'),
    "a number of 10,000 digits": with_spec(b'"healthCheckNodePort":' + b"9" * 10_000),
    "a number of 4,000 digits": with_spec(b'"ports":[{"port":%b}]' % (b"9" * 4_000)),
    "a number of 33 bits": with_spec(b'"ports":[{"port":4294967376}]'),
    "an infinite number": with_spec(b'"healthCheckNodePort":1e999'),
    "a field nested too deep": with_spec(b'"ports":%b' % (b"[" * 2_000 + b"]" * 2_000)),
    "many values, and one nested too deep": with_metadata(
        b'"x":[%b1]' % (b"[]," * 12_000 + b"[" * 2_000 + b"]" * 2_000)
    ),
    "metadata of another type": b'{"metadata":5}',
    "metadata is a list": b'{"metadata":["name"]}',
    "no metadata": b"{}",
    "no object": b"5",
    "a name of another type": b'{"metadata":{"name":{"a":1},"namespace":"default"}}',
    "labels of another type": with_metadata(b'"labels":[1]'),
    "an annotation of another type": with_metadata(b'"annotations":{"a":1}'),
    "a version of another type": b'{"metadata":{"name":"bad","namespace":"default","resourceVersion":3}}',
    "an absurd version": b'{"metadata":{"name":"bad","namespace":"default","resourceVersion":"%b"}}' % (b"3" * 100_000),
    "ports of another type": with_spec(b'"ports":{"0":1}'),
    "a spec of another type": b'{"metadata":{"name":"bad","namespace":"default","resourceVersion":"3"},"spec":"x"}',
}
NAMED = {name: it for name, it in REFUSED_OBJECTS.items() if it.startswith(b'{"metadata":{"name":"bad"')}


def victim(name: str, version: int = 2) -> bytes:
    item = service(name)
    return encode({**item, "metadata": {**item["metadata"], "resourceVersion": str(version)}}).rstrip()


def listed(*items: bytes) -> bytes:
    return b'{"kind":"ServiceList","metadata":{"resourceVersion":"5"},"items":[%b]}\n' % b",".join(items)


def event(kind: str, item: bytes) -> bytes:
    return b'{"type":"%b","object":%b}' % (kind.encode(), item)


async def followed(*answers: Any) -> tuple[Follower, Pauses, Reflector]:
    """Return what a follower has after a reflector has received all of these answers."""
    follower, pauses, requests = Follower(), Pauses(), Scripted(*answers)
    follows = Reflector(requests, SERVICES, follower, quick(pauses))
    async with running(follows.run()):
        async with asyncio.timeout(PATIENCE):
            await requests.done.wait()
    return follower, pauses, follows


@pytest.mark.parametrize("bad", [pytest.param(it, id=name) for name, it in (SERVED | REFUSED_OBJECTS).items()])
async def test_the_neighbours_in_a_list_are_read(bad: bytes) -> None:
    follower, pauses, _ = await followed(REFUSED, listed(victim("a"), bad, victim("z")))
    assert follower.names - {"bad", RECORDED} == {"a", "z"}
    assert follower.listed == [Service]
    assert pauses.taken == []


@pytest.mark.parametrize("bad", [pytest.param(it, id=name) for name, it in (SERVED | REFUSED_OBJECTS).items()])
async def test_the_neighbours_in_a_watch_are_read(bad: bytes) -> None:
    lines = [event("ADDED", victim("a", 6)), event("ADDED", bad), event("MODIFIED", victim("z", 7))]
    follower, pauses, follows = await followed(REFUSED, listed(), lines)
    assert follower.names - {"bad", RECORDED} == {"a", "z"}
    assert (pauses.taken, follows.statistics.failures, follows.statistics.resource_version) == ([], 0, "7")


@pytest.mark.parametrize("bad", [pytest.param(it, id=name) for name, it in (SERVED | REFUSED_OBJECTS).items()])
async def test_the_neighbours_in_a_streaming_list_are_read(bad: bytes) -> None:
    follower, pauses, _ = await followed([event("ADDED", victim("a")), event("ADDED", bad), END])
    assert follower.names - {"bad", RECORDED} == {"a"}
    assert (follower.listed, pauses.taken) == ([Service], [])


@pytest.mark.parametrize("good", [pytest.param(it, id=name) for name, it in SERVED.items()])
async def test_what_is_not_read_cannot_be_wrong(good: bytes) -> None:
    in_list, _, _ = await followed(REFUSED, listed(good))
    in_watch, _, _ = await followed(REFUSED, listed(), [event("ADDED", good)])
    assert len(in_list.items) == len(in_watch.items) == 1
    assert in_list.items == in_watch.items


@pytest.mark.parametrize("bad", [pytest.param(it, id=name) for name, it in NAMED.items()])
async def test_what_was_served_of_an_object_stays_when_it_turns_bad(bad: bytes) -> None:
    """Its name can be read, so a new list that contains it does not count as its deletion."""
    before = listed(victim("a"), victim("bad"))
    follower, pauses, _ = await followed(
        REFUSED, before, [event("MODIFIED", bad)], ApiError(410, "Expired", ""), listed(victim("a"), bad)
    )
    assert follower.names == {"a", "bad"}
    assert len(pauses.taken) == 1  # after the 410


@pytest.mark.parametrize("bad", [pytest.param(it, id=name) for name, it in NAMED.items()])
async def test_the_deletion_of_a_bad_object_is_understood_by_its_name(bad: bytes) -> None:
    follower, pauses, _ = await followed(REFUSED, listed(victim("a"), victim("bad")), [event("DELETED", bad)])
    assert (follower.names, pauses.taken) == ({"a"}, [])


@pytest.mark.parametrize("bad", [b'{"metadata":5}', b"{}", b"5", b'{"metadata":{"name":"\xff"}}', b"\xff"], ids=repr)
async def test_after_the_deletion_of_nobody_all_are_listed_again_after_a_pause(bad: bytes) -> None:
    before, after = listed(victim("a"), victim("b")), listed(victim("a"))
    follower, pauses, _ = await followed(REFUSED, before, [event("DELETED", bad)], after)
    assert (follower.names, pauses.taken) == ({"a"}, [0.8])


async def test_what_is_refused_is_said_in_one_line_of_bounded_length() -> None:
    with structlog.testing.capture_logs() as logs:
        await followed(REFUSED, listed(victim("a"), REFUSED_OBJECTS["an absurd version"]))
    [entry] = [entry for entry in logs if entry["event"] == "object.malformed"]
    assert entry["problem"] == "its resourceVersion has more than 128 characters"
    assert len(json.dumps(entry)) < 500


@pytest.mark.parametrize(
    "spoiled",
    [
        pytest.param(b'"ingress":5', id="rules that are none"),
        pytest.param(b'"egress":[{"to":[{"ipBlock":"all"}]}]', id="a peer that is none"),
        pytest.param(b'"policyTypes":"Ingress"', id="types that are none"),
        pytest.param(b'"ingress":[{"ports":[{"port":"\xff"}]}]', id="bytes that are no text"),
    ],
)
def test_a_malformed_policy_lets_nobody_in_or_out_of_its_pods(spoiled: bytes) -> None:
    raw = b'{"metadata":{"name":"deny","namespace":"shop","resourceVersion":"7"},"spec":{"podSelector":%b,%b}}'
    decoder = ObjectDecoder(NetworkPolicy)
    with structlog.testing.capture_logs() as logs:
        found = decoder.decode(raw % (b'{"matchLabels":{"app":"web"}}', spoiled))
    assert found == NetworkPolicy(
        ObjectMeta("deny", "shop", resource_version="7"),
        NetworkPolicySpec(LabelSelector({"app": "web"}), ("Ingress", "Egress")),
    )
    assert (decoder.malformed, logs[0]["consequence"]) == (1, "it allows nothing to its pods")
    assert isinstance(decoder.decode(raw % (b'"everything"', spoiled)), Malformed), "whom it selects is not known"


def test_a_malformed_cluster_policy_denies_its_pods_everything() -> None:
    raw = b'{"metadata":{"name":"deny","resourceVersion":"7"},"spec":{"priority":"high","subject":{"namespaces":%b}}}'
    decoder = ObjectDecoder(ClusterNetworkPolicy)
    found = decoder.decode(raw % b'{"matchLabels":{"team":"a"}}')
    denied = (ClusterPolicyRule(action="Deny"),)
    subject = ClusterPeer(LabelSelector({"team": "a"}))
    assert found == ClusterNetworkPolicy(
        ObjectMeta("deny", resource_version="7"), ClusterNetworkPolicySpec("Admin", 0, subject, denied, denied)
    )
    assert isinstance(decoder.decode(raw % b'"everything"'), Malformed), "whom it selects is not known"


async def test_an_object_that_is_too_long_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "LONGEST_OBJECT", 10_000)
    monkeypatch.setattr(decoding, "LONGEST_LINE", 12_000)
    long = with_metadata(b'"managedFields":"%b"' % (b"x" * 50_000))
    buffer = LineBuffer()
    sent = b"\n".join([event("ADDED", victim("a", 6)), event("ADDED", long), event("ADDED", victim("z", 7)), b""])
    arrived = [line for start in range(0, len(sent), 999) for line in buffer.take(sent[start : start + 999])]
    assert not buffer.is_within_line
    assert max(map(len, arrived)) == 12_000
    with structlog.testing.capture_logs() as logs:
        follower, pauses, _ = await followed(REFUSED, listed(), arrived)
    assert (follower.names, pauses.taken) == ({"a", "z"}, [])
    [entry] = [entry for entry in logs if entry["event"] == "object.malformed"]
    assert entry["object"] == "default/bad"
    assert "the limit" in entry["problem"]


@pytest.mark.parametrize("values", [1_000, 98_000])
def test_what_a_deep_object_costs_does_not_depend_on_its_size(values: int) -> None:
    deep = b'{"a":' * 1_200 + b"{}" + b"}" * 1_200
    item = with_metadata(b'"managedFields":[%b,%b]' % (deep, b",".join([b"{}"] * values)))
    with json_steps.counted() as steps:
        found = ObjectDecoder(Service).decode(decoding.read_event(event("MODIFIED", item)).object)
    assert isinstance(found, decoding.Malformed)
    assert (str(found.identity.key), found.problem) == ("default/bad", "it is nested too deep")
    assert steps.taken <= 3 * decoding.IDENTITY_WITHIN


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100])
def test_lines_are_put_together_from_pieces_of_any_size(piece: int) -> None:
    buffer, text = LineBuffer(), b"one\n\nthree\nfour"
    found = [line for start in range(0, len(text), piece) for line in buffer.take(text[start : start + piece])]
    assert (found, buffer.is_within_line) == ([b"one", b"", b"three"], True)


# Whole answers


@pytest.mark.parametrize(
    "page",
    [
        b'{"items":[]}',
        b'{"metadata":5,"items":[]}',
        b'{"metadata":{},"items":{}}',
        b'{"metadata":{},"items":[{},',
        b'{"metadata":{"resourceVersion":"%b"},"items":[]}' % (b"1" * 1000),
        b"[" * 100_000,
        b"\xff",
        b"",
    ],
    ids=lambda page: repr(page[:30]),
)
async def test_a_list_that_is_none_is_asked_for_again_after_a_pause(page: bytes) -> None:
    follower, pauses, _ = await followed(REFUSED, page, page, listed(victim("a")))
    assert follower.names == {"a"}
    assert pauses.taken == [0.8, 1.6]


async def test_a_page_that_leads_to_itself_is_not_followed_for_ever() -> None:
    page = b'{"metadata":{"resourceVersion":"5","continue":"again"},"items":[]}'
    _, pauses, follows = await followed(REFUSED, page, page, listed(victim("a")))
    assert (pauses.taken, follows.statistics.objects) == ([0.8], 1)


async def test_pages_without_an_end_are_not_followed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "MOST_PAGES", 3)
    pages = [b'{"metadata":{"resourceVersion":"5","continue":"%d"},"items":[]}' % number for number in range(3)]
    _, pauses, follows = await followed(REFUSED, *pages, listed(victim("a")))
    assert (pauses.taken, follows.statistics.objects) == ([0.8], 1)


async def test_a_list_that_is_too_long_is_asked_for_in_ever_smaller_pages() -> None:
    asked: list[Any] = []

    class Asked(Scripted):
        async def get(self, path: str, params: Any, *, only_metadata: bool) -> Any:
            asked.append((params.get("limit"), params.get("resourceVersion")))
            return await super().get(path, params, only_metadata=only_metadata)

    follower, pauses = Follower(), Pauses()
    requests = Asked(REFUSED, *[AnswerTooLongError("128 MiB")] * 3, listed(victim("a")))
    async with running(Reflector(requests, SERVICES, follower, quick(pauses)).run()):
        await follower.until_listed()
    assert asked == [("500", "0"), ("50", None), ("5", None), ("5", None)]
    assert (follower.names, pauses.taken) == ({"a"}, [0.8, 1.6, 3.2])


async def test_no_answer_is_read_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kroute.watchers.kubernetes.api.LONGEST_ANSWER", 1 << 20)
    follower = Follower()
    async with ApiServer(features=Features(streaming_lists=False)) as server:
        for number in range(600):
            server.apply(service(f"s{number}", comment="x" * 4_000))
        async with reflecting(server, tmp_path, follower, quick(Pauses())):
            with structlog.testing.capture_logs() as logs:
                await eventually(lambda: any("has more than 1 MiB" in str(entry.get("error")) for entry in logs))


@pytest.mark.parametrize(
    "status",
    [
        b'{"code":410,"message":"\xff"}',
        b'{"code":1' + b"0" * 4_000 + b',"message":"x"}',
        b'{"code":"410"}',
        b'{"code":500,"details":%b}' % (b"[" * 20_000 + b"]" * 20_000),
        b'{"code":500,"details":{"retryAfterSeconds":1e300}}',
        b'{"code":500,"details":{"retryAfterSeconds":-1}}',
        b'{"code":500,"details":{"causes":[{"reason":5}]}}',
        b'{"code":500,"message":"%b"}' % (b"x" * 1_000_000),
        b"[]",
        b"null",
        b"5",
    ],
    ids=lambda status: repr(status[:50]),
)
async def test_an_error_in_a_watch_may_say_anything(status: bytes) -> None:
    answers = [listed(victim("a")), [event("ERROR", status)]]
    follower, pauses, _ = await followed(REFUSED, *answers, [event("ADDED", victim("z", 9))])
    assert {"a"} <= follower.names
    assert len(pauses.taken) == 1
    assert 0 < pauses.taken[0] <= 2 * FIVE_MINUTES
    assert len(str(ApiError.from_status(status))) < 2 * LONGEST_MESSAGE + 100


@pytest.mark.parametrize("header", ["9" * 10_000, "²", "-1", "1e9", "Fri, 31 Dec 1999 23:59:59 GMT", "86400"])
def test_no_server_may_ask_for_a_pause_without_an_end(header: str) -> None:
    assert (ApiError.from_status(b"", 503, header).retry_after or 0) <= FIVE_MINUTES


@pytest.mark.parametrize(
    "moment", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00", "9999-12-31T23:59:59", "\\ud800", "x", "1", ""]
)
def test_any_moment_may_stand_in_a_slice(moment: str) -> None:
    raw = b'{"metadata":{"name":"web-1","annotations":{"%b":"%b"}},"addressType":"IPv4"}'
    item = ObjectDecoder(EndpointSlice).decode(raw % (TRIGGER_TIME.encode(), moment.encode()))
    found = None if isinstance(item, Malformed) else trigger_time(item)
    assert found is None or abs(found) < 1e12


# From end to end, with a server that stores what the real one does


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_stored_service_that_is_nested_too_deep_is_refused_alone(tmp_path: Path, streaming: bool) -> None:
    follower, pauses = Follower(), Pauses()
    async with ApiServer(features=Features(streaming_lists=streaming)) as server:
        server.apply(service("victim"))
        server.apply(deep_service())
        async with reflecting(server, tmp_path, follower, quick(pauses)):
            await follower.until_listed()
            item = service("deeper")
            server.apply({**item, "metadata": {**item["metadata"], "managedFields": nested(9_990)}})
            server.apply({**service("broken"), "status": Verbatim(b'"\\ud800"')})
            server.apply(service("victim", clusterIP="10.96.0.10"))
            changed = ("default", "victim")
            await follower.until(
                lambda: any(
                    isinstance(it, Applied) and it.item.key == changed and it.item.spec.cluster_ip == "10.96.0.10"
                    for it in follower.changes
                )
            )
    assert follower.names == {"victim"}
    assert pauses.taken == []
