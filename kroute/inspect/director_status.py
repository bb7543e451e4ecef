"""The answer of a running director to `kroute status`."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kroute import __version__
from kroute.broadcaster import QueueStatistics
from kroute.comparison.virtual_servers import Condition, condition_of, missing_real_servers
from kroute.inspect import status_problems
from kroute.inspect.status import Served, Severity, Source, State, Status, StatusProblem, rfc3339, with_problems
from kroute.kernel.ipvs.client import VirtualServerKey, VirtualServerState
from kroute.model.plan import ServicePlan
from kroute.reconcile.pass_status import ControllerStatistics


class DirectorParts(NamedTuple):
    """What a director knows of itself.

    `election` is its role. `is_live`: whether the initial sync is served; `is_changed`: whether something is to be
    planned. `failing` are the failing probes, as texts. `is_away`: whether the API server does not answer; `server` is
    its URL. `started` is a Unix time.
    """

    node: str
    started: float
    election: str
    is_live: bool
    is_changed: bool
    plans: Collection[ServicePlan]
    queues: Collection[QueueStatistics]
    work: ControllerStatistics
    failing: Collection[str]
    is_away: bool
    server: str = ""


def director_status(parts: DirectorParts, table: Mapping[VirtualServerKey, VirtualServerState]) -> Status:
    """The status of a director whose kernel has this table."""
    source = Source("api", connected=not parts.is_away, server=parts.server)
    served = _served(parts.plans, table)
    found = Status(
        node=parts.node,
        role="director",
        state=State.READY if parts.is_live else State.STARTING,
        version=__version__,
        started=rfc3339(parts.started),
        election=parts.election,
        served=served,
        pending=max(int(parts.is_changed), *(queue.depth for queue in parts.queues)),
        generation=max((plan.generation for plan in parts.plans), default=0),
        last_resync=rfc3339(parts.work.last_resync),
        last_look=rfc3339(parts.work.last_look),
        source=source,
    )
    return with_problems(
        found,
        [
            *status_problems.of_source(source, ()),
            *status_problems.of_work((), {"director": parts.work}),
            *status_problems.of_kernel(served, "", is_settled=found.is_settled),
            *(_unanswered(each) for each in sorted(parts.failing)),
            *status_problems.of_plans(parts.plans),
        ],
    )


def _served(plans: Collection[ServicePlan], table: Mapping[VirtualServerKey, VirtualServerState]) -> Served:
    servers = [server for plan in plans for server in plan.virtual_servers]
    states = [(server, table.get(server.key)) for server in servers]
    conditions = [condition_of(server, state) for server, state in states]
    present = [real for _, state in states if state is not None for real in state.real_servers.values()]
    return Served(
        services=len(plans),
        virtual_servers=len(servers),
        real_servers=sum(len(it.real_servers) for it in servers),
        refusing=conditions.count(Condition.REFUSING),
        missing=conditions.count(Condition.MISSING),
        missing_real_servers=sum(
            len(missing_real_servers(it.real_servers, state.real_servers if state else {})) for it, state in states
        ),
        connections=sum(it.active for it in present),
        inactive=sum(it.inactive for it in present),
    )


def _unanswered(probe: str) -> StatusProblem:
    step = "see whether that node is up and kroute runs there; its real servers get no new connections meanwhile"
    return StatusProblem(Severity.WARNING, "", "NodeFailing", f"{probe} does not answer", step)
