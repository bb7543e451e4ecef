"""Write problems and turning points as log lines and Events, once for each cause; more of the same are counted.

How much is said about one object, and in all, is bounded (`spam_filter`); `kroute show` has every problem of a plan.
Events about a Service are in its namespace. Events about this node are in `default`, with the Node's name as its uid:
the kubelet writes them so, and `kubectl describe node` expects that.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import structlog

from kroute.model.addresses import Family
from kroute.model.kinds import CLUSTER_NETWORK_POLICIES, NETWORK_POLICIES
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, Plan, Problem
from kroute.telemetry.event_writer import EventKey, EventText, EventWriter, Subject
from kroute.telemetry.spam_filter import BURST, SECONDS_A_TOKEN, Decision, SpamFilter
from kroute.watchers.kubernetes.server_presence import ApiWriter

log = structlog.get_logger()

MOST_SAID = 100
"""Problems of one object that are remembered as said."""
_SILENCED = Problem(
    "TooManyProblems",
    "problems",
    f"further problems are not written: {BURST} at once, then one in {SECONDS_A_TOKEN / 60:.0f} minutes. "
    "See kroute show services.",
)
_COMBINED = ""
"""The cause of the Event for all that are similar."""
About: TypeAlias = ObjectKey | Subject | None
"""What problems are remembered by: the name of a Service, a network policy without its uid, None for the node."""


class EventRecorder:
    """Writes each problem once. After a Service was deleted, a new one of the same name has its own problems.

    `uid_of` gives the Service's uid: without it, `kubectl describe` does not show the Event. Without `requests`,
    everything is only logged.
    """

    def __init__(
        self,
        node_name: str,
        uid_of: Callable[[ObjectKey], str],
        requests: ApiWriter | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = Subject("Node", "", node_name, node_name)
        self._uid_of = uid_of
        self._writer = EventWriter(node_name, requests, clock) if requests else None
        self._said: dict[About, dict[tuple[str, str], EventKey]] = {}
        self._spam_filter = SpamFilter(clock)

    def report(self, key: ObjectKey, problem: Problem) -> None:
        """Log a Service's problem and queue its Event, once for each Service, reason and subject."""
        subject = Subject("Service", key.namespace, key.name, self._uid_of(key))
        self._report(key, subject, problem, "service.problem", "Plan", service=str(key))

    def report_policy(self, key: ObjectKey, uid: str, problems: Sequence[Problem]) -> None:
        """Do the same with all problems of a network policy. When it has none any more, what was said is forgotten."""
        kind = NETWORK_POLICIES if key.namespace else CLUSTER_NETWORK_POLICIES
        about = Subject(kind.name, key.namespace, key.name, "", kind.api_version)
        if not problems:
            self._said.pop(about, None)
        for problem in problems:
            self._report(about, about._replace(uid=uid), problem, "policy.problem", "Plan", policy=str(key))

    def report_on_node(self, problem: Problem) -> None:
        """Log a problem of this node and queue its Event, once for each reason and subject."""
        self._report(None, self._node, problem, "node.problem", "Operate")

    def take_back_on_node(self, problem: Problem, reason: str, note: str) -> None:
        """Log that a problem of this node is over and queue an Event, if it was said; it may be reported again."""
        said = self._said.get(None, {})
        if (cause := (problem.reason, problem.subject)) in said:
            del said[cause]
            log.info("node.problem_over", reason=problem.reason, subject=problem.subject)
            self.announce(reason, note)

    def report_all(self, plan: Plan) -> None:
        """Report the problems of a plan. Those of a deleted Service are forgotten."""
        if plan.is_empty:
            self.forget(plan.key)
        for problem in plan.problems:
            if isinstance(plan, NodePlan):
                self.report_on_node(problem)
            else:
                self.report(plan.key, problem)

    def announce(self, reason: str, note: str) -> None:
        """Queue an Event about this node that is no problem. The caller logs it."""
        self._say(EventKey(self._node, reason, note), EventText("Normal", "Operate", note))

    def forget(self, key: ObjectKey) -> None:
        """Forget the problems of a deleted Service, so that those of a later one with this name are reported."""
        self._said.pop(key, None)

    async def run(self) -> None:
        """Write the queued Events, and how often each has occurred."""
        if self._writer is not None:
            await self._writer.run()

    def _report(self, key: About, subject: Subject, problem: Problem, event: str, action: str, **fields: str) -> None:
        """Log a problem and queue its Event. What was said is counted instead, and nothing is said of too much."""
        said, cause = self._said.setdefault(key, {}), (problem.reason, problem.subject)
        if cause in said:
            self._count(said[cause])
            return
        about, message = EventKey(subject, *cause), problem.message
        combined = EventKey(subject, problem.reason, _COMBINED)
        match self._spam_filter.judge(key, problem.reason):
            case Decision.SAY:
                said[cause] = about
            case Decision.COMBINE:
                said[cause] = about = combined
                message = f"(combined from similar problems) {message}"
            case Decision.SILENCE:
                about, message = EventKey(subject, _SILENCED.reason, _SILENCED.subject), _SILENCED.message
            case Decision.ADD:
                self._count(combined)
                return
            case Decision.DROP:
                return
        if len(said) > MOST_SAID:
            del said[next(iter(said))]
        log.warning(event, **fields, reason=about.reason, message=message)
        self._say(about, EventText("Warning", action, message))

    def _say(self, about: EventKey, text: EventText) -> None:
        if self._writer is not None:
            self._writer.say(about, text)

    def _count(self, about: EventKey) -> None:
        if self._writer is not None:
            self._writer.count(about)


def log_node(node: NodeFacts) -> None:
    """Log what is known of the node, and which address families it serves."""
    families = [family for family, address in zip(Family, (node.ipv4, node.ipv6), strict=True) if address is not None]
    log.info(
        "node.known",
        ipv4=node.ipv4,
        ipv6=node.ipv6,
        zone=node.zone,
        pod_cidrs=node.pod_cidrs,
        node_ports_on=node.node_port_addresses,
        serves=" and ".join(families) + (" only" if len(families) == 1 else ""),
    )
