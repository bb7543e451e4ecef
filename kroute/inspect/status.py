"""What a node or a director serves, what is wrong there, and what to do about it: the answer to `kroute status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from kroute.inspect import agent_socket
from kroute.model.document import Document

if TYPE_CHECKING:
    from kroute.firewall.sets import SetFill
    from kroute.inspect.figures import Figures
    from kroute.model.objects import ObjectKey
    from kroute.model.plan import Plan, Problem, ServicePlan
    from kroute.reconcile.pass_status import ControllerStatistics
    from kroute.watchers.kubernetes.errors import Denial

QUESTION = agent_socket.STATUS
"""The question that an agent or a director answers with a Status. `status shared` also asks for the digest."""
WITH_DIGEST = "shared"
"""The argument of the question."""

MOST_PROBLEMS = 100
"""How many problems a Status names; `problems_total` counts all."""
MOST_OF_A_REASON = 20
"""How many problems of one reason it names while there are others, so that a frequent one hides none."""


NEARLY_FULL = 0.9
"""The share of its limit from which a set counts as nearly full."""

_OF_A_SERVICE = "correct the Service; `kubectl describe service -n {namespace} {name}` has this as an Event"
_OF_THE_NODE = "see `kroute check` on the node"
_NEXT_STEPS: Mapping[str, str] = {
    "AddressConflict": "give one of the two Services another address or port; `kroute explain` says which one has it",
    "ForeignVirtualServer": "delete that virtual server with `ipvsadm -D` if no program needs it",
    "HealthCheckPortConflict": "give one of the two Services another healthCheckNodePort",
    "HealthCheckPortUnavailable": "find the program that has the port with `ss -lntp` on the node, and stop it",
    "PortUnavailable": "find the program that has the port with `ss -lntp` on the node, or give kroute another one",
    "NodeNotFound": "give the Node's name with --node-name, or wait until the kubelet has made it",
    "TooManyBackends": "split the Service, or raise --max-backends",
    "TooManyVirtualServers": "split the Service, or raise --max-virtual-servers",
}
"""What to do about the problems of plans whose sentence does not already say what is allowed."""


class State(StrEnum):
    """What the agent does."""

    READY = "ready"
    STARTING = "starting"
    """The initial sync is not served yet."""
    WAITING = "waiting"
    """Another service proxy is at work on the node: nothing is written to the kernel until it has ended."""
    NO_AGENT = "no agent"
    """Nobody answers: the kernel serves what the last run has left."""


class Severity(StrEnum):
    """How far a problem reaches."""

    FAIL = "FAIL"
    """The node does not do what it should."""
    WARNING = "WARNING"
    """It concerns single Services, or will matter later."""


class StatusProblem(msgspec.Struct, frozen=True, rename="camel"):
    """One problem. `service` is NAMESPACE/NAME, or empty for the node itself. `next_step` says what to do about it."""

    severity: Severity
    service: str
    reason: str
    message: str
    next_step: str


class Served(msgspec.Struct, frozen=True, rename="camel"):
    """Counts of what is planned, and of what the kernel has of it.

    `refusing` are virtual servers without a ready endpoint, whose clients are refused. `missing` and
    `missing_real_servers` are planned and not in the kernel. `connections` are the established ones, `inactive` those
    that begin or end, and UDP flows. The kernel's counts are None if it could not be read.
    """

    services: int = 0
    virtual_servers: int = 0
    real_servers: int = 0
    refusing: int | None = None
    missing: int | None = None
    missing_real_servers: int | None = None
    connections: int | None = None
    inactive: int | None = None


class Source(msgspec.Struct, frozen=True, rename="camel"):
    """Where the agent reads Services: `api` or `manifests`.

    `connected`: whether it is read now. `objects` counts what is known of each kind. `resource_versions` are the newest
    ones that were read, by kind (empty: none yet); manifests have none. `server` is the URL of the API server in use.
    """

    kind: str
    connected: bool
    objects: Mapping[str, int] = {}
    resource_versions: Mapping[str, str] = {}
    server: str = ""


class PolicyCounts(msgspec.Struct, frozen=True, rename="camel"):
    """The pods of the node that network policies isolate, and the policies that have problems."""

    isolated_pods: int
    with_problems: int


class AddressFill(msgspec.Struct, frozen=True, rename="camel"):
    """How many addresses of `--loadbalancer-ip-range` are in use, and how many can be given out."""

    in_use: int
    in_range: int


class AllocatorView(msgspec.Struct, frozen=True, rename="camel"):
    """Which node gives Services their LoadBalancer addresses; empty if that is not known.

    `is_here`: this one. Only it knows how many Services wait, and the addresses by family.
    """

    node: str
    is_here: bool = False
    waiting: int = 0
    addresses: Mapping[str, AddressFill] = {}


class Status(Document, kw_only=True):
    """The state of one node or director. Times are RFC 3339 in UTC, None if there is none.

    `policies` is None unless network policies are enforced, and `allocator` unless agents give out addresses.

    `role` is `node`, or for a director `director`; then `election` is `active`, `standby` or `unknown`. `pending` is
    how many Services have changes that were read and are not in the kernel yet. `generation` grows with each plan of
    this agent. `shared` is the digest of what must be the same on every node (`inspect.shared_state`), empty if it was
    not asked for. `reasons` counts all problems by their reason.
    """

    kind: ClassVar[str] = "Status"

    node: str
    role: str = "node"
    state: State
    version: str = ""
    started: str | None = None
    firewall: str = ""
    election: str = ""
    served: Served = Served()
    pending: int = 0
    generation: int = 0
    last_resync: str | None = None
    last_look: str | None = None
    source: Source | None = None
    policies: PolicyCounts | None = None
    allocator: AllocatorView | None = None
    shared: str = ""
    problems: list[StatusProblem] = msgspec.field(default_factory=list)
    problems_total: int = 0
    reasons: Mapping[str, int] = {}

    def names(self) -> list[str]:
        """What has problems: Services, and `node` for the node itself."""
        return [problem.service or "node" for problem in self.problems]

    @property
    def is_settled(self) -> bool:
        """Whether everything that was read is in the kernel."""
        return self.state is State.READY and not self.pending


def with_problems(status: Status, problems: Iterable[StatusProblem]) -> Status:
    """The status with these problems: those of the node first, in their order, and not more than MOST_PROBLEMS.

    Where they are too many, the first MOST_OF_A_REASON of each reason are preferred.
    """
    found = sorted(problems, key=lambda problem: problem.severity is not Severity.FAIL)
    reasons: Counter[str] = Counter()
    first: list[int] = []
    others: list[int] = []
    for number, problem in enumerate(found):
        (first if reasons[problem.reason] < MOST_OF_A_REASON else others).append(number)
        reasons[problem.reason] += 1
    named = [found[number] for number in sorted([*first, *others][:MOST_PROBLEMS])]
    return msgspec.structs.replace(status, problems=named, problems_total=len(found), reasons=dict(reasons))


def served(plans: Collection[ServicePlan], kernel: Figures | None) -> Served:
    """The counts of these plans, and of what the kernel has of them; None: it could not be read."""
    servers = [server for plan in plans for server in plan.virtual_servers]
    planned = len(plans), len(servers), sum(len(server.real_servers) for server in servers)
    if kernel is None:
        return Served(*planned)
    return Served(
        *planned, kernel.refusing, kernel.missing, kernel.missing_real_servers, kernel.active, kernel.inactive
    )


def plan_problems(plans: Iterable[Plan]) -> Iterator[StatusProblem]:
    """The problems of the plans, in the order of the Services' names."""
    for plan in sorted((plan for plan in plans if plan.problems), key=lambda plan: plan.key):
        for problem in plan.problems:
            yield plan_problem(plan.service_name, problem)


