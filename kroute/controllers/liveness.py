"""Whether the controllers do their work: what `/healthz` and the health check ports of Services answer.

Not one of these rules looks at a single Service or at the API server. What the kernel refuses for one object is tried
again for that object alone, and without an API server the data path stays as it is: a load balancer that took the node
out for either would make an outage of it.
"""

from collections.abc import Iterable, Iterator, Mapping

from kroute.broadcaster import QueueStatistics
from kroute.reconcile.pass_status import ControllerStatistics

RESYNC_PERIODS = 2
"""How many resync periods something may take before kroute calls itself unhealthy (kubernetes,
pkg/proxy/healthcheck/proxy_health.go: an update may wait for two sync periods)."""


def complaints(
    queues: Iterable[QueueStatistics], controllers: Mapping[str, ControllerStatistics], limit: float
) -> list[str]:
    """What is wrong, one sentence each: whatever has waited, failed or taken longer than `limit` seconds."""
    return [*_late(queues, limit), *_failing(controllers, limit)]


def _late(queues: Iterable[QueueStatistics], limit: float) -> Iterator[str]:
    for queue in queues:
        if queue.lag >= limit:
            yield f"{queue.depth} plans wait for {queue.subscriber}, the oldest for {queue.lag:.0f} s"


def _failing(controllers: Mapping[str, ControllerStatistics], limit: float) -> Iterator[str]:
    for name, controller in controllers.items():
        if controller.failing_for >= limit:
            yield f"{name} has failed for {controller.failing_for:.0f} s: {controller.last_error}"
        elif controller.busy_for >= limit:
            yield f"{name} has been at one pass for {controller.busy_for:.0f} s"
