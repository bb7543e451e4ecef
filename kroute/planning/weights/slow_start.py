"""The weights of real servers."""

from kroute.model.bounds import Steps, parts
from kroute.model.plan import SLOW_START_STEPS, RealServer
from kroute.planning.weights.text import MAX_WEIGHT


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
