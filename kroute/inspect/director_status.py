"""The answer of a running director to `kroute status`."""

from collections.abc import Collection

from kroute import __version__
from kroute.inspect.figures import Figures
from kroute.inspect.status import (
    Source,
    State,
    Status,
    StatusProblem,
    kernel_problems,
    plan_problems,
    rfc3339,
    served,
    source_problems,
    warning,
    with_problems,
    work_problems,
)
from kroute.model.plan import ServicePlan
from kroute.reconcile.pass_status import ControllerStatistics


def director_status(
    kernel: Figures,
    *,
    node: str,
    started: float,
    election: str,
    is_live: bool,
    pending: int,
    plans: Collection[ServicePlan],
    work: ControllerStatistics,
    failing: Collection[str],
    source: Source,
) -> Status:
    """The status of a director. `kernel`: what its kernel has of all plans.

    `started` is a Unix time, and `election` its role. `is_live`: whether the initial sync is served. `failing` are the
    failing probes, as texts.
    """
    found = Status(
        node=node,
        role="director",
        state=State.READY if is_live else State.STARTING,
        version=__version__,
        started=rfc3339(started),
        election=election,
        served=served(plans, kernel),
        pending=pending,
        generation=max((plan.generation for plan in plans), default=0),
        last_resync=rfc3339(work.last_resync),
        last_look=rfc3339(work.last_look),
        source=source,
    )
    problems = [
        *source_problems(source, ()),
        *work_problems((), {"director": work}),
        *kernel_problems(found.served, "", is_settled=found.is_settled),
        *map(_unanswered, sorted(failing)),
        *plan_problems(plans),
    ]
    return with_problems(found, problems)


def _unanswered(probe: str) -> StatusProblem:
    step = "see whether that node is up and kroute runs there; its real servers get no new connections meanwhile"
    return warning("NodeFailing", f"{probe} does not answer", step)
