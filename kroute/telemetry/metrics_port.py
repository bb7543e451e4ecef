"""What the metrics port shows, made with the first request: an agent that nobody asks does not load any of it."""

from collections.abc import Callable, Mapping
from functools import partial

import structlog

from kroute import logs
from kroute.broadcaster import Broadcaster
from kroute.checks.ownership import Ownership
from kroute.controllers.node_controllers import NodeControllers
from kroute.inspect.agent_socket import Answer
from kroute.kernel.errors import KernelError
from kroute.planning.catalog import Catalog
from kroute.settings import Settings
from kroute.telemetry.answers.agent_status import AgentStatus
from kroute.telemetry.changes import ChangeObserver
from kroute.telemetry.health import Health
from kroute.telemetry.kernel_reader import KernelSummary
from kroute.telemetry.metrics import families
from kroute.telemetry.metrics.plan_survey import survey
from kroute.telemetry.metrics.process import process_figures
from kroute.telemetry.metrics.scrape import Scrape
from kroute.telemetry.metrics_server import MetricsServer
from kroute.telemetry.statistics import Statistics
from kroute.telemetry.status_page import StatusPage

log = structlog.get_logger(__name__)


class MetricsPort:
    """The page, the metrics and the server that shows both. The arguments are the parts of an agent."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        broadcaster: Broadcaster,
        controllers: NodeControllers,
        *,
        changes: ChangeObserver,
        statistics: Callable[[], Statistics],
        health: Health,
        status: AgentStatus,
        answers: Mapping[str, Answer],
        ownership: Ownership,
    ) -> None:
        self._settings = settings
        self._broadcaster = broadcaster
        self._controllers = controllers
        self._changes = changes
        self._statistics = statistics
        self._health = health
        self._ownership = ownership
        self._kernel = status.kernel
        self.page = StatusPage(
            catalog, broadcaster, controllers.statistics, health, status.kernel, logs.RECENT, status.status
        )
        self.server = MetricsServer(partial(families.write, self.scrape), self.page, health, settings, answers)

    async def scrape(self) -> Scrape:
        """The values of all metrics now."""
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
            ejections=self._controllers.ejections(),
            refuted_ejections=self._controllers.refuted_ejections(),
            waits_for=self._ownership.waits_for,
            rival=self._ownership.rival,
        )

    async def _read_kernel(self) -> KernelSummary | None:
        try:
            return await self._kernel.summary()
        except KernelError as error:
            log.warning("metrics.incomplete", error=str(error), consequence="this scrape says nothing of the kernel")
            return None