def plan_problem(service: str, problem: Problem) -> StatusProblem:
    """A plan's problem, beside which all else is served. `service` is empty for that of the node."""
    namespace, _, name = service.partition("/")
    other = _OF_A_SERVICE.format(namespace=namespace, name=name) if service else _OF_THE_NODE
    step = _NEXT_STEPS.get(problem.reason, other)
    return StatusProblem(Severity.WARNING, service, problem.reason, problem.message, step)


def work_problems(
    complaints: Iterable[str], controllers: Mapping[str, ControllerStatistics]
) -> Iterator[StatusProblem]:
    """What keeps the controllers from their work: `complaints` of the health check, failures, and refused objects."""
    for sentence in complaints:
        yield _failure("Unhealthy", sentence, "see the log of kroute on the node; `kroute bundle` collects it")
    for name, controller in controllers.items():
        if controller.failing_for and controller.last_error:
            step = "kroute tries again by itself; if it lasts, see `kroute check` on the node"
            yield _failure("ControllerFailing", f"{name} fails: {controller.last_error}", step)
        if controller.waiting:
            message = f"the kernel has refused {controller.waiting} objects of {name}, which are tried again"
            step = "see `write.refused` in the log of kroute; `kroute plan` names them"
            yield _failure("WriteRefused", message, step)


def proxy_problems(waits_for: str, rival: str, *, has_policies: bool = False) -> Iterator[StatusProblem]:
    """The other service proxy of this node, for which kroute waits or which has come later; else empty texts.

    `has_policies`: the rival is no proxy but enforces network policies.
    """
    if waits_for:
        step = "remove it from this node, then kroute takes over by itself (docs/one-proxy.md)"
        yield _failure("WaitingForServiceProxy", f"waiting: {waits_for}", step)
    if rival and has_policies:
        step = "end one of the two, and remove what it leaves; `kroute check` says how (docs/network-policies.md)"
        yield _failure("RivalPolicyEnforcer", f"{rival}, beside kroute: a packet must pass both", step)
    elif rival:
        step = "remove one of the two; until then kroute repairs its own once a minute (docs/one-proxy.md)"
        yield _failure("RivalServiceProxy", f"{rival}, beside kroute", step)


