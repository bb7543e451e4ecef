"""Problems of Services become log lines and Kubernetes Events (`events.k8s.io/v1`), once for each Service and cause."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import structlog

from kroute.planning.objects import ObjectKey
from kroute.planning.plan import NODE_PLAN, Problem

log = structlog.get_logger()

CONTROLLER = "kroute.io/kroute"
NOTE_LIMIT = 1024  # characters: the API's own bound on `note`
QUEUE_LIMIT = 1000
_SECONDS_BETWEEN_EVENTS = 0.1

CreateObject = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Create an object: the collection's path and the body. Raises what the API refuses."""


class _Report(NamedTuple):
    key: ObjectKey
    uid: str
    problem: Problem


class EventRecorder:
    """Writes each problem once. A Service that goes and comes back starts anew.

    `uid_of` gives the Service's uid, which the Event needs to be shown by `kubectl describe`.
    """

    def __init__(self, node_name: str, uid_of: Callable[[ObjectKey], str], create: CreateObject | None) -> None:
        self._node_name = node_name
        self._uid_of = uid_of
        self._create = create
        self._said: dict[ObjectKey, set[tuple[str, str]]] = {}
        self._waiting: asyncio.Queue[_Report] = asyncio.Queue(QUEUE_LIMIT)

    def report(self, key: ObjectKey, problem: Problem) -> None:
        """Log the problem and let its Event wait, unless that was done before for this Service and subject.

        A problem of the node itself is only logged.
        """
        said = self._said.setdefault(key, set())
        if (problem.reason, problem.subject) in said:
            return
        said.add((problem.reason, problem.subject))
        log.warning("service.problem", service=str(key), reason=problem.reason, message=problem.message)
        if self._create is None or key == NODE_PLAN:
            return
        try:
            self._waiting.put_nowait(_Report(key, self._uid_of(key), problem))
        except asyncio.QueueFull:
            log.warning("event.dropped", service=str(key), reason=problem.reason, waiting=QUEUE_LIMIT)

    def forget(self, key: ObjectKey) -> None:
        """The Service is gone: what is wrong with a later one of this name is news."""
        self._said.pop(key, None)

    async def run(self) -> None:
        """Write the Events that wait, slowly; one that the API refuses is logged and given up."""
        while self._create is not None:
            report = await self._waiting.get()
            body = self._event(report)
            try:
                await self._create(f"/apis/events.k8s.io/v1/namespaces/{report.key.namespace}/events", body)
            except Exception as error:  # noqa: BLE001 - whatever the transport raises: an Event is not worth an outage
                log.warning("event.refused", service=str(report.key), reason=report.problem.reason, error=str(error))
            await asyncio.sleep(_SECONDS_BETWEEN_EVENTS)

    def _event(self, report: _Report) -> dict[str, Any]:
        key, problem = report.key, report.problem
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{key.name}.", "namespace": key.namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._node_name,
            "action": "Plan",
            "reason": problem.reason,
            "type": "Warning",
            "note": problem.message[:NOTE_LIMIT],
            "regarding": {
                "apiVersion": "v1",
                "kind": "Service",
                "namespace": key.namespace,
                "name": key.name,
                "uid": report.uid,
            },
        }
