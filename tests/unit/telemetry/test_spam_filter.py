"""How many messages are sent about one object and in all, limited as in client-go."""

from collections import Counter

import structlog

from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem
from kroute.telemetry.event_writer import QUEUE_LIMIT
from kroute.telemetry.events import MOST_SAID, EventRecorder
from kroute.telemetry.spam_filter import (
    BURST,
    BURST_IN_ALL,
    MOST_OBJECTS,
    SECONDS_A_TOKEN,
    SIMILAR,
    SIMILAR_WITHIN,
    Decision,
    SpamFilter,
)
from tests.fakes.events import Events
from tests.unit.telemetry.test_events import written

KEY, VICTIM = ObjectKey("default", "web"), ObjectKey("default", "victim")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def judged(spam_filter: SpamFilter, count: int, about: object = KEY) -> Counter[Decision]:
    """Return the decisions on messages that all differ."""
    return Counter(spam_filter.judge(about, f"Reason{number}") for number in range(count))


def test_so_many_are_said_about_one_object_then_one_that_it_is_silent() -> None:
    clock = Clock()
    spam_filter = SpamFilter(clock)
    assert judged(spam_filter, 100) == {Decision.SAY: BURST, Decision.SILENCE: 1, Decision.DROP: 100 - BURST - 1}
    assert judged(spam_filter, 1, VICTIM) == {Decision.SAY: 1}
    clock.now += SECONDS_A_TOKEN
    assert judged(spam_filter, 3) == {Decision.SAY: 1, Decision.SILENCE: 1, Decision.DROP: 1}


def test_similar_ones_become_one_for_a_time() -> None:
    clock = Clock()
    spam_filter = SpamFilter(clock)
    decisions = [spam_filter.judge(KEY, "InvalidExternalIP") for _ in range(20)]
    assert decisions == [Decision.SAY] * SIMILAR + [Decision.COMBINE] + [Decision.ADD] * 9
    assert spam_filter.judge(KEY, "InvalidPort") is Decision.SAY
    clock.now += SIMILAR_WITHIN
    assert spam_filter.judge(KEY, "InvalidExternalIP") is Decision.SAY


def test_in_all_there_is_a_bound_too_and_time_lifts_it() -> None:
    clock = Clock()
    spam_filter = SpamFilter(clock)
    found = Counter(spam_filter.judge(number, "InvalidPort") for number in range(3 * BURST_IN_ALL))
    assert found == {Decision.SAY: BURST_IN_ALL, Decision.DROP: 2 * BURST_IN_ALL}
    clock.now += 1
    assert judged(spam_filter, 1, VICTIM) == {Decision.SAY: 1}


def test_so_many_objects_are_remembered() -> None:
    spam_filter = SpamFilter(Clock())
    for number in range(MOST_OBJECTS + 100):
        spam_filter.judge(number, "InvalidPort")
    assert len(spam_filter) == MOST_OBJECTS


async def test_sixty_thousand_problems_make_a_handful_of_lines_and_events() -> None:
    api = Events()
    recorder = EventRecorder("node1", lambda _: "", api, Clock())
    with structlog.testing.capture_logs() as lines:
        for number in range(60_000):
            recorder.report(KEY, Problem("InvalidExternalIP", f"externalIP {number}", f"{number} is not served"))
        recorder.report(VICTIM, Problem("InvalidPort", "port 0", "port 0 is not served"))
    assert len(lines) == SIMILAR + 2
    assert lines[SIMILAR]["message"] == f"(combined from similar problems) {SIMILAR} is not served"
    assert lines[-1]["service"] == "default/victim"
    assert len(recorder._said[KEY]) == SIMILAR + 1
    await written(recorder, api, 2)


def test_edits_do_not_fill_the_memory_and_a_new_service_does_not_empty_the_bucket() -> None:
    clock = Clock()
    recorder = EventRecorder("node1", lambda _: "", None, clock)
    for number in range(2 * MOST_SAID):
        clock.now += SIMILAR_WITHIN
        recorder.report(KEY, Problem("InvalidPort", f"port {-number}", "is not served"))
    assert len(recorder._said[KEY]) == MOST_SAID
    clock.now += SECONDS_A_TOKEN * BURST
    with structlog.testing.capture_logs() as lines:
        for number in range(200):
            recorder.forget(KEY)
            recorder.report(KEY, Problem(f"Reason{number}", "port 0", "is not served"))
    assert len(lines) == BURST + 1
    assert lines[-1]["reason"] == "TooManyProblems"


def test_a_full_queue_is_one_line() -> None:
    clock = Clock()
    recorder = EventRecorder("node1", lambda _: "", Events(), clock)
    with structlog.testing.capture_logs() as lines:
        for number in range(QUEUE_LIMIT + 50):
            clock.now += 1
            recorder.report(ObjectKey("default", f"s{number}"), Problem("InvalidPort", "port 0", "is not served"))
    assert [line["event"] for line in lines].count("event.dropped") == 1
