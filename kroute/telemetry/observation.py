"""What a running agent exposes: health, metrics, the status page, and Events about the node.

Nothing here changes what is served, and no failure here ends kroute.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec
import structlog

from kroute import __version__
from kroute.base.backoff import retry_when_exhausted
from kroute.http import server
from kroute.http.messages import Request, Response
from kroute.inspect.agent_socket import SHARED, STATUS, Answer
from kroute.model.addresses import LOOPBACK
from kroute.model.plan import Problem
from kroute.runtime.on_demand import OnDemand
from kroute.settings import ListenAddress
from kroute.telemetry.agent_parts import AgentParts
from kroute.telemetry.events import EventRecorder
from kroute.telemetry.health import Health, answer_probe, probe_response
from kroute.telemetry.privileges import PrivilegeWatch
from kroute.telemetry.statistics import QUESTION

if TYPE_CHECKING:
    from kroute.telemetry.agent_status import AgentStatus
    from kroute.telemetry.metrics_port import MetricsPort

log = structlog.get_logger(__name__)

ADOPTION_LOOK = 1.0
"""Seconds between two looks whether the rules of network policies are written."""
SCRAPE_SECONDS = 30.0
"""Seconds that a scrape may take, to its last byte."""


class Observation:
    """Runs everything that the agent exposes. `answers` and `other_answers` are for the agent's socket."""

    def __init__(self, parts: AgentParts, recorder: EventRecorder) -> None:
        self._parts = parts
        self._recorder = recorder
        self._report = recorder.report_on_node
        self._health = Health(parts)
        self._status = OnDemand(self._load_status)
        self.other_answers = OnDemand(self._load_answers)
        self._port = OnDemand(self._load_port)
        self.answers: Mapping[str, Answer] = {
            STATUS: self._answer_status,
            SHARED: self._answer_shared,
            QUESTION: self._answer_statistics,
        }
        self._privileges = PrivilegeWatch(
            parts.statistics, self._report, self._privilege_back, parts.settings.resync_period
        )

    async def run(self) -> None:
        """Answer requests and write Events until cancelled."""
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "privileges": self._privileges.run,
            "start": self._announce_start,
        }
        settings = self._parts.settings
        for name, where, serve in (
            ("own", settings.own_bind_address, self._serve_own),
            ("healthz", settings.healthz_bind_address, self._serve_health),
            ("metrics", settings.metrics_bind_address, self._serve_metrics),
        ):
            if where is not None:
                parts[name] = partial(serve, where)
        if settings.refusals_logged_to is not None:
            parts["policy log"] = partial(self._log_refusals, settings.refusals_logged_to)
        async with asyncio.TaskGroup() as group:
            for name, part in parts.items():
                group.create_task(_harmless(name, part), name=name)

    async def _serve_health(self, where: ListenAddress) -> None:
        await self._parts.ownership.is_ours.wait()  # until then the port is the other proxy's
        answer = partial(answer_probe, self._health)
        await server.serve("healthz", where, answer, self._report, held=self._parts.ownership.held_ports)

    async def _serve_metrics(self, where: ListenAddress) -> None:
        answer = partial(self._answer_request, only_loopback=where.host.startswith(LOOPBACK))
        await self._parts.ownership.is_ours.wait()
        held = self._parts.ownership.held_ports
        await server.serve("metrics", where, answer, self._report, seconds=SCRAPE_SECONDS, held=held)

    async def _serve_own(self, where: ListenAddress) -> None:
        """Answer probes without loading what the metrics need."""

        async def answer(request: Request) -> Response:
            if request.method in {"GET", "HEAD"} and (probe := probe_response(self._health, request.path)) is not None:
                return probe
            return await self._answer_request(request, only_loopback=where.host.startswith(LOOPBACK))

        await server.serve("own", where, answer, self._report, seconds=SCRAPE_SECONDS)

    async def _log_refusals(self, group: int) -> None:
        """Log what network policies refuse, once the firewall has its rules."""
        from kroute.kernel.packet_log import PacketLog  # noqa: PLC0415  few nodes have it
        from kroute.telemetry.policy_log import PolicyLog  # noqa: PLC0415  as above

        policies, controller = self._parts.policies, self._parts.controllers.optional.network_policy
        if policies is None or policies.refusals is None or controller is None:
            return
        while not controller.has_adopted:  # noqa: ASYNC110  it has no event for that
            await asyncio.sleep(ADOPTION_LOOK)
        await PolicyLog(policies, policies.refusals, partial(PacketLog, group)).run()

    async def _answer_request(self, request: Request, *, only_loopback: bool) -> Response:
        return await (await self.metrics_port()).answer(request, only_loopback=only_loopback)

    async def metrics_port(self) -> "MetricsPort":
        """What the metrics port shows."""
        await self._status.get()
        return await self._port.get()

    async def _answer_status(self, about: str) -> bytes:
        return await (await self._status.get()).answer(about)

    async def _answer_shared(self, about: str) -> bytes:
        return await (await self._status.get()).answer_shared(about)

    async def _answer_statistics(self, _about: str) -> bytes:
        return msgspec.json.encode(self._parts.statistics())

    def _load_status(self) -> "Callable[[], AgentStatus]":
        from kroute.telemetry.agent_status import AgentStatus  # noqa: PLC0415  6 modules, on demand

        return lambda: AgentStatus(self._parts)

    def _load_answers(self) -> Callable[[], Mapping[str, Answer]]:
        from kroute.telemetry.answers import answers_of  # noqa: PLC0415  6 modules, on demand

        return lambda: answers_of(self._parts)

    def _load_port(self) -> "Callable[[], MetricsPort]":
        from kroute.telemetry.metrics_port import MetricsPort  # noqa: PLC0415  10 modules, on demand

        status = cast("AgentStatus", self._status.made)
        return lambda: MetricsPort(self._parts, self._health, status, self.answers)

    def _privilege_back(self, problem: Problem) -> None:
        self._recorder.take_back_on_node(problem, "PrivilegeRestored", f"kroute has it again: {problem.subject}.")

    async def _announce_start(self) -> None:
        controllers = self._parts.controllers
        await controllers.live()
        services = len(self._parts.broadcaster.services)
        self._recorder.announce("Started", f"kroute {__version__} serves {services} Services on this node.")
        if controllers.taken_over:
            log.info("predecessor.adopted", virtual_servers=controllers.taken_over)
            self._recorder.announce(
                "TookOver",
                f"{controllers.taken_over} virtual servers that another proxy had made were adopted in place: "
                "their connections go on.",
            )


async def _harmless(name: str, part: Callable[[], Awaitable[None]]) -> None:
    """Run a part. If it fails, the failure is logged and nothing else ends."""
    try:
        await retry_when_exhausted(name, part)
    except Exception:
        log.exception("observation.failed", part=name, consequence="kroute serves without it")
