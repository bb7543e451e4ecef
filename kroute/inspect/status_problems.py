"""The problems of a status, each with its next step. Pure: what was found is given."""

from collections.abc import Iterable, Iterator, Mapping

from kroute.firewall.sets import SetFill
from kroute.inspect.status import Served, Severity, Source, StatusProblem
from kroute.model.plan import Plan, Problem
from kroute.reconcile.pass_status import ControllerStatistics

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


def of_plans(plans: Iterable[Plan]) -> Iterator[StatusProblem]:
    """The problems of the plans, in the order of the Services' names."""
    for plan in sorted((it for it in plans if it.problems), key=lambda it: it.key):
        for problem in plan.problems:
            yield of_plan(plan.service_name, problem)


def of_plan(service: str, problem: Problem) -> StatusProblem:
    """A plan's problem, beside which all else is served. `service` is empty for that of the node."""
    namespace, _, name = service.partition("/")
    other = _OF_A_SERVICE.format(namespace=namespace, name=name) if service else _OF_THE_NODE
    return StatusProblem(
        Severity.WARNING, service, problem.reason, problem.message, _NEXT_STEPS.get(problem.reason, other)
    )


def of_work(complaints: Iterable[str], controllers: Mapping[str, ControllerStatistics]) -> Iterator[StatusProblem]:
    """What keeps the controllers from their work: `complaints` of the health check, failures, and refused objects."""
    for sentence in complaints:
        yield _of_node("Unhealthy", sentence, "see the log of kroute on the node; `kroute bundle` collects it")
    for name, controller in controllers.items():
        if controller.failing_for and controller.last_error:
            step = "kroute tries again by itself; if it lasts, see `kroute check` on the node"
            yield _of_node("ControllerFailing", f"{name} fails: {controller.last_error}", step)
        if controller.waiting:
            message = f"the kernel has refused {controller.waiting} objects of {name}, which are tried again"
            yield _of_node(
                "WriteRefused", message, "see `write.refused` in the log of kroute; `kroute plan` names them"
            )


def of_proxies(waits_for: str, rival: str) -> Iterator[StatusProblem]:
    """The other service proxy of this node, for which kroute waits or which has come later; else empty texts."""
    if waits_for:
        step = "remove it from this node, then kroute takes over by itself (docs/one-proxy.md)"
        yield _of_node("WaitingForServiceProxy", f"waiting: {waits_for}", step)
    if rival:
        step = "remove one of the two; until then kroute repairs its own once a minute (docs/one-proxy.md)"
        yield _of_node("RivalServiceProxy", f"{rival}, beside kroute", step)


def of_source(source: Source, denied: Iterable[str]) -> Iterator[StatusProblem]:
    """What keeps the agent from reading Services. `denied` are the kinds that it may not read."""
    for kind in denied:
        message = f"the API server does not let kroute list and watch every {kind}"
        yield _of_node("Denied", message, "compare the ClusterRole and the ServiceAccount with deploy/kustomize/base")
    if not source.connected:
        message = "the API server does not answer; what is in the kernel stays"
        yield _of_node("ApiUnreachable", message, "run `kroute check` on the node: it asks the server and says why")
    waiting = sorted(kind for kind, version in source.resource_versions.items() if not version)
    if source.connected and waiting:
        message = f"not listed yet: {', '.join(waiting)}"
        yield _of_node("NotListed", message, "wait; if it lasts, see `list.failed` in the log of kroute")


def of_manifests(faults: Iterable[str]) -> Iterator[StatusProblem]:
    """What of the manifests cannot be read."""
    for fault in faults:
        step = "correct the file; what was read of it last is served until then"
        yield StatusProblem(Severity.WARNING, "", "ManifestFaulty", fault, step)


def of_kernel(served: Served, unreadable: str, *, is_settled: bool) -> Iterator[StatusProblem]:
    """What the kernel lacks, unless changes are on their way. `unreadable`: why nothing is known of it."""
    if unreadable:
        yield _of_node("KernelUnreadable", unreadable, "see `kroute check` on the node")
    missing = (served.missing or 0) + (served.missing_real_servers or 0)
    if missing and is_settled:
        message = (
            f"{served.missing} virtual servers and {served.missing_real_servers} real servers are planned, and not in "
            "the kernel"
        )
        yield _of_node("NotInKernel", message, "`kroute show` names them; kroute writes them again within its resync")


def of_sets(fills: Iterable[SetFill]) -> Iterator[StatusProblem]:
    """The sets that are nearly as full as they may become."""
    for fill in fills:
        if fill.entries >= NEARLY_FULL * fill.limit:
            message = f"the set {fill.set} has {fill.entries} of at most {fill.limit} entries"
            yield StatusProblem(
                Severity.WARNING,
                "",
                "SetNearlyFull",
                message,
                "find the Services with most ports: `kroute show services`",
            )


def of_eligibility(reason: str | None) -> Iterator[StatusProblem]:
    """Why load balancers should send this node no new connections, if they should not."""
    if reason:
        step = "nothing, if that is meant: /healthz says so to load balancers"
        yield StatusProblem(Severity.WARNING, "", "NodeIneligible", reason, step)


def _of_node(reason: str, message: str, next_step: str) -> StatusProblem:
    return StatusProblem(Severity.FAIL, "", reason, message, next_step)
