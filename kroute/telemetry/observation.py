"""What a running agent exposes: health, metrics, the status page, and Events about the node.

Nothing here changes what is served, and no failure here ends kroute.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import structlog

from kroute import __version__
from kroute.backoff import patiently
from kroute.broadcaster import Broadcaster
from kroute.controllers.node_controllers import NodeControllers
from kroute.http import listener
from kroute.http.messages import Request, Response
from kroute.inspect import shared_state
from kroute.inspect.agent_socket import Answer
from kroute.inspect.status import QUESTION
from kroute.model.plan import Problem
from kroute.planning.catalog import Catalog
from kroute.settings import ListenAddress, Settings
from kroute.telemetry.answers.agent_status import AgentStatus
from kroute.telemetry.changes import ChangeObserver
from kroute.telemetry.events import EventRecorder
from kroute.telemetry.health import Health
from kroute.telemetry.health_server import HealthServer
from kroute.telemetry.kernel_reader import KernelReader
from kroute.telemetry.privileges import PrivilegeWatch
from kroute.telemetry.statistics import Statistics

if TYPE_CHECKING:
    from kroute.telemetry.metrics_port import MetricsPort

log = structlog.get_logger(__name__)

LOOPBACK = ("127.", "::1")
SCRAPE_SECONDS = 30.0
"""Seconds that a scrape may take, to its last byte."""


class Observation:
    """Runs everything that the agent exposes.

    `changes` follows changes; `statistics` gives the agent's current counts. `answers` are for the agent's socket.
    """

    def __init__(
        self,
        settings: Settings,
        broadcaster: Broadcaster,
        controllers: NodeControllers,
        recorder: EventRecorder,
        changes: ChangeObserver,
        statistics: Callable[[], Statistics],
        catalog: Catalog,
        faults: Callable[[], list[str]] = list,
    ) -> None:
        self._changes = changes
        self._statistics = statistics
        self._settings = settings
        self._broadcaster = broadcaster
        self._controllers = controllers
        self._recorder = recorder
        self._report = recorder.report_on_node
        self._health = Health(controllers, changes.ineligible)
        self._kernel = KernelReader(lambda: list(broadcaster.services.values()), settings.metrics_services)
        self._agent = AgentStatus(
            settings, catalog, broadcaster, controllers, changes, self._kernel, statistics, faults=faults
        )
        self._catalog = catalog
        self._loading = asyncio.Lock()
        self._metrics_port: MetricsPort | None = None
        self.answers: Mapping[str, Answer] = {
            QUESTION: self._agent.answer,
            shared_state.QUESTION: self._agent.answer_shared,
        }
        self._privileges = PrivilegeWatch(statistics, self._report, self._privilege_back, settings.resync_period)

    async def run(self) -> None:
        """Answer requests and write Events until cancelled."""
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "privileges": self._privileges.run,
            "start": self._announce_start,
        }
        if self._settings.healthz_bind_address is not None:
            parts["healthz"] = partial(self._serve_health, self._settings.healthz_bind_address)
        if self._settings.metrics_bind_address is not None:
            parts["metrics"] = partial(self._serve_metrics, self._settings.metrics_bind_address)
        async with asyncio.TaskGroup() as group:
            for name, part in parts.items():
                group.create_task(_harmless(name, part), name=name)

    async def _serve_health(self, where: ListenAddress) -> None:
        await listener.serve("healthz", where, HealthServer(self._health).answer, self._report)

    async def _serve_metrics(self, where: ListenAddress) -> None:
        async def answer(request: Request) -> Response:
            return await (await self.metrics_port()).server.answer(request)

        await listener.serve("metrics", where, answer, self._report, seconds=SCRAPE_SECONDS)

    async def metrics_port(self) -> "MetricsPort":
        """What the metrics port shows. The first call loads it, in a thread.

        While one thread fails to load a module, another would see half of it; so callers take turns.
        """
        async with self._loading:
            if self._metrics_port is None:
                where = self._settings.metrics_bind_address
                self._metrics_port = (await asyncio.to_thread(_metrics_port))(
                    self._settings,
                    self._catalog,
                    self._broadcaster,
                    self._controllers,
                    changes=self._changes,
                    statistics=self._statistics,
                    health=self._health,
                    kernel=self._kernel,
                    status=self._agent,
                    answers=self.answers,
                    only_loopback=where is not None and where.host.startswith(LOOPBACK),
                )
        return self._metrics_port

    def _privilege_back(self, problem: Problem) -> None:
        self._recorder.take_back_on_node(problem, "PrivilegeRestored", f"kroute has it again: {problem.subject}.")

    async def _announce_start(self) -> None:
        await self._controllers.live()
        services = len(self._broadcaster.services)
        self._recorder.announce("Started", f"kroute {__version__} serves {services} Services on this node.")
        if self._controllers.taken_over:
            log.info("predecessor.adopted", virtual_servers=self._controllers.taken_over)
            self._recorder.announce(
                "TookOver",
                f"{self._controllers.taken_over} virtual servers that another proxy had made were adopted in place: "
                "their connections go on.",
            )


async def _harmless(name: str, part: Callable[[], Awaitable[None]]) -> None:
    """Run a part. If it fails, the failure is logged and nothing else ends."""
    try:
        await patiently(name, part)
    except Exception:
        log.exception("observation.failed", part=name, consequence="kroute serves without it")


def _metrics_port() -> "type[MetricsPort]":
    from kroute.telemetry.metrics_port import MetricsPort  # noqa: PLC0415  15 modules, for who is asked for metrics

    return MetricsPort
