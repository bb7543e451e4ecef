"""Whether kroute works, and whether this node should get traffic: the rules and the JSON of kube-proxy.

`/healthz` is for load balancers, `/livez` for a program that restarts kroute, `/readyz` for one that waits for it.
Sources: kubernetes pkg/proxy/healthcheck/proxy_health.go and KEP-3836. kube-proxy has no `/readyz`.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from itertools import product

import msgspec

from kroute.http.messages import Request, Response
from kroute.telemetry.agent_parts import AgentParts

_HEADERS = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class HealthEndpoint(StrEnum):
    """The probes, by path."""

    HEALTHZ = "/healthz"
    LIVEZ = "/livez"
    READYZ = "/readyz"


class ProbeAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The answer to a probe. The first three fields are kube-proxy's. `causes` says why it is not healthy."""

    last_updated: str
    current_time: str
    node_eligible: bool | None = None
    healthy: bool
    causes: tuple[str, ...] = ()

    @property
    def status(self) -> HTTPStatus:
        """The answer's HTTP status."""
        return HTTPStatus.OK if self.healthy else HTTPStatus.SERVICE_UNAVAILABLE


class Health:
    """Answers probes, and counts the answers by probe and status."""

    def __init__(self, parts: AgentParts, now: Callable[[], float] = time.time) -> None:
        """`now` is the Unix time."""
        statuses = int(HTTPStatus.OK), int(HTTPStatus.SERVICE_UNAVAILABLE)
        self.answers = dict.fromkeys(product(HealthEndpoint, statuses), 0)
        self._parts = parts
        self._now = now

    def answer(self, probe: HealthEndpoint) -> ProbeAnswer:
        """Answer a probe, and count the answer."""
        answer = self.look(probe)
        self.answers[probe, int(answer.status)] += 1
        return answer

    def look(self, probe: HealthEndpoint) -> ProbeAnswer:
        """The answer to a probe, without counting it.

        kroute is healthy while it starts, like kube-proxy: the kernel still serves what an earlier run has left. It is
        ready once the initial sync is served. While it waits for another service proxy to end, it is alive only.
        """
        waiting, controllers = self._parts.ownership.waiting_text, self._parts.controllers
        causes = [] if waiting else controllers.complaints()
        if waiting and probe is not HealthEndpoint.LIVEZ:
            causes.append(waiting)
        reason = self._parts.changes.ineligible if probe is HealthEndpoint.HEALTHZ else None
        if reason is not None:
            causes.append(reason)
        if probe is HealthEndpoint.READYZ and not (waiting or controllers.is_live):
            causes.append("the initial sync of Services is not served yet")
        now = self._now()
        return ProbeAnswer(
            last_updated=_rfc3339(self.last_updated() if causes else now),
            current_time=_rfc3339(now),
            node_eligible=reason is None if probe is HealthEndpoint.HEALTHZ else None,
            healthy=not causes,
            causes=tuple(causes),
        )

    def last_updated(self) -> float:
        """The earliest of the controllers' last successful passes, in Unix time; 0 if a controller had none."""
        return min((each.last_success for each in self._parts.controllers.statistics().values()), default=0.0)


def _rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def probe_response(health: Health, path: str) -> Response | None:
    """The response to a probe, or None if `path` is not that of a probe."""
    try:
        probe = HealthEndpoint(path)
    except ValueError:
        return None
    answer = health.answer(probe)
    return Response(answer.status, msgspec.json.encode(answer), headers=_HEADERS)


async def answer_probe(health: Health, request: Request) -> Response:
    """The response on a port that is open to load balancers: it answers only probes."""
    if request.method not in {"GET", "HEAD"}:
        return Response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
    return probe_response(health, request.path) or Response(HTTPStatus.NOT_FOUND)
