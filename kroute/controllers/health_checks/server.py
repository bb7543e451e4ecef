"""The answers at each `healthCheckNodePort`.

Requests come from outside the cluster, so `kroute.http` serves them. Path and method do not matter, because a load
balancer may be configured to use any.
"""

from collections.abc import Callable
from http import HTTPStatus

import msgspec

from kroute.http.messages import Request, Response
from kroute.http.server import BriefHttpServer
from kroute.model.objects import ObjectKey
from kroute.model.plan import HealthCheck

CheckedAt = Callable[[int], tuple[ObjectKey, HealthCheck] | None]
"""Returns the Service on which a port reports, and its health check; None for a port that no Service has."""


class HealthCheckServer(BriefHttpServer):
    """Answers as kube-proxy does (kubernetes, pkg/proxy/healthcheck/service_health.go).

    The status is 200 when the Service has ready endpoints on this node and the proxy is `healthy`, else 503. The weight
    header and the body say how many endpoints there are.
    """

    def __init__(self, checked_at: CheckedAt, healthy: Callable[[], bool]) -> None:
        super().__init__(self._answer)
        self._checked_at = checked_at
        self._healthy = healthy

    async def _answer(self, request: Request) -> Response:
        checked = self._checked_at(request.port)
        return self._health(*checked) if checked else Response(HTTPStatus.SERVICE_UNAVAILABLE)

    def _health(self, key: ObjectKey, check: HealthCheck) -> Response:
        is_healthy = self._healthy()
        body = {
            "service": {"namespace": key.namespace, "name": key.name},
            "localEndpoints": check.local_endpoints,
            "serviceProxyHealthy": is_healthy,
        }
        return Response(
            HTTPStatus.OK if is_healthy and check.local_endpoints else HTTPStatus.SERVICE_UNAVAILABLE,
            msgspec.json.encode(body),
            "application/json",
            {
                "X-Content-Type-Options": "nosniff",
                "X-Load-Balancing-Endpoint-Weight": str(check.local_endpoints),
            },
        )
