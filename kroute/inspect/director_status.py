"""The answer of a running director to `kroute status`."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kroute import __version__
from kroute.inspect.figures import total_of
from kroute.inspect.status import (
    Severity,
    Source,
    State,
    Status,
    StatusProblem,
    kernel_problems,
    plan_problems,
    rfc3339,
    served,
    source_problems,
    with_problems,
    work_problems,
)
from kroute.kernel.ipvs.objects import VirtualServerKey, VirtualServerState
from kroute.model.plan import ServicePlan
from kroute.reconcile.broadcaster import QueueStatistics
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
    found_served = served(parts.plans, total_of(parts.plans, table))
    found = Status(
        node=parts.node,
        role="director",
        state=State.READY if parts.is_live else State.STARTING,
        version=__version__,
        started=rfc3339(parts.started),
        election=parts.election,
        served=found_served,
        pending=max(int(parts.is_changed), *(queue.depth for queue in parts.queues)),
        generation=max((plan.generation for plan in parts.plans), default=0),
        last_resync=rfc3339(parts.work.last_resync),
        last_look=rfc3339(parts.work.last_look),
        source=source,
    )
    return with_problems(
        found,
        [
            *source_problems(source, ()),
            *work_problems((), {"director": parts.work}),
            *kernel_problems(found_served, "", is_settled=found.is_settled),
            *(_unanswered(each) for each in sorted(parts.failing)),
            *plan_problems(parts.plans),
        ],
    )


def _unanswered(probe: str) -> StatusProblem:
    step = "see whether that node is up and kroute runs there; its real servers get no new connections meanwhile"
    return StatusProblem(Severity.WARNING, "", "NodeFailing", f"{probe} does not answer", step)
