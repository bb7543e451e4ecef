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
from kroute.model.plan import NODE_PLAN, Problem

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


class _Happening(NamedTuple):
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
        self._said: dict[ObjectKey, set[tuple[str, str]]] = {}
        self._waiting: asyncio.Queue[_Happening] = asyncio.Queue(QUEUE_LIMIT)

    def report(self, key: ObjectKey, problem: Problem) -> None:
        """Log the problem and let its Event wait, unless that was done before for this Service and subject.

        The key NODE_PLAN stands for the node itself.
        """
        said = self._said.setdefault(key, set())
        if (problem.reason, problem.subject) in said:
            return
        said.add((problem.reason, problem.subject))
        if key == NODE_PLAN:
            log.warning("node.problem", reason=problem.reason, message=problem.message)
            subject, action = self._node, "Operate"
        else:
            log.warning("service.problem", service=str(key), reason=problem.reason, message=problem.message)
            subject, action = _Subject("Service", key.namespace, key.name, self._uid_of(key)), "Plan"
        self._let_wait(_Happening(subject, "Warning", action, problem.reason, problem.message))

    def announce(self, reason: str, note: str) -> None:
        """Let an Event about this node wait that is no problem; whoever announces it logs it."""
        self._let_wait(_Happening(self._node, "Normal", "Operate", reason, note))

    def forget(self, key: ObjectKey) -> None:
        """The Service is gone: what is wrong with a later one of this name is news."""
        self._said.pop(key, None)

    async def run(self) -> None:
        """Write the Events that wait, slowly; one that the API refuses is logged and given up."""
        while self._create is not None:
            happening = await self._waiting.get()
            namespace = happening.subject.namespace or "default"
            try:
                await self._create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", self._event(happening))
            except Exception as error:  # noqa: BLE001 - whatever the transport raises: an Event is not worth an outage
                log.warning("event.refused", about=str(happening.subject), reason=happening.reason, error=str(error))
            await asyncio.sleep(_SECONDS_BETWEEN_EVENTS)

    def _let_wait(self, happening: _Happening) -> None:
        if self._create is None:
            return
        try:
            self._waiting.put_nowait(happening)
        except asyncio.QueueFull:
            log.warning("event.dropped", about=str(happening.subject), reason=happening.reason, waiting=QUEUE_LIMIT)

    def _event(self, happening: _Happening) -> dict[str, Any]:
        subject = happening.subject
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{subject.name}.", "namespace": subject.namespace or "default"},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._node.name,
            "action": happening.action,
            "reason": happening.reason,
            "type": happening.type,
            "note": happening.note[:NOTE_LIMIT],
            "regarding": {"apiVersion": "v1"}
            | {field: value for field, value in subject._asdict().items() if value or field == "uid"},
        }
