"""Tells load balancers outside the cluster whether this node serves a Service (`spec.healthCheckNodePort`).

A Service of type LoadBalancer with `externalTrafficPolicy: Local` is served only by nodes that have endpoints of it.
Load balancers ask each node over HTTP, on a port that the API server allocates to the Service.

Without `--nodeport-addresses`, each port has one socket that listens on every address, as in kube-proxy. That socket
need not change when the node's addresses do, and the filter refuses connections to it on VIPs. With that setting, each
port has one socket for each address that it names; sockets are opened and closed when the node's addresses change.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from errno import EADDRINUSE
from http import HTTPStatus
from typing import NamedTuple

import msgspec
import structlog

from kroute.base.backoff import exhaustion
from kroute.http.messages import Request, Response
from kroute.http.server import BriefHttpServer
from kroute.model.objects import ObjectKey
from kroute.model.plan import HealthCheck, NodePlan, Plan, Problem, ServicePlan
from kroute.reconcile.batch_writer import log_changes
from kroute.reconcile.controller import Controller, Shared

log = structlog.get_logger(__name__)

EVERY_ADDRESS = ""


class _ListenPoint(NamedTuple):
    """Where one socket listens."""

    port: int
    address: str


class _Listener(msgspec.Struct, frozen=True):
    """A listening socket, and the Service for which it was opened."""

    service: ObjectKey
    server: asyncio.Server


class HealthChecks(Controller):
    """Owns the sockets that listen on health check ports. `healthy` returns whether this node's proxy is healthy."""

    name = "health_checks"

    def __init__(self, shared: Shared, healthy: Callable[[], bool]) -> None:
        super().__init__(shared)
        self._report = shared.report
        self._server = HealthCheckServer(self._checked_at, healthy)
        self._addresses: Sequence[str] = () if self.settings.nodeport_addresses else (EVERY_ADDRESS,)
        self._ports: dict[ObjectKey, int] = {}
        self._claims: dict[int, dict[ObjectKey, HealthCheck]] = {}  # of a port's claims the first wins
        self._listening: dict[_ListenPoint, _Listener] = {}

    async def run(self) -> None:
        """Reconcile until `stop`; then close all sockets."""
        try:
            await super().run()
        finally:
            await self._close(self._listening)
            self._server.cut_connections()

    @staticmethod
    def is_news(plan: Plan, before: Plan | None) -> bool:
        """Whether a plan has something else for this controller than the one before: few Services have any."""
        if isinstance(plan, NodePlan):
            return True
        return plan.health_check != (before.health_check if isinstance(before, ServicePlan) else None)

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Note which Service wants which port.

        All Services of the batch give up ports before any Service takes one, so the order of the plans does not matter.
        """
        for plan in plans:
            if plan.health_check is None or plan.health_check.port != self._ports.get(plan.key):
                self._let_go(plan.key)
        for plan in plans:
            if plan.health_check is not None:
                self._claim(plan.key, plan.health_check)

    def accept_node(self, plan: NodePlan) -> None:
        """Take the addresses at which to listen from the node's plan, if `--nodeport-addresses` is set."""
        if self.settings.nodeport_addresses:
            self._addresses = plan.node.node_port_addresses

    async def read(self) -> Iterable[str]:
        """Scan nothing: the sockets belong to this process, and nobody else can close them."""
        return ()

    async def write(self) -> None:
        """Close the sockets that are no longer wanted, then open those that are missing."""
        desired = {_ListenPoint(port, address) for port in self._claims for address in self._addresses}
        await self._close(self._listening.keys() - desired)
        await self._open(desired - self._listening.keys() - self.status.waiting())

    def _claim(self, key: ObjectKey, check: HealthCheck) -> None:
        claims = self._claims.setdefault(check.port, {})
        if key not in claims and claims:
            self._report_rival(key, check.port, holder=next(iter(claims)))
        claims[key] = check
        self._ports[key] = check.port

    def _let_go(self, key: ObjectKey) -> None:
        port = self._ports.pop(key, None)
        if port is None:
            return
        del self._claims[port][key]
        if not self._claims[port]:
            del self._claims[port]
        for address in self._addresses:  # the next Service with this port need not wait
            self.status.retries.succeeded(_ListenPoint(port, address))

    def _checked_at(self, port: int) -> tuple[ObjectKey, HealthCheck] | None:
        return next(iter(self._claims.get(port, {}).items()), None)

    async def _open(self, places: Iterable[_ListenPoint]) -> None:
        opened: list[_ListenPoint] = []
        refusals: dict[_ListenPoint, str] = {}
        for place in sorted(places):
            key = next(iter(self._claims[place.port]))
            try:
                server = await self._server.listen(place.address, place.port)
            except OSError as error:
                refusals[place] = self._report_refusal(key, place, error)
                continue
            self._listening[place] = _Listener(key, server)
            opened.append(place)
        self.status.wrote(len(opened))
        log_changes(log, opened, lambda _: "health_check.listening", self._fields)
        self.status.refused(refusals, (key for place in refusals for key in self._claims[place.port]))

    async def _close(self, places: Iterable[_ListenPoint]) -> None:
        closed = sorted(places)
        if not closed:
            return
        log_changes(log, closed, lambda _: "health_check.closed", self._fields)
        await self._server.close([self._listening.pop(place).server for place in closed])
        self.status.wrote(len(closed))

    def _report_rival(self, key: ObjectKey, port: int, holder: ObjectKey) -> None:
        """Report to a Service that another one had its port first."""
        subject = f"healthCheckNodePort {port}"
        message = (
            f"{subject} is that of Service {holder} already, so it does not report on this one. "
            "Give one of them another port."
        )
        self._report(key, Problem("HealthCheckPortConflict", subject, message))

    def _report_refusal(self, key: ObjectKey, place: _ListenPoint, error: OSError) -> str:
        """Report a port that cannot be opened, unless it was reported before; returns the sentence."""
        subject = f"healthCheckNodePort {place.port}"
        where = place.address or "every address"
        holder = f"`ss -ltnp sport = :{place.port}` shows which process has it" if error.errno == EADDRINUSE else ""
        next_step = exhaustion(error) or holder
        message = (
            f"{subject} cannot be opened on {where} of this node: {os.strerror(error.errno or 0)}. "
            f"{next_step}{'; ' if next_step else ''}kroute tries again, later and later."
        )
        if place not in self.status.retries:
            self._report(key, Problem("HealthCheckPortUnavailable", subject, message))
        return message

    def _fields(self, place: _ListenPoint) -> dict[str, object]:
        service = self._listening[place].service
        return {"service": str(service), "port": place.port, "address": place.address or "every address"}


