"""What a running agent exposes: health, metrics, the status page, and Events about the node.

Nothing here changes what is served, and no failure here ends kroute.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

import structlog

from kroute import __version__, logs
from kroute.backoff import patiently
from kroute.broadcaster import Broadcaster
from kroute.controllers.node_controllers import NodeControllers
from kroute.http import listener
from kroute.inspect import shared_state
from kroute.inspect.agent_socket import Answer
from kroute.inspect.status import QUESTION
from kroute.kernel.errors import KernelError
from kroute.model.plan import Problem
from kroute.planning.catalog import Catalog
from kroute.settings import ListenAddress, Settings
from kroute.telemetry.answers.agent_status import AgentStatus
from kroute.telemetry.changes import ChangeObserver
from kroute.telemetry.events import EventRecorder
from kroute.telemetry.health import Health
from kroute.telemetry.health_server import HealthServer
from kroute.telemetry.kernel_reader import KernelReader, KernelSummary
from kroute.telemetry.metrics import families as metrics
from kroute.telemetry.metrics.plan_survey import survey
from kroute.telemetry.metrics.process import process_figures
from kroute.telemetry.metrics.scrape import Scrape
from kroute.telemetry.metrics_server import MetricsServer
from kroute.telemetry.page.content import StatusPage
from kroute.telemetry.privileges import PrivilegeWatch
from kroute.telemetry.statistics import Statistics

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
        self._page = StatusPage(
            catalog, broadcaster, controllers.statistics, self._health, self._kernel, logs.RECENT, self._agent.status
        )
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
        only_loopback = where.host.startswith(LOOPBACK)
        server = MetricsServer(
            self._metrics, self._page, self._health, self._settings, self.answers, only_loopback=only_loopback
        )
        await listener.serve("metrics", where, server.answer, self._report, seconds=SCRAPE_SECONDS)

    def _metrics(self) -> AsyncIterator[bytes]:
        return metrics.write(self._scrape)

    async def _scrape(self) -> Scrape:
        return Scrape(
            statistics=self._statistics(),
            plans=await survey(self._broadcaster.plans, self._settings.metrics_services),
            passes=self._controllers.passes(),
            health=self._health,
            changes=self._changes,
            process=process_figures(),
            kernel=await self._read_kernel(),
            firewall=self._settings.firewall,
            sets=self._controllers.set_fills(),
        )

    async def _read_kernel(self) -> KernelSummary | None:
        try:
            return await self._kernel.summary()
        except KernelError as error:
            log.warning("metrics.incomplete", error=str(error), consequence="this scrape says nothing of the kernel")
            return None

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
