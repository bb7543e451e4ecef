"""The metrics port: `/metrics`, the status page on `/`, the probes, and the other paths of kube-proxy.

Everything is read-only. The page names Services and pods, and a browser on the same machine can reach a port on
loopback. So such a port refuses requests whose Host is not a loopback name, as a DNS rebinding attack would send them.
The page may load and run only files that are shipped with it.

It is made with the first request: an agent that gets none does not load any of it.
"""

from collections.abc import Hashable, Mapping
from http import HTTPStatus
from importlib import resources
from ipaddress import ip_address
from typing import Any

import msgspec
import structlog

from kroute.http.messages import Request, Response, text
from kroute.inspect.agent_socket import Answer
from kroute.inspect.peers import peers_seen
from kroute.inspect.policies import PolicyFigures
from kroute.inspect.status import WITH_DIGEST
from kroute.kernel.errors import KernelError
from kroute.telemetry import zpages
from kroute.telemetry.agent_parts import AgentParts
from kroute.telemetry.agent_status import AgentStatus
from kroute.telemetry.health import Health, probe_response
from kroute.telemetry.kernel_reader import KernelSummary, PolicyReader
from kroute.telemetry.metrics import exposition, kube_proxy, services, work
from kroute.telemetry.metrics.scrape import Row, Scrape, survey
from kroute.telemetry.shared_answers import BusyError, SharedAnswers
from kroute.telemetry.status_page import Question, StatusPage

log = structlog.get_logger(__name__)

ROWS: tuple[Row, ...] = (*kube_proxy.ROWS, *services.ROWS, *work.ROWS)
"""Every family of metrics, in the order of writing."""
_ASSETS = {
    "/": ("index.html", "text/html"),
    "/status.css": ("status.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in ("status", "services", "service", "elements")},
}
_JSON = "application/json"
_ANSWERS = "/answers/"
"""The path under which some of the answers on the agent's socket are, for `kubectl kroute` by the pod proxy."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class MetricsPort:
    """Answers on the metrics port and on kroute's own port.

    `answers` are those of the agent's socket that are given here too.
    """

    def __init__(self, parts: AgentParts, health: Health, status: AgentStatus, answers: Mapping[str, Answer]) -> None:
        self._parts = parts
        self._health = health
        self._kernel = status.kernel
        self._answers = answers
        limit = parts.settings.metrics_services
        self._policies = PolicyReader(parts.policies, limit) if parts.policies is not None else None
        self.page = StatusPage(parts, health, status)
        self._shared: Mapping[str, SharedAnswers[Any, bytes | None]] = {
            "/metrics": SharedAnswers(self._text_of_metrics),
            "/status.json": SharedAnswers(self._content),
            "/service.json": SharedAnswers(self._service),
            _ANSWERS: SharedAnswers(self._answer_of_agent),
        }

    async def answer(self, request: Request, *, only_loopback: bool) -> Response:
        """`only_loopback`: the port is on loopback, so requests must name a loopback host."""
        if only_loopback and not _names_loopback(request.headers.get("host", "")):
            response = text(HTTPStatus.FORBIDDEN, "ask for this port by a loopback address\n")
        elif request.method not in {"GET", "HEAD"}:
            response = Response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        else:
            response = await self._page(request)
        response.headers = {**response.headers, **_HEADERS}
        return response

    async def _page(self, request: Request) -> Response:
        path = request.path
        if path in _ASSETS:
            name, kind = _ASSETS[path]
            asset = resources.files("kroute.telemetry").joinpath("web", name).read_bytes()
            return Response(body=asset, content_type=f"{kind}; charset=utf-8")
        if path == "/metrics":
            return await self._shared_response(path, None, exposition.CONTENT_TYPE)
        if path == "/status.json":
            return await self._shared_response(path, Question.of(request.query))
        if path == "/service.json":
            return await self._shared_response(path, request.query.get("name", ""))
        if path.startswith(_ANSWERS) and (name := path.removeprefix(_ANSWERS)) in self._answers:
            return await self._shared_response(_ANSWERS, name)
        return self._of_kube_proxy(request) or probe_response(self._health, path) or Response(HTTPStatus.NOT_FOUND)

    async def _shared_response(self, path: str, question: Hashable, content_type: str = _JSON) -> Response:
        """The answer, which clients that ask for it now share."""
        try:
            body = await self._shared[path].get(question)
        except BusyError:
            return Response(HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "1"})
        return Response(HTTPStatus.NOT_FOUND) if body is None else Response(body=body, content_type=content_type)

    async def _text_of_metrics(self, _question: None) -> bytes:
        now = await self.scrape()
        return b"".join([part async for part in exposition.write((metric, samples(now)) for metric, samples in ROWS)])

    async def scrape(self) -> Scrape:
        """The values of all metrics now."""
        parts, announcing = self._parts, self._parts.controllers.optional.announcing
        return Scrape(
            parts=parts,
            health=self._health,
            statistics=parts.statistics(),
            plans=await survey(parts.broadcaster.plans, parts.settings.metrics_services),
            kernel=await self._read_kernel(),
            sets=parts.controllers.set_fills(),
            policies=await self._read_policies(),
            peers=peers_seen(announcing) if announcing is not None else (),
        )

    async def _read_kernel(self) -> KernelSummary | None:
        try:
            return await self._kernel.summary()
        except KernelError as error:
            log.warning("metrics.incomplete", error=str(error), consequence="this scrape says nothing of the kernel")
            return None

    async def _read_policies(self) -> PolicyFigures | None:
        if self._policies is None:
            return None
        try:
            return await self._policies.figures()
        except KernelError as error:
            log.warning("metrics.incomplete", error=str(error), consequence="this scrape says nothing of policies")
            return None

    async def _content(self, question: Question) -> bytes:
        return msgspec.json.encode(await self.page.content(question))

    async def _service(self, name: str) -> bytes | None:
        service = await self.page.service(name)
        return msgspec.json.encode(service) if service is not None else None

    async def _answer_of_agent(self, name: str) -> bytes:
        return await self._answers[name](WITH_DIGEST)

    def _of_kube_proxy(self, request: Request) -> Response | None:
        """The answer to a path of kube-proxy that is neither metrics nor a probe, or None."""
        if request.path == "/proxyMode":
            return text(HTTPStatus.OK, "ipvs")
        if request.path == "/configz":
            return Response(body=zpages.configz(self._parts.settings), content_type=_JSON)
        if request.path not in zpages.KINDS:
            return None
        return zpages.page(request.path, request.headers.get("accept", ""), self._parts.settings)


def _names_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