CheckedAt = Callable[[int], tuple[ObjectKey, HealthCheck] | None]
"""Returns the Service on which a port reports, and its health check; None for a port that no Service has."""


class HealthCheckServer(BriefHttpServer):
    """Answers as kube-proxy does (kubernetes, pkg/proxy/healthcheck/service_health.go), to anybody.

    Path and method do not matter, because a load balancer may be configured to use any.

    The status is 200 when the Service has ready endpoints on this node and the proxy is `healthy`, else 503. The weight
    header and the body say how many endpoints there are. Only endpoints of the family over which the load balancer asks
    count, as with kube-proxy since 1.36 (kubernetes/kubernetes#137370): it sends clients over that family. Of a Service
    without this family those of the other one count, as before 1.36: Kubernetes' own tests ask at all node addresses.
    """

    def __init__(self, checked_at: CheckedAt, healthy: Callable[[], bool]) -> None:
        super().__init__(self._answer)
        self._checked_at = checked_at
        self._healthy = healthy

    async def _answer(self, request: Request) -> Response:
        if (checked := self._checked_at(request.port)) is None:
            return Response(HTTPStatus.SERVICE_UNAVAILABLE)
        (key, check), is_healthy = checked, self._healthy()
        of_families = check.local_endpoints
        local_endpoints = of_families.get(request.family, max(of_families.values(), default=0))
        body = {
            "service": {"namespace": key.namespace, "name": key.name},
            "localEndpoints": local_endpoints,
            "serviceProxyHealthy": is_healthy,
        }
        return Response(
            HTTPStatus.OK if is_healthy and local_endpoints else HTTPStatus.SERVICE_UNAVAILABLE,
            msgspec.json.encode(body),
            "application/json",
            {
                "X-Content-Type-Options": "nosniff",
                "X-Load-Balancing-Endpoint-Weight": str(local_endpoints),
            },
        )
