"""Wire the parts of kroute together and run them: a source of changes, the catalog, the broadcaster, the controllers.

Everything runs in one event loop. Changes go into the catalog as they arrive. One task plans the Services that they
touch and publishes the plans, in slices so short that the event loop is never held for long. A change that arrives
while a slice is planned goes out with the next slice; nothing waits for a timer.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from kroute import __version__
from kroute.base.backoff import retry_when_exhausted
from kroute.checks import preflight
from kroute.checks.other_proxies import ProxyTraces
from kroute.checks.ownership import WAITING_LOOK, Ownership
from kroute.controllers.node_controllers import NodeControllers
from kroute.firewall.backend import Choice, node_clients, settled
from kroute.firewall.succession import replace_others
from kroute.inspect import agent_socket
from kroute.inspect.agent_socket import Answer
from kroute.kernel.node_kernel import NodeKernel, open_kernel
from kroute.model.kinds import watched
from kroute.model.node_facts import ApiFacts, NodeInterfaces, node_facts
from kroute.model.objects import Change
from kroute.model.plan import NodePlan, Plan, Problem
from kroute.planning.catalog import Catalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.runtime import memory
from kroute.runtime.memory import GcTuning
from kroute.runtime.on_demand import OnDemand
from kroute.runtime.runner import opened, unless
from kroute.runtime.state_dir import AnotherKrouteError, StateDirectory
from kroute.settings import WAIT, Settings
from kroute.settings.text import without_user
from kroute.telemetry import statistics
from kroute.telemetry.agent_parts import AgentParts
from kroute.telemetry.changes import ChangeObserver
from kroute.telemetry.events import EventRecorder, log_node
from kroute.telemetry.loop_watch import LoopWatch
from kroute.telemetry.observation import Observation
from kroute.telemetry.statistics import NewestMeasurements, Statistics, WatchStatistics, watch_statistics
from kroute.watchers import Sink
from kroute.watchers.kubernetes.requests import ApiUse
from kroute.watchers.kubernetes.server_presence import ApiWriter
from kroute.watchers.node import NodeWatcher, read_node_interfaces

if TYPE_CHECKING:
    from kroute.checks.cluster_proxies import Reader
    from kroute.migration.take_over import TakeOver
    from kroute.watchers.kubernetes.watcher import FollowedCluster

log = structlog.get_logger(__name__)

STOP_WITHIN = 4.0
"""Seconds that the controllers have after SIGTERM to finish the current pass."""

SLICE = 64
"""Services that are planned before other tasks run: a few milliseconds."""

WORK = 4000
"""Virtual servers, real servers and set entries planned at most between two looks at the event loop."""

Follow = Callable[[Sink], Coroutine[None, None, None]]
"""Passes every change of Services, EndpointSlices and the Node on to a sink, until cancelled."""

FollowApi = Callable[[Callable[[ApiFacts], None]], Coroutine[None, None, None]]
"""Passes on what the way to the API says whenever that changes, until cancelled."""


class Agent:
    """kroute on one node, which has these `interfaces` and this `kernel`. The caller keeps `kernel` open meanwhile.

    `firewall` is the backend that was chosen, which the settings name. `follow` delivers changes. `events` writes
    Events; None: they are only logged. `loop_watch` watches the event loop in which the agent runs. `watches` returns
    the counters of each watch, `api_use` those of the requests to the API server. `keep_to` takes the node's own
    addresses, whenever they change. `api` asks the cluster which other service proxies are meant for this node.
    `faults` says what of the source cannot be read.
    """

    def __init__(
        self,
        settings: Settings,
        interfaces: NodeInterfaces,
        kernel: NodeKernel,
        firewall: Choice,
        follow: Follow,
        events: ApiWriter | None = None,
        *,
        loop_watch: LoopWatch,
        watches: Callable[[], dict[str, WatchStatistics]] = dict,
        api_use: Callable[[], ApiUse] = ApiUse,
        follow_api: FollowApi | None = None,
        api: "Reader | None" = None,
        keep_to: Callable[[frozenset[str]], None] | None = None,
        faults: Callable[[], list[str]] = list,
    ) -> None:
        self._settings = settings
        self._kernel = kernel
        self._keep_to = keep_to
        self._follow = follow
        self._follow_api = follow_api
        self._watches = watches
        self._api_use = api_use
        self._loop_watch = loop_watch
        self._changes = ChangeObserver(settings.node_name)
        self._catalog = Catalog(settings, node_facts(settings, None, interfaces))
        self._broadcaster = Broadcaster()
        self._recorder = EventRecorder(settings.node_name, self._catalog.uid_of, events)
        self._changed = asyncio.Event()
        self._gc_tuning = GcTuning()
        monitor = kernel.monitor(except_interface=settings.dummy_interface, routes=False)
        self._node_watcher = NodeWatcher(settings.dummy_interface, self._take_interfaces, monitor=monitor)
        self._controllers = NodeControllers(settings, self._broadcaster, self._recorder.report, kernel)
        self._controllers.stage_gate.follow(self._changes.passed)
        self._traces = ProxyTraces(kernel, settings)
        self._ownership = Ownership(
            settings,
            report=self._recorder.report_on_node,
            take_back=self._proxy_gone,
            api=api,
            traces=self._traces.read,
        )
        parts = AgentParts(
            settings=settings,
            catalog=self._catalog,
            broadcaster=self._broadcaster,
            controllers=self._controllers,
            changes=self._changes,
            statistics=self._statistics,
            ownership=self._ownership,
            faults=faults,
        )
        self._observation = Observation(parts, self._recorder)
        self._answers = {**self._observation.answers, statistics.NEWEST_QUESTION: self._measured}
        self._other_answers = OnDemand(partial(self._load_answers, firewall))

    async def run(self, stop: asyncio.Event, state_dir: StateDirectory) -> None:
        """Serve the node until `stop` is set. The kernel's state stays as it is then."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._gc_tuning)
            await stack.enter_async_context(self._traces)
            await unless(
                stop, retry_when_exhausted("following the kernel", lambda: stack.enter_async_context(self._controllers))
            )
            answer = partial(agent_socket.serve, state_dir.path, self._answers, self._other_answers.get)
            opening = retry_when_exhausted("opening the agent's socket", lambda: stack.enter_async_context(answer()))
            keep_socket = await unless(stop, opening)
            if keep_socket is None or stop.is_set():
                return
            async with asyncio.TaskGroup() as group:
                background = [
                    group.create_task(self._follow(self._take), name="follow"),
                    group.create_task(self._node_watcher.run(), name="node"),
                    group.create_task(self._plan(), name="plan"),
                    group.create_task(self._recorder.run(), name="events"),
                    group.create_task(self._report_ready(state_dir), name="ready"),
                    group.create_task(self._replace_other_firewalls(), name="other firewalls"),
                    group.create_task(self._observation.run(), name="observation"),
                    group.create_task(keep_socket(), name="socket"),
                ]
                if self._follow_api is not None:
                    background.append(group.create_task(self._follow_api(self._take_api), name="api facts"))
                serving = group.create_task(self._serve(), name="controllers")
                await stop.wait()
                log.info("kroute.stopping")
                for task in background:
                    task.cancel()
                self._controllers.stop()
                await asyncio.wait([serving], timeout=STOP_WITHIN if self._ownership.is_ours.is_set() else 0)
                serving.cancel()

    async def _serve(self) -> None:
        """Run the controllers, once the node is kroute's. Until then nothing is written to the kernel."""
        ownership, ledger = self._ownership, self._controllers.ledger
        ended = await ownership.turn(
            has_served=ledger.exists,
            unfinished=ledger.take_overs,
            hindrance=lambda names: self._take_over(names).hindrance(),
        )
        if ended:
            await retry_when_exhausted("taking over", lambda: self._take_over(ended).adopt())
        ownership.is_ours.set()
        async with asyncio.TaskGroup() as group:
            others: list[asyncio.Task[None]] = []

            def remove(names: Collection[str]) -> None:
                others.append(group.create_task(self._remove_leftovers(names), name="leftovers"))

            others.append(group.create_task(ownership.follow_rivals(self._controllers.restrain, remove), name="rivals"))
            if ended:
                remove(ended)
            await self._controllers.run()
            for task in others:
                task.cancel()

    def _take_over(self, names: Collection[str]) -> "TakeOver":
        from kroute.migration.take_over import TakeOver  # noqa: PLC0415  few starts take a node over

        return TakeOver(self._settings, names, self._controllers.ledger)

    async def _remove_leftovers(self, names: Collection[str]) -> None:
        await self._controllers.live()
        take_over = self._take_over(names)
        await retry_when_exhausted("taking over", take_over.adopt)  # a rival's, that came later
        await take_over.remove()

    def _proxy_gone(self, problem: Problem) -> None:
        self._recorder.take_back_on_node(problem, "ServiceProxyGone", f"{problem.subject} has ended on this node.")

    def _take(self, changes: Sequence[Change]) -> None:
        self._changes.read(changes)
        self._catalog.take(changes)
        self._changed.set()

    def _take_interfaces(self, interfaces: NodeInterfaces) -> None:
        if self._keep_to is not None:
            self._keep_to(interfaces.own)
        self._catalog.set_interfaces(interfaces)
        self._changed.set()

    def _take_api(self, api: ApiFacts) -> None:
        log.info("api.known", servers=sorted(api.servers), service_ranges=api.service_ranges)
        self._catalog.set_api(api)
        self._changed.set()

    async def _plan(self) -> None:
        """Publish the plans of what has changed, one slice after the other."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._catalog.next_due() if self._catalog.ready else None):
                    await self._changed.wait()
            self._changed.clear()
            while self._catalog.ready and self._catalog.has_marked:
                plans = self._catalog.commit(SLICE, WORK)
                self._publish(plans)
                self._gc_tuning.made(len(plans))
                await asyncio.sleep(0)
            self._changes.planned()

    def _publish(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            if isinstance(plan, NodePlan):
                log_node(plan.node)
            elif plan.is_empty:
                self._recorder.forget(plan.key)
            self._recorder.report_all(plan)
        is_first = not self._broadcaster.has_started
        if not is_first and self._ownership.waits_for is None:
            self._changes.published(plans)
        self._broadcaster.publish(plans, more=self._catalog.has_marked)
        if is_first and self._broadcaster.has_started:
            log.info("plans.first_published", services=len(self._broadcaster.services))

    async def _report_ready(self, state_dir: StateDirectory) -> None:
        await self._controllers.live()
        self._gc_tuning.loaded()
        await state_dir.mark_ready()
        log.info("kroute.ready", services=len(self._broadcaster.services))
        memory.return_free_pages()

    async def _replace_other_firewalls(self) -> None:
        await self._controllers.live()
        await retry_when_exhausted(
            "replacing another firewall backend", lambda: replace_others(self._settings, self._controllers.masquerade)
        )

    def _statistics(self) -> Statistics:
        return statistics.statistics(
            self._watches(),
            self._broadcaster.statistics(),
            self._controllers.statistics(),
            dict(self._kernel.sockets),
            self._loop_watch.statistics(),
            self._changes.statistics(),
            self._api_use(),
        )

    def _load_answers(self, firewall: Choice) -> Callable[[], Mapping[str, Answer]]:
        from kroute.inspect.answers import Answers  # noqa: PLC0415  6 modules, on demand

        parts = self._settings, self._catalog, self._broadcaster, firewall, self._controllers
        return lambda: Answers(*parts).by_question

    async def _measured(self, _about: str) -> bytes:
        return msgspec.json.encode(NewestMeasurements(list(self._loop_watch.long_rounds), list(self._changes.newest)))


async def serve(
    settings: Settings, loop_watch: LoopWatch, stop: asyncio.Event, cluster: "FollowedCluster | None" = None
) -> int:
    """Run an agent until `stop` is set; returns the exit code. `loop_watch` watches the event loop in which this runs.

    `cluster` is followed already (`kroute.agent.start`). Without it the source that the settings name is opened here.
    """
    found = await unless(
        stop, retry_when_exhausted("looking for what is missing", lambda: preflight.look_at_node(settings))
    )
    if found is None:
        return 0
    choice, missing = found
    for prerequisite in missing:
        log.error("prerequisite.missing", prerequisite=str(prerequisite))
    if missing or choice is None:
        return 1
    settings = settled(settings, choice)
    async with AsyncExitStack() as claimed:
        state_dir = await unless(stop, retry_when_exhausted("locking", lambda: _claimed(settings, claimed)))
        if state_dir is None:
            return 0
        log.info("kroute.starting", version=__version__, node=settings.node_name, interface=settings.dummy_interface)
        log.info("firewall.chosen", backend=choice.name, why=choice.why)
        async with AsyncExitStack() as stack:
            make = partial(_agent, settings, choice, loop_watch, cluster)
            agent = await unless(stop, retry_when_exhausted("starting", lambda: opened(stack, make)))
            if agent is not None:
                await agent.run(stop, state_dir)
        cleaned = await _clean_up(settings, state_dir) if settings.cleanup_on_exit else True
    log.info("kroute.stopped")
    return 0 if cleaned else 1


async def _claimed(settings: Settings, stack: AsyncExitStack) -> StateDirectory:
    """The state directory, as soon as no other kroute runs here.

    Raises AnotherKrouteError if other proxies are not waited for.
    """
    is_said = False
    while True:
        try:
            return stack.enter_context(StateDirectory.claim(settings.state_dir))
        except AnotherKrouteError as error:
            if settings.other_proxies != WAIT:
                raise
            if not is_said:
                log.warning("kroute.waiting", proxy="kroute", why=str(error))
            is_said = True
        await asyncio.sleep(WAITING_LOOK)


async def _clean_up(settings: Settings, state_dir: StateDirectory) -> bool:
    from kroute.migration import cleanup  # noqa: PLC0415  it loads what undoes a director, too

    return await cleanup.undo_and_log(settings, state_dir)


async def _agent(
    settings: Settings,
    choice: Choice,
    loop_watch: LoopWatch,
    cluster: "FollowedCluster | None",
    stack: AsyncExitStack,
) -> Agent:
    """An agent that follows the source that the settings name. `stack` closes the kernel and what is opened here."""
    interfaces = await read_node_interfaces(settings.dummy_interface)
    kernel = await stack.enter_async_context(open_kernel(settings.proc_sys, only=node_clients(settings)))
    node = settings, interfaces, kernel, choice
    directory = settings.manifests
    if directory is not None:
        from kroute.watchers.manifests import ManifestWatcher  # noqa: PLC0415  not for an API server

        files: list[ManifestWatcher] = []

        async def read(sink: Sink) -> None:
            files.append(ManifestWatcher(directory, sink, watched(settings)))
            await files[0].run()

        return Agent(*node, read, loop_watch=loop_watch, faults=lambda: [it for one in files for it in one.faults])
    from kroute.watchers.kubernetes.api import Api  # noqa: PLC0415  not for manifests
    from kroute.watchers.kubernetes.api_facts import ApiFactsWatcher  # noqa: PLC0415
    from kroute.watchers.kubernetes.watcher import followed  # noqa: PLC0415

    if cluster is None:
        cluster = await stack.enter_async_context(followed(await Api.open(settings), watched(settings)))
    api, reflectors = cluster.api, cluster.watcher.reflectors
    log.info("api.configured", server=without_user(api.server))
    return Agent(
        *node,
        cluster.pass_on,
        api.when_up,
        loop_watch=loop_watch,
        watches=lambda: {kind: watch_statistics(reflector) for kind, reflector in reflectors.items()},
        api_use=api.use,
        follow_api=lambda notify: ApiFactsWatcher(api, notify).run(),
        api=api,
        keep_to=api.peers.keep_to,
    )
