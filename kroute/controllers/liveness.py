"""Whether the controllers do their work. `/healthz` and the health check ports of Services answer with this.

None of these rules depends on a single Service or on the API server. An object that the kernel refuses is tried again
alone, and without an API server the data path stays as it is. A load balancer that removed the node for either would
cause an outage.
"""

from collections.abc import Iterable, Iterator, Mapping

from kroute.broadcaster import QueueStatistics
from kroute.reconcile.pass_status import ControllerStatistics

RESYNC_PERIODS = 2
"""After how many resync periods of waiting, failing or one pass kroute is unhealthy (kubernetes,
pkg/proxy/healthcheck/proxy_health.go: an update may wait for two sync periods)."""


def complaints(
    queues: Iterable[QueueStatistics], controllers: Mapping[str, ControllerStatistics], limit: float
) -> list[str]:
    """One sentence for each queue that has waited, and each controller that has failed or been busy, for `limit` s."""
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
