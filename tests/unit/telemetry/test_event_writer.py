"""Events are named and counted as client-go's recorder does it, and the API server takes them."""

import asyncio
from pathlib import Path

import pytest
import structlog

from kroute.settings import Settings
from kroute.telemetry import event_writer
from kroute.telemetry.event_writer import (
    INSTANCE_LIMIT,
    MOST_SERIES,
    NAME_LIMIT,
    NOTE_LIMIT,
    QUIET,
    REFRESH,
    EventKey,
    EventText,
    EventWriter,
    Subject,
    event_name,
)
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.errors import ApiError, UnreachableError
from tests.apiserver import ApiServer
from tests.fakes.events import Events
from tests.unit.watching import PATIENCE

KEY = EventKey(Subject("Service", "shop", "web", "uid-of-web"), "InvalidAnnotation", "annotation a")
TEXT = EventText("Warning", "Plan", "fast is not a scheduler")
NANOSECONDS = 0x187D1F5A9C3E7B20


class Writing:
    """A writer, its clock and its API. `answered` lets it write what it has queued."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.api = Events()
        self.writer = EventWriter("node1", self.api, lambda: self.now)

    async def answered(self, count: int) -> None:
        """Let the writer run until it has had so many answers."""
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            task = group.create_task(self.writer.run())
            await self.api.answers(count)
            task.cancel()

    def waits(self) -> int:
        return self.writer._waiting.qsize()

    @property
    def counts(self) -> list[int]:
        return [event.get("series", {}).get("count", 1) for event in self.api.objects.values()]


@pytest.fixture
def writing() -> Writing:
    return Writing()


class TestNames:
    def test_the_object_and_the_time(self) -> None:
        assert event_name("lab-node", NANOSECONDS) == "lab-node.187d1f5a9c3e7b20"

    @pytest.mark.parametrize("subject", ["x" * NAME_LIMIT, "Web", "web.", "", "a_b"])
    def test_of_an_object_whose_name_leaves_no_valid_one_are_uuids(self, subject: str) -> None:
        assert len(event_name(subject, NANOSECONDS)) == 36

    async def test_one_that_is_taken_is_chosen_anew(self, writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
        times = iter((NANOSECONDS, NANOSECONDS, NANOSECONDS + 1))
        monkeypatch.setattr(event_writer.time, "time_ns", lambda: next(times))
        writing.writer.say(KEY, TEXT)
        writing.writer.say(KEY._replace(cause="annotation b"), TEXT)
        await writing.answered(3)
        assert [path.rpartition("/")[2] for path in writing.api.objects] == [
            f"web.{NANOSECONDS:x}",
            f"web.{NANOSECONDS + 1:x}",
        ]

    async def test_that_are_always_taken_are_given_up(self, writing: Writing) -> None:
        writing.api.refusals = [ApiError(409, "AlreadyExists", "")] * 3
        writing.writer.say(KEY, TEXT)
        with structlog.testing.capture_logs() as lines:
            await writing.answered(3)
        assert [line["event"] for line in lines] == ["event.refused"]
        assert len(writing.writer) == 0


class TestCounts:
    async def test_the_second_makes_a_series_and_later_ones_wait(self, writing: Writing) -> None:
        writing.writer.say(KEY, TEXT)
        await writing.answered(1)
        writing.writer.say(KEY, TEXT)
        await writing.answered(1)
        assert writing.counts == [2]
        for _ in range(100):
            assert writing.writer.count(KEY)
        writing.writer.refresh()
        assert writing.waits() == 0

    async def test_what_is_counted_is_written_when_it_has_been_quiet_and_once(self, writing: Writing) -> None:
        writing.writer.say(KEY, TEXT)
        for _ in range(6):
            writing.writer.count(KEY)
        await writing.answered(1)
        assert writing.counts == [7]
        writing.writer.count(KEY)
        writing.now += QUIET
        writing.writer.refresh()
        writing.writer.refresh()
        await writing.answered(1)
        assert writing.counts == [8]
        writing.now += 10 * REFRESH
        writing.writer.refresh()
        assert writing.waits() == 0

    async def test_what_is_never_quiet_is_written_now_and_then(self, writing: Writing) -> None:
        writing.writer.say(KEY, TEXT)
        await writing.answered(1)
        writing.writer.count(KEY)
        await writing.answered(1)
        for _ in range(int(REFRESH)):
            writing.now += 1
            writing.writer.count(KEY)
            writing.writer.refresh()
        await writing.answered(1)
        assert writing.counts == [int(REFRESH) + 2]

    async def test_an_event_that_has_expired_is_created_again_with_its_count(self, writing: Writing) -> None:
        writing.writer.say(KEY, TEXT)
        await writing.answered(1)
        [expired] = writing.api.objects
        writing.api.objects.clear()
        writing.writer.count(KEY)
        await writing.answered(2)
        [(path, event)] = writing.api.objects.items()
        assert path != expired
        assert event["series"]["count"] == 2

    async def test_another_reason_cause_or_object_is_another_event(self, writing: Writing) -> None:
        others = [
            KEY._replace(reason="InvalidPort"),
            KEY._replace(cause="annotation b"),
            KEY._replace(subject=KEY.subject._replace(uid="uid-of-the-next-web")),
        ]
        for key in (KEY, *others):
            writing.writer.say(key, TEXT)
        await writing.answered(4)
        assert writing.counts == [1] * 4

    def test_so_many_are_remembered(self, writing: Writing) -> None:
        for number in range(MOST_SERIES + 100):
            writing.writer.say(KEY._replace(cause=str(number)), TEXT)
        assert len(writing.writer) == MOST_SERIES
        assert not writing.writer.count(KEY._replace(cause="0"))


class TestRefusals:
    async def test_what_the_server_objects_to_is_forgotten(self, writing: Writing) -> None:
        writing.api.refusals = [ApiError(403, "Forbidden", "no")]
        writing.writer.say(KEY, TEXT)
        await writing.answered(1)
        assert len(writing.writer) == 0

    @pytest.mark.parametrize("error", [UnreachableError("away"), ApiError(503, "", ""), ApiError(429, "", "")])
    async def test_what_it_cannot_take_now_is_written_later(self, writing: Writing, error: ApiError) -> None:
        writing.api.refusals = [error]
        writing.writer.say(KEY, TEXT)
        await writing.answered(1)
        writing.writer.refresh()
        assert writing.waits() == 0
        writing.now += QUIET
        writing.writer.refresh()
        await writing.answered(1)
        assert writing.counts == [1]


async def test_the_api_server_takes_events_at_every_limit(tmp_path: Path) -> None:
    """The stand-in refuses what the recorded server refused: an Event too long, badly named, or changed."""
    service = Subject("Service", "shop", "web", "uid-of-web")
    node = Subject("Node", "", "n" * NAME_LIMIT, "n")
    async with ApiServer() as server:
        settings = Settings(node_name="node1", kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"))
        async with await Api.open(settings) as api:
            writer = EventWriter("n" * NAME_LIMIT, api)
            with structlog.testing.capture_logs() as lines:
                async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
                    task = group.create_task(writer.run())
                    for subject in (service, node):
                        writer.say(EventKey(subject, "Reason", "cause"), EventText("Warning", "Plan", "ü" * NOTE_LIMIT))
                    while len(server.objects("Event")) < 2:
                        await server.store.wait()
                    writer.count(EventKey(service, "Reason", "cause"))
                    while not any("series" in event for event in server.objects("Event")):
                        await server.store.wait()
                    task.cancel()
        by_kind = {event["regarding"]["kind"]: event for event in server.objects("Event")}
    assert [line for line in lines if line["event"] == "event.refused"] == []
    assert by_kind["Service"]["series"]["count"] == 2
    assert by_kind["Node"]["metadata"]["namespace"] == "default"
    assert len(by_kind["Node"]["note"].encode()) == NOTE_LIMIT
    assert len(by_kind["Node"]["reportingInstance"]) == INSTANCE_LIMIT
