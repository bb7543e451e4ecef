"""The answer of a running agent to `kroute status`."""

from collections.abc import Callable

from kroute import __version__
from kroute.broadcaster import Broadcaster
from kroute.checks.ownership import Ownership
from kroute.controllers.node_controllers import NodeControllers
from kroute.inspect import shared_state, status_problems
from kroute.inspect.shared_state import SharedState
from kroute.inspect.status import WITH_DIGEST, Source, State, Status, rfc3339, served, with_problems
from kroute.kernel.errors import KernelError
from kroute.model.document import encode
from kroute.model.objects import EndpointSlice, Service
from kroute.planning.catalog import Catalog
from kroute.settings import Settings
from kroute.settings.text import without_user
from kroute.telemetry.changes import ChangeObserver
from kroute.telemetry.kernel_reader import KernelReader
from kroute.telemetry.metrics.process import process_figures
from kroute.telemetry.shared_answers import SharedAnswers
from kroute.telemetry.statistics import Statistics


class AgentStatus:
    """Collects the status of one agent.

    `statistics` gives its current counts, `faults` what of the source cannot be read.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        broadcaster: Broadcaster,
        controllers: NodeControllers,
        changes: ChangeObserver,
        kernel: KernelReader,
        statistics: Callable[[], Statistics],
        ownership: Ownership,
        *,
        faults: Callable[[], list[str]] = list,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._broadcaster = broadcaster
        self._controllers = controllers
        self._changes = changes
        self.kernel = kernel
        self._statistics = statistics
        self._ownership = ownership
        self._faults = faults
        self._shared: SharedAnswers[None, SharedState] = SharedAnswers(self._compare)

    async def answer(self, about: str) -> bytes:
        """The status in JSON, with the digest if `about` asks for it."""
        return encode(await self.status(with_digest=about == WITH_DIGEST))

    async def answer_shared(self, _about: str) -> bytes:
        """What every node should plan, in JSON."""
        return await shared_state.encoded(await self._shared.get(None))

    async def status(self, *, with_digest: bool = False) -> Status:
        """The status now. The kernel's counts may be some seconds old."""
        counted = self._statistics()
        pending = self._pending(counted)
        source = self._source(counted)
        services, unreadable, total = self._broadcaster.services.values(), "", None
        try:
            total = (await self.kernel.summary()).total
        except KernelError as error:
            unreadable = str(error)
        resynced = [each for each in counted.controllers.values() if each.last_resync]
        plans = self._broadcaster.plans
        found = Status(
            node=self._settings.node_name,
            state=self._state(),
            version=__version__,
            started=rfc3339(process_figures().started),
            firewall=self._settings.firewall,
            served=served(services, total),
            pending=pending,
            generation=max((plan.generation for plan in plans), default=0),
            last_resync=rfc3339(min((each.last_resync for each in resynced), default=0)),
            last_look=rfc3339(min((each.last_look for each in resynced), default=0)),
            source=source,
            shared=await self._digest() if with_digest else "",
        )
        denied = [kind for kind, watch in counted.watches.items() if watch.is_denied]
        return with_problems(
            found,
            [
                *status_problems.of_proxies(str(self._ownership.waits_for or ""), str(self._ownership.rival or "")),
                *status_problems.of_source(source, denied),
                *status_problems.of_manifests(self._faults()),
                *status_problems.of_work(self._complaints(), counted.controllers),
                *status_problems.of_kernel(found.served, unreadable, is_settled=found.is_settled),
                *status_problems.of_eligibility(self._changes.ineligible()),
                *status_problems.of_sets(self._controllers.set_fills()),
                *status_problems.of_plans(plans),
            ],
        )

    def _state(self) -> State:
        if self._ownership.waits_for is not None:
            return State.WAITING
        return State.READY if self._controllers.is_live else State.STARTING

    def _complaints(self) -> list[str]:
        return [] if self._ownership.waits_for is not None else self._controllers.complaints()

    def _pending(self, counted: Statistics) -> int:
        """How many Services have changes that are on their way. At least 1 while a change of the node is."""
        read = (self._changes.pending(kind) for kind in (Service, EndpointSlice))
        return max(
            int(self._catalog.has_marked), counted.latency.waiting, *read, *(queue.depth for queue in counted.queues)
        )

    def _source(self, counted: Statistics) -> Source:
        if self._settings.manifests is not None:
            return Source("manifests", self._catalog.ready)
        watches = counted.watches
        return Source(
            "api",
            connected=bool(watches) and not any(watch.is_away for watch in watches.values()),
            objects={kind: watch.objects for kind, watch in watches.items()},
            resource_versions={kind: watch.resource_version for kind, watch in watches.items()},
            server=without_user(counted.api_server),
        )

    async def _digest(self) -> str:
        return await shared_state.digest(await self._shared.get(None))

    async def _compare(self, _question: None) -> SharedState:
        """What every node should plan."""
        return await shared_state.shared_state(self._catalog, self._broadcaster.services)
