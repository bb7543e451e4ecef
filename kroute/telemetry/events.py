"""Write problems and turning points as log lines and Kubernetes Events (`events.k8s.io/v1`), once for each cause.

How much is said about one object, and in all, is bounded (`spam_filter`); `kroute show` has every problem of a plan.
Events about a Service are in its namespace. Events about this node are in `default`, with the Node's name as its uid:
the kubelet writes them so, and `kubectl describe node` expects that.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import structlog

from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, Plan, Problem
from kroute.telemetry.spam_filter import BURST, SECONDS_A_TOKEN, Decision, SpamFilter

log = structlog.get_logger()

CONTROLLER = "kroute.io/kroute"
NOTE_LIMIT = 1024  # characters: the API's limit for `note`
QUEUE_LIMIT = 1000
MOST_SAID = 100
"""Problems of one object that are remembered as said."""
_SECONDS_BETWEEN_EVENTS = 0.1
_SILENCED = (
    f"further problems are not written: {BURST} at once, then one in {SECONDS_A_TOKEN / 60:.0f} minutes. "
    "See kroute show services."
)

CreateObject = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Creates an object: the collection's path and the body. Raises the API's refusal."""


class _Subject(NamedTuple):
    """The object that an Event is about."""

    kind: str
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class _PendingEvent(NamedTuple):
    """An Event that is to be written. `type` and `action` are the API's fields."""

    subject: _Subject
    type: str
    action: str
    reason: str
    note: str


class EventRecorder:
    """Writes each problem once. After a Service was deleted, a new one of the same name has its own problems.

    `uid_of` gives the Service's uid: without it, `kubectl describe` does not show the Event.
    """

    def __init__(
        self,
        node_name: str,
        uid_of: Callable[[ObjectKey], str],
        create: CreateObject | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = _Subject("Node", "", node_name, node_name)
        self._uid_of = uid_of
        self._create = create
        self._said: dict[ObjectKey | None, dict[tuple[str, str], None]] = {}  # key None: the node's
        self._spam_filter = SpamFilter(clock)
        self._is_dropping = False
        self._waiting: asyncio.Queue[_PendingEvent] = asyncio.Queue(QUEUE_LIMIT)

    def report(self, key: ObjectKey, problem: Problem) -> None:
        """Log a Service's problem and queue its Event, once for each Service, reason and subject."""
        if (news := self._news(key, problem)) is not None:
            log.warning("service.problem", service=str(key), reason=news.reason, message=news.message)
            subject = _Subject("Service", key.namespace, key.name, self._uid_of(key))
            self._let_wait(_PendingEvent(subject, "Warning", "Plan", news.reason, news.message))

    def report_on_node(self, problem: Problem) -> None:
        """Log a problem of this node and queue its Event, once for each reason and subject."""
        if (news := self._news(None, problem)) is not None:
            log.warning("node.problem", reason=news.reason, message=news.message)
            self._let_wait(_PendingEvent(self._node, "Warning", "Operate", news.reason, news.message))

    def report_all(self, plan: Plan) -> None:
        for problem in plan.problems:
            if isinstance(plan, NodePlan):
                self.report_on_node(problem)
            else:
                self.report(plan.key, problem)

    def announce(self, reason: str, note: str) -> None:
        """Queue an Event about this node that is no problem. The caller logs it."""
        self._let_wait(_PendingEvent(self._node, "Normal", "Operate", reason, note))

    def forget(self, key: ObjectKey) -> None:
        """Forget the problems of a deleted Service, so that those of a later one with this name are reported."""
        self._said.pop(key, None)

    async def run(self) -> None:
        """Write the queued Events, at most ten a second. An Event that the API refuses is logged and dropped."""
        while self._create is not None:
            event = await self._waiting.get()
            namespace = event.subject.namespace or "default"
            try:
                await self._create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", self._event(event))
            except Exception as error:  # noqa: BLE001 - whatever the transport raises: an Event is not worth an outage
                log.warning("event.refused", about=str(event.subject), reason=event.reason, error=str(error))
            await asyncio.sleep(_SECONDS_BETWEEN_EVENTS)

    def _news(self, key: ObjectKey | None, problem: Problem) -> Problem | None:
        """What to say of a problem; None if it was said, or if too much was."""
        said = self._said.setdefault(key, {})
        cause = (problem.reason, problem.subject)
        if cause in said:
            return None
        match self._spam_filter.judge(key, problem.reason):
            case Decision.DROP:
                return None
            case Decision.SILENCE:
                return Problem("TooManyProblems", "problems", _SILENCED)
            case Decision.COMBINE:
                problem = problem._replace(message=f"(combined from similar problems) {problem.message}")
        said[cause] = None
        if len(said) > MOST_SAID:
            del said[next(iter(said))]
        return problem

    def _let_wait(self, event: _PendingEvent) -> None:
        if self._create is None:
            return
        try:
            self._waiting.put_nowait(event)
            self._is_dropping = False
        except asyncio.QueueFull:
            if not self._is_dropping:  # one line until there is room again
                log.warning("event.dropped", about=str(event.subject), reason=event.reason, waiting=QUEUE_LIMIT)
            self._is_dropping = True

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
