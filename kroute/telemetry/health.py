"""Whether kroute works, and whether this node should get traffic: the rules and the JSON of kube-proxy.

`/healthz` is for load balancers, `/livez` for whoever restarts kroute, `/readyz` for whoever waits until it is ready.
Sources: kubernetes pkg/proxy/healthcheck/proxy_health.go and KEP-3836. kube-proxy has no `/readyz`.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Protocol

import msgspec

from kroute.http.messages import Request, Response
from kroute.reconcile.pass_status import ControllerStatistics

_HEADERS = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class HealthEndpoint(StrEnum):
    """The probes, by path."""

    HEALTHZ = "/healthz"
    LIVEZ = "/livez"
    READYZ = "/readyz"


class Workers(Protocol):
    """The workers whose health is probed: `kroute.controllers.node_controllers.NodeControllers`."""

    @property
    def is_live(self) -> bool:
        """Whether everything of the initial sync is served."""

    def complaints(self) -> list[str]:
        """The reasons why they do not work; empty if they do."""

    def statistics(self) -> Mapping[str, ControllerStatistics]:
        """Each controller's counters, by name."""


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

    def __init__(
        self,
        workers: Workers,
        ineligible: Callable[[], str | None],
        waiting: Callable[[], str] = str,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`ineligible` says why this node should get no new traffic, or None. `now` is the Unix time.

        `waiting` says for which other service proxy kroute waits, or is empty.
        """
        self.answers: dict[tuple[HealthEndpoint, int], int] = {
            (probe, int(status)): 0
            for probe in HealthEndpoint
            for status in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE)
        }
        self._workers = workers
        self._ineligible = ineligible
        self._waiting = waiting
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
        waiting = self._waiting()
        causes = [] if waiting else self._workers.complaints()
        if waiting and probe is not HealthEndpoint.LIVEZ:
            causes.append(waiting)
        reason = self._ineligible() if probe is HealthEndpoint.HEALTHZ else None
        if reason is not None:
            causes.append(reason)
        if probe is HealthEndpoint.READYZ and not (waiting or self._workers.is_live):
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
        return min((each.last_success for each in self._workers.statistics().values()), default=0.0)


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


class HealthServer:
    """Answers only probes: its port is open to load balancers."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def answer(self, request: Request) -> Response:
        if request.method not in {"GET", "HEAD"}:
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        return probe_response(self._health, request.path) or Response(HTTPStatus.NOT_FOUND)
