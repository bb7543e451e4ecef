"""Slow start (`kroute.io/slow-start`): the weight of a new real server climbs to its own in steps.

The plan makes weights large enough for the steps; `kroute.controllers.ipvs.slow_starts` climbs them.
"""

import msgspec

from kroute.base.schedulers import IN_STEPS
from kroute.model.plan import SLOW_START_STEPS, RealServer, VirtualServer
from kroute.model.steps import Steps, parts
from kroute.planning.endpoints import Chosen
from kroute.planning.features.step import FeatureStep, PlanInputs
from kroute.planning.options import Annotation, Applied, Options, names, read_seconds
from kroute.planning.weight_facts import MAX_WEIGHT

MAX_SLOW_START = 3600
"""Seconds."""


class SlowStart(msgspec.Struct, FeatureStep, frozen=True):
    """For how many seconds the weight of a new real server climbs."""

    seconds: int

    def weigh(self, _chosen: Chosen, servers: tuple[RealServer, ...]) -> Steps[tuple[RealServer, ...]]:
        """Leave room for the steps."""
        return in_steps(servers)

    def virtual_server(self, server: VirtualServer) -> VirtualServer:
        """The virtual server, whose new real servers climb."""
        return msgspec.structs.replace(server, slow_start=self.seconds)


def begin(inputs: PlanInputs) -> SlowStart | None:
    """The step of a Service that asks for a slow start."""
    return inputs.options.of(SlowStart)


def in_steps(real_servers: tuple[RealServer, ...]) -> Steps[tuple[RealServer, ...]]:
    """The real servers with weights in the same ratios, in which each step of a slow start is a whole number.

    Weights that would become too great stay as they are: their own steps are small enough.
    """
    if max((weight for _, _, weight in real_servers), default=0) > MAX_WEIGHT // SLOW_START_STEPS:
        return real_servers
    multiplied: list[RealServer] = []
    for part in parts(real_servers):
        multiplied += [RealServer(address, port, weight * SLOW_START_STEPS) for address, port, weight in part]
        yield len(part)
    return tuple(multiplied)


def _apply(options: Options, value: str) -> Applied:
    seconds = read_seconds(value)
    if seconds is None or seconds > MAX_SLOW_START:
        return options, "is not a slow start; new endpoints get their whole share at once"
    if seconds and options.scheduler not in IN_STEPS:
        return options, f"is not obeyed: with the scheduler {options.scheduler} a share cannot climb in steps"
    return options.asking(SlowStart(seconds) if seconds else None), None


ANNOTATIONS = (
    Annotation(
        names=names("slow-start", "slow-start"),
        meaning="for how long the share of a new endpoint climbs, beside those that serve already",
        allowed=f"0 (at once), or 1s to 1h, with one of the schedulers {', '.join(IN_STEPS)}",
        apply=_apply,
        needs_shares=True,
    ),
)
