"""Problems and turning points become log lines and Kubernetes Events (`events.k8s.io/v1`), once for each cause.

Events about a Service are in its namespace. Those about this node are in `default`, with the Node's name as its uid:
that is how the kubelet writes them, and where `kubectl describe node` looks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import structlog

from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, Plan, Problem

log = structlog.get_logger()

CONTROLLER = "kroute.io/kroute"
NOTE_LIMIT = 1024  # characters: the API's own bound on `note`
QUEUE_LIMIT = 1000
_SECONDS_BETWEEN_EVENTS = 0.1

CreateObject = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Create an object: the collection's path and the body. Raises what the API refuses."""


class _Subject(NamedTuple):
    """What an Event is about."""

    kind: str
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class _PendingEvent(NamedTuple):
    """An Event that waits to be written; `type` and `action` are the API's fields."""

    subject: _Subject
    type: str
    action: str
    reason: str
    note: str


class EventRecorder:
    """Writes each problem once. A Service that goes and comes back starts anew.

    `uid_of` gives the Service's uid, which the Event needs to be shown by `kubectl describe`.
    """

    def __init__(self, node_name: str, uid_of: Callable[[ObjectKey], str], create: CreateObject | None) -> None:
        self._node = _Subject("Node", "", node_name, node_name)
        self._uid_of = uid_of
        self._create = create
        self._said: dict[ObjectKey | None, set[tuple[str, str]]] = {}  # None: of the node
        self._waiting: asyncio.Queue[_PendingEvent] = asyncio.Queue(QUEUE_LIMIT)

    def report(self, key: ObjectKey, problem: Problem) -> None:
        """Log a Service's problem and let its Event wait, unless that was done before for this Service and subject."""
        if self._is_news(key, problem):
            log.warning("service.problem", service=str(key), reason=problem.reason, message=problem.message)
            subject = _Subject("Service", key.namespace, key.name, self._uid_of(key))
            self._let_wait(_PendingEvent(subject, "Warning", "Plan", problem.reason, problem.message))

    def report_on_node(self, problem: Problem) -> None:
        """The same for a problem of this node."""
        if self._is_news(None, problem):
            log.warning("node.problem", reason=problem.reason, message=problem.message)
            self._let_wait(_PendingEvent(self._node, "Warning", "Operate", problem.reason, problem.message))

    def report_all(self, plan: Plan) -> None:
        """Report every problem of a plan."""
        for problem in plan.problems:
            if isinstance(plan, NodePlan):
                self.report_on_node(problem)
            else:
                self.report(plan.key, problem)

    def announce(self, reason: str, note: str) -> None:
        """Let an Event about this node wait that is no problem; the caller logs it."""
        self._let_wait(_PendingEvent(self._node, "Normal", "Operate", reason, note))

    def forget(self, key: ObjectKey) -> None:
        """The Service is gone: what is wrong with a later one of this name is news."""
        self._said.pop(key, None)

    async def run(self) -> None:
        """Write the Events that wait, slowly; one that the API refuses is logged and given up."""
        while self._create is not None:
            event = await self._waiting.get()
            namespace = event.subject.namespace or "default"
            try:
                await self._create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", self._event(event))
            except Exception as error:  # noqa: BLE001 - whatever the transport raises: an Event is not worth an outage
                log.warning("event.refused", about=str(event.subject), reason=event.reason, error=str(error))
            await asyncio.sleep(_SECONDS_BETWEEN_EVENTS)

    def _is_news(self, key: ObjectKey | None, problem: Problem) -> bool:
        said = self._said.setdefault(key, set())
        is_news = (problem.reason, problem.subject) not in said
        said.add((problem.reason, problem.subject))
        return is_news

    def _let_wait(self, event: _PendingEvent) -> None:
        if self._create is None:
            return
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("event.dropped", about=str(event.subject), reason=event.reason, waiting=QUEUE_LIMIT)

    def _event(self, event: _PendingEvent) -> dict[str, Any]:
        subject = event.subject
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{subject.name}.", "namespace": subject.namespace or "default"},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._node.name,
            "action": event.action,
            "reason": event.reason,
            "type": event.type,
            "note": event.note[:NOTE_LIMIT],
            "regarding": {"apiVersion": "v1"}
            | {field: value for field, value in subject._asdict().items() if value or field == "uid"},
        }
