"""The weights of real servers."""

from kroute.model.plan import SLOW_START_STEPS, RealServer
from kroute.planning.weights.text import MAX_WEIGHT


def in_steps(real_servers: tuple[RealServer, ...]) -> tuple[RealServer, ...]:
    """The real servers with weights in the same ratios, in which each step of a slow start is a whole number.

    Weights that would become too great stay as they are: their own steps are small enough.
    """
    if any(server.weight > MAX_WEIGHT // SLOW_START_STEPS for server in real_servers):
        return real_servers
    return tuple([server._replace(weight=server.weight * SLOW_START_STEPS) for server in real_servers])
