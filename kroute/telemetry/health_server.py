"""The HTTP answers to `/healthz`, `/livez` and `/readyz` on the health port and the metrics port."""

from http import HTTPStatus

import msgspec

from kroute.http.messages import Request, Response
from kroute.telemetry.health import Health, HealthEndpoint

_HEADERS = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def probe_response(health: Health, path: str) -> Response | None:
    """The response to a probe, or None if `path` is not that of a probe."""
    try:
        probe = HealthEndpoint(path)
    except ValueError:
        return None
    answer = health.answer(probe)
    return Response(answer.status, msgspec.json.encode(answer), headers=_HEADERS)


class HealthServer:
    """Answers only probes: its port is open to load balancers."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def answer(self, request: Request) -> Response:
        if request.method not in {"GET", "HEAD"}:
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        return probe_response(self._health, request.path) or Response(HTTPStatus.NOT_FOUND)
