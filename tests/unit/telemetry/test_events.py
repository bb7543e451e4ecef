"""A problem becomes one log line and one Event, once for each Service and cause."""

import asyncio
from pathlib import Path
from typing import Any

from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem
from kroute.settings import Settings
from kroute.telemetry.events import NOTE_LIMIT, EventRecorder
from kroute.watchers.kubernetes.api import Api as KubernetesApi
from tests.apiserver.server import ApiServer

KEY = ObjectKey("default", "web")
PROBLEM = Problem("InvalidAnnotation", "annotation kroute.io/service.scheduler=fast", "fast is not a scheduler. " * 100)


class Api:
    """Keeps what was created; refuses what a test says."""

    def __init__(self) -> None:
        self.created: list[tuple[str, dict[str, Any]]] = []
        self.refuse = 0
        self._arrived = asyncio.Semaphore(0)

    async def create(self, path: str, body: dict[str, Any]) -> None:
        if self.refuse:
            self.refuse -= 1
            raise ConnectionError("refused")
        self.created.append((path, body))
        self._arrived.release()

    async def holds(self, count: int) -> None:
        for _ in range(count):
            await self._arrived.acquire()


async def written(recorder: EventRecorder, api: Api, count: int) -> None:
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(recorder.run())
        await api.holds(count)
        task.cancel()


async def test_an_event_names_the_service_the_cause_and_the_node() -> None:
    api = Api()
    recorder = EventRecorder("node1", lambda key: f"uid-of-{key.name}", api.create)
    recorder.report(KEY, PROBLEM)
    await written(recorder, api, 1)
    [(path, event)] = api.created
    assert path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert event["type"] == "Warning"
    assert event["reason"] == "InvalidAnnotation"
    assert len(event["note"]) == NOTE_LIMIT
    assert event["regarding"]["name"] == "web"
    assert event["regarding"]["uid"] == "uid-of-web"
    assert event["reportingInstance"] == "node1"


async def test_the_same_problem_is_said_once_and_another_value_again() -> None:
    api = Api()
    recorder = EventRecorder("node1", lambda _: "", api.create)
    recorder.report(KEY, PROBLEM)
    recorder.report(KEY, PROBLEM)
    recorder.report(KEY, PROBLEM._replace(subject="annotation kroute.io/service.scheduler=slow"))
    await written(recorder, api, 2)
    assert len(api.created) == 2


async def test_a_service_that_comes_back_starts_anew() -> None:
    api = Api()
    recorder = EventRecorder("node1", lambda _: "", api.create)
    recorder.report(KEY, PROBLEM)
    recorder.forget(KEY)
    recorder.report(KEY, PROBLEM)
    await written(recorder, api, 2)
    assert len(api.created) == 2


async def test_an_event_that_is_refused_does_not_stop_the_next() -> None:
    api = Api()
    api.refuse = 1
    recorder = EventRecorder("node1", lambda _: "", api.create)
    recorder.report(KEY, PROBLEM)
    recorder.report(ObjectKey("default", "other"), PROBLEM)
    await written(recorder, api, 1)
    assert [event["regarding"]["name"] for _, event in api.created] == ["other"]


async def test_without_an_api_server_problems_are_only_logged() -> None:
    recorder = EventRecorder("node1", lambda _: "", None)
    recorder.report(KEY, PROBLEM)
    await recorder.run()


async def test_the_api_server_takes_the_event(tmp_path: Path) -> None:
    async with ApiServer() as server:
        settings = Settings(node_name="node1", kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"))
        async with await KubernetesApi.open(settings) as api:
            api_calls = Api()

            async def create(path: str, body: dict[str, Any]) -> None:
                await api.create(path, body)
                await api_calls.create(path, body)

            recorder = EventRecorder("node1", lambda _: "", create)
            recorder.report(KEY, PROBLEM)
            await written(recorder, api_calls, 1)
        [event] = server.objects("Event")
    assert event["metadata"]["name"].startswith("web.")