def source_problems(source: Source, denials: Iterable[Denial]) -> Iterator[StatusProblem]:
    """What keeps the agent from reading Services."""
    for denial in dict.fromkeys(denials):
        yield _failure("Denied", denial.message, denial.next_step)
    if not source.connected:
        message = "the API server does not answer; what is in the kernel stays"
        yield _failure("ApiUnreachable", message, "run `kroute check` on the node: it asks the server and says why")
    waiting = sorted(kind for kind, version in source.resource_versions.items() if not version)
    if source.connected and waiting:
        message = f"not listed yet: {', '.join(waiting)}"
        yield _failure("NotListed", message, "wait; if it lasts, see `list.failed` in the log of kroute")


def manifest_problems(faults: Iterable[str]) -> Iterator[StatusProblem]:
    """What of the manifests cannot be read."""
    for fault in faults:
        yield warning("ManifestFaulty", fault, "correct the file; what was read of it last is served until then")


def kernel_problems(served: Served, unreadable: str, *, is_settled: bool) -> Iterator[StatusProblem]:
    """What the kernel lacks, unless changes are on their way. `unreadable`: why nothing is known of it."""
    if unreadable:
        yield _failure("KernelUnreadable", unreadable, "see `kroute check` on the node")
    missing = (served.missing or 0) + (served.missing_real_servers or 0)
    if missing and is_settled:
        counts = f"{served.missing} virtual servers and {served.missing_real_servers} real servers"
        step = "`kroute show` names them; kroute writes them again within its resync"
        yield _failure("NotInKernel", f"{counts} are planned, and not in the kernel", step)


def set_problems(fills: Iterable[SetFill]) -> Iterator[StatusProblem]:
    """The sets that are nearly as full as they may become."""
    for fill in fills:
        if fill.entries >= NEARLY_FULL * fill.limit:
            message = f"the set {fill.set} has {fill.entries} of at most {fill.limit} entries"
            yield warning("SetNearlyFull", message, "find the Services with most ports: `kroute show services`")


def policy_problems(problems: Mapping[ObjectKey, Iterable[Problem]]) -> Iterator[StatusProblem]:
    """What of network policies is not enforced as it is written."""
    from kroute.model.policy_plan import kind_of  # noqa: PLC0415  only an agent calls this

    for policy in sorted(problems):
        for problem in problems[policy]:
            message = f"{kind_of(policy)} {policy}: {problem.message}"
            yield warning(problem.reason, message, "correct the policy; `kroute show policies` says what is enforced")


def routing_problems(problems: Iterable[Problem], withdraws: str) -> Iterator[StatusProblem]:
    """What keeps routers from learning what this node serves. `withdraws` says why it leaves that to others."""
    for problem in problems:
        yield warning(problem.reason, problem.message, "see docs/routing.md; `kroute show peers` has the sessions")
    if withdraws:
        message = f"routers learn no address from this node that others can serve: {withdraws}"
        yield warning("NodeWithdraws", message, "nothing, if that is meant (docs/routing.md)")


def pod_network_problems(problems: Iterable[Problem]) -> Iterator[StatusProblem]:
    """What keeps pods of this node and others from reaching each other."""
    for problem in problems:
        yield warning(problem.reason, problem.message, "see docs/pod-network.md")


def allocator_problems(found: AllocatorView | None) -> Iterator[StatusProblem]:
    """Which Services have no address."""
    if found is not None and found.waiting:
        message = f"{found.waiting} Services do not get the LoadBalancer addresses that they ask for"
        step = (
            "Events of this reason name them, and `load_balancer.refused` in the log (docs/load-balancer-addresses.md)"
        )
        yield warning("NoLoadBalancerAddress", message, step)


def eligibility_problems(reason: str | None) -> Iterator[StatusProblem]:
    """Why load balancers should send this node no new connections, if they should not."""
    if reason:
        yield warning("NodeIneligible", reason, "nothing, if that is meant: /healthz says so to load balancers")


def _failure(reason: str, message: str, next_step: str) -> StatusProblem:
    return StatusProblem(Severity.FAIL, "", reason, message, next_step)


def warning(reason: str, message: str, next_step: str) -> StatusProblem:
    """A warning about the node itself."""
    return StatusProblem(Severity.WARNING, "", reason, message, next_step)


def rfc3339(moment: float) -> str | None:
    """A Unix time in UTC, to the second; None for 0, which stands for never."""
    return datetime.fromtimestamp(int(moment), UTC).isoformat().replace("+00:00", "Z") if moment else None


async def ask(state_dir: Path, about: str = "") -> Status:
    """The status of the agent or director of this state directory.

    Raises AgentUnreachableError if none answers or it is of an older version, and DecodeError for an answer of another
    version.
    """
    return msgspec.json.decode(await agent_socket.ask(state_dir, f"{QUESTION} {about}".strip()), type=Status)
