"""A reflector handles every recorded answer of a real API server."""

from typing import Any

import pytest

from kroute.model.kinds import ENDPOINT_SLICES, NODES, SERVICES, WatchedKind
from kroute.model.objects import EndpointSlice, Node, Service
from kroute.watchers.kubernetes.errors import ApiError
from kroute.watchers.kubernetes.reflector import Reflector
from tests.apiserver.recording import NAMES, Recording
from tests.unit.watchers.kubernetes.test_reflector_failures import END, Scripted
from tests.unit.watching import Follower, Pauses, quick, running

RECORDED = {
    *("alias", "annotated", "dual", "external-ip", "lb-local", "nodeport", "other-proxy", "plain", "sctp", "sticky"),
    "zoned",
}
"""The Services of the recorded namespace that some proxy must serve; planning decides whether kroute does."""
REFUSED = ApiError(422, "Invalid", "streaming lists are not offered")


def kind_of(recording: Recording) -> WatchedKind:
    if "endpointslices" in recording.path:
        return ENDPOINT_SLICES
    return NODES if "nodes" in recording.path else SERVICES


def answer(name: str) -> Any:
    """Return the recorded answer as `Api` returns it, or its error."""
    recording = Recording.load(name)
    if recording.is_stream:
        return [line.rstrip(b"\n") for line in recording.lines]
    if recording.status == 200:
        return recording.body
    return ApiError.from_status(recording.body, recording.status, recording.headers.get("Retry-After"))


async def follow(name: str, *answers: Any) -> tuple[Follower, Pauses]:
    """Return what a follower has after the reflector has received all of these answers."""
    follower, pauses = Follower(), Pauses()
    requests = Scripted(*answers)
    async with running(Reflector(requests, kind_of(Recording.load(name)), follower, quick(pauses)).run()):
        await requests.done.wait()
    return follower, pauses


@pytest.mark.parametrize(
    ("name", "kind", "names"),
    [
        ("list-services", Service, RECORDED),
        ("list-services-rv0", Service, RECORDED),
        ("list-services-selector", Service, RECORDED - {"other-proxy"}),
        ("list-services-page-3", Service, {"sticky", "zoned"}),
        ("list-endpointslices", EndpointSlice, {"dual-v4", "dual-v6", "empty-1", "plain-1", "plain-2", "zoned-1"}),
        ("list-nodes-field-selector", Node, {"lab-node"}),
    ],
)
async def test_recorded_lists_are_read(name: str, kind: type, names: set[str]) -> None:
    follower, _ = await follow(name, REFUSED, answer(name))
    assert (follower.names, follower.listed) == (names, [kind])


@pytest.mark.parametrize("second", ["list-services-page-2", "list-continue-after-compaction"])
async def test_recorded_pages_are_joined(second: str) -> None:
    pages = [answer(page) for page in ("list-services-page-1", second, "list-services-page-3")]
    follower, _ = await follow(second, REFUSED, *pages)
    assert follower.names == RECORDED
    assert follower.listed == [Service]


async def test_a_large_compressed_list_is_read_page_by_page() -> None:
    follower, _ = await follow("list-large-gzip", REFUSED, answer("list-large-gzip"), answer("list-services-page-3"))
    assert len(follower.items) == 502


async def test_a_recorded_streaming_list_is_read() -> None:
    follower, _ = await follow("watchlist-services", answer("watchlist-services"))
    assert follower.names == RECORDED
    assert follower.take()[-1] == "listed Service"


@pytest.mark.parametrize(
    ("name", "before", "changes"),
    [
        (
            "watch-services",
            "list-services",
            ["applied new", "applied new", "deleted plain", "applied plain", "deleted new"],
        ),
        (
            "watch-bookmarks",
            "list-services",
            # this watch was recorded without selectors: the reflector applies them itself
            ["applied new", "applied new", "applied plain", "applied plain", "deleted new"],
        ),
        ("watch-endpointslices", "list-endpointslices", ["applied plain-1", "deleted plain-2"]),
        ("watch-rv0", "list-services", ["applied plain"]),
        ("watch-rv-future", "list-services", []),
    ],
)
async def test_recorded_watches_are_followed(name: str, before: str, changes: list[str]) -> None:
    follower, pauses = await follow(name, REFUSED, answer(before), answer(name))
    words = follower.take()
    assert words[next(n for n, word in enumerate(words) if word.startswith("listed")) + 1 :] == changes
    assert pauses.taken == []


async def test_a_replay_of_the_whole_history_ends_with_the_newest_state() -> None:
    follower, _ = await follow("watch-old-rv-replayed", [END], answer("watch-old-rv-replayed"))
    assert follower.names == RECORDED


async def test_the_recorded_410_of_a_watch_leads_to_a_difference() -> None:
    follower, pauses = await follow(
        "watch-410", answer("watchlist-services"), answer("watch-410"), answer("watchlist-services")
    )
    assert follower.names == RECORDED
    assert len(follower.take()) == len(RECORDED) + 1
    assert pauses.taken == [0.8]


@pytest.mark.parametrize("name", ["error-410-continue", "list-rv-future"])
async def test_recorded_unavailable_versions_lead_to_a_full_list_at_once(name: str) -> None:
    follower, pauses = await follow(
        name, REFUSED, answer("list-services-page-1"), answer(name), answer("list-services")
    )
    assert follower.names == RECORDED
    assert pauses.taken == []


ERRORS = [name for name in NAMES if name.startswith("error-")]


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("when", ["list", "watch"])
async def test_recorded_errors_are_survived(name: str, when: str) -> None:
    listed = answer("list-services")
    relist = [listed] if when == "list" or "410" in name else []
    script = [answer(name), *relist] if when == "list" else [listed, answer(name), *relist]
    follower, pauses = await follow(name, REFUSED, *script)
    assert follower.names == RECORDED
    assert "deleted" not in " ".join(follower.take())
    assert len(pauses.taken) <= 1


def test_errors_carry_what_the_server_said() -> None:
    error = answer("list-rv-future")
    assert (error.status, error.reason, error.retry_after) == (504, "ResourceVersionTooLarge", 1.0)
    assert str(answer("error-403")).startswith('403 Forbidden: services is forbidden: User "system:anonymous"')
