"""A problem becomes one log line and one Event, once for each Service and cause."""

import asyncio
import re

from structlog.testing import capture_logs

from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem
from kroute.telemetry.event_writer import NOTE_LIMIT
from kroute.telemetry.events import EventRecorder
from kroute.telemetry.spam_filter import SIMILAR
from kroute.watchers.kubernetes.errors import ApiError
from tests.fakes.events import Events
from tests.unit.watching import PATIENCE

KEY = ObjectKey("default", "web")
PROBLEM = Problem("InvalidAnnotation", "annotation kroute.io/scheduler=fast", "fast is not a scheduler. " * 100)


async def written(recorder: EventRecorder, api: Events, count: int) -> None:
    """Let the recorder run until there were so many answers."""
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        task = group.create_task(recorder.run())
        await api.answers(count)
        task.cancel()


async def test_an_event_names_the_service_the_cause_and_the_node() -> None:
    api = Events()
    recorder = EventRecorder("node1", lambda key: f"uid-of-{key.name}", api)
    recorder.report(KEY, PROBLEM)
    await written(recorder, api, 1)
    [(path, event)] = api.created
    assert path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert event["type"] == "Warning"
    assert event["reason"] == "InvalidAnnotation"
    assert len(event["note"]) == NOTE_LIMIT
    assert re.fullmatch(r"web\.[0-9a-f]{16}", event["metadata"]["name"])
    assert event["regarding"]["name"] == "web"
    assert event["regarding"]["uid"] == "uid-of-web"
    assert event["reportingInstance"] == "node1"


async def test_the_same_problem_is_said_once_and_another_value_again() -> None:
    api = Events()
    recorder = EventRecorder("node1", lambda _: "", api)
    recorder.report(KEY, PROBLEM)
    recorder.report(KEY, PROBLEM)
    recorder.report(KEY, PROBLEM._replace(subject="annotation kroute.io/scheduler=slow"))
    await written(recorder, api, 2)
    assert len(api.created) == 2


async def test_a_service_that_comes_back_starts_anew() -> None:
    api = Events()
    uids = iter(("uid-1", "uid-2"))
    recorder = EventRecorder("node1", lambda _: next(uids), api)
    recorder.report(KEY, PROBLEM)
    recorder.forget(KEY)
    recorder.report(KEY, PROBLEM)
    await written(recorder, api, 2)
    assert len(api.created) == 2


async def test_a_policy_has_events_of_its_own_beside_those_of_a_service_of_its_name() -> None:
    api = Events()
    recorder = EventRecorder("node1", lambda _: "uid-of-service", api)
    recorder.report(KEY, PROBLEM)
    with capture_logs() as logs:
        for problems in ([PROBLEM], [PROBLEM], [], [PROBLEM]):
            recorder.report_policy(KEY, "uid-of-policy", problems)
    assert [(it["event"], it["policy"]) for it in logs] == [("policy.problem", "default/web")] * 2, (
        "said once, and anew"
    )
    await written(recorder, api, 2)
    assert [event["regarding"] for _, event in api.created] == [
        {"apiVersion": version, "kind": kind, "namespace": "default", "name": "web", "uid": uid}
        for version, kind, uid in (
            ("v1", "Service", "uid-of-service"),
            ("networking.k8s.io/v1", "NetworkPolicy", "uid-of-policy"),
        )
    ]


async def test_a_policy_of_the_cluster_has_events_about_its_own_kind() -> None:
    api = Events()
    recorder = EventRecorder("node1", lambda _: "uid-of-service", api)
    recorder.report_policy(ObjectKey("", "web"), "uid-of-policy", [PROBLEM])
    await written(recorder, api, 1)
    [(_, event)] = api.created
    assert event["regarding"] == {
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "name": "web",
        "uid": "uid-of-policy",
    }


async def test_an_event_that_is_refused_does_not_stop_the_next() -> None:
    api = Events()
    api.refusals = [ApiError(403, "Forbidden", "no")]
    recorder = EventRecorder("node1", lambda _: "", api)
    recorder.report(KEY, PROBLEM)
    recorder.report(ObjectKey("default", "other"), PROBLEM)
    await written(recorder, api, 2)
    assert [event["regarding"]["name"] for _, event in api.created] == ["other"]


async def test_without_an_api_server_problems_are_only_logged() -> None:
    recorder = EventRecorder("node1", lambda _: "", None)
    recorder.report(KEY, PROBLEM)
    await recorder.run()


async def test_the_same_problem_again_is_counted() -> None:
    api = Events()
    recorder = EventRecorder("node1", lambda _: "", api)
    recorder.report(KEY, PROBLEM)
    await written(recorder, api, 1)
    recorder.report(KEY, PROBLEM)
    await written(recorder, api, 1)
    [event] = api.objects.values()
    assert event["series"]["count"] == 2


async def test_similar_problems_are_counted_with_the_event_for_all_of_them() -> None:
    api = Events()
    recorder = EventRecorder("node1", lambda _: "", api)
    for number in range(SIMILAR + 5):
        recorder.report(KEY, PROBLEM._replace(subject=f"annotation {number}"))
    recorder.report(KEY, PROBLEM._replace(subject=f"annotation {SIMILAR}"))
    await written(recorder, api, SIMILAR + 1)
    *others, combined = api.objects.values()
    assert combined["note"].startswith("(combined from similar problems)")
    assert combined["series"]["count"] == 6
    assert not any("series" in event for event in others)
