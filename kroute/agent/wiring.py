"""Wire the parts of kroute together and run them: a source of changes, the catalog, the broadcaster, the controllers.

Everything runs in one event loop. Changes go into the catalog as they arrive. One task plans the Services that they
touch and publishes the plans, in slices so short that the event loop is never held for long. A change that arrives
while a slice is planned goes out with the next slice; nothing waits for a timer.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from kroute import __version__
from kroute.base.alarm import Alarm
from kroute.base.backoff import retry_when_exhausted
from kroute.checks import preflight
from kroute.checks.other_proxies import ProxyTraces
from kroute.checks.ownership import RIVAL_POLICIES, WAITING_LOOK, Ownership
from kroute.controllers.node_controllers import NodeControllers
from kroute.firewall.backend import Choice, node_clients, settled_on
from kroute.firewall.succession import remove_policies, replace_others
from kroute.inspect import agent_socket
from kroute.kernel.node_kernel import NodeKernel, open_kernel
from kroute.model.kinds import WatchedKind, watched
from kroute.model.node_facts import ApiFacts, NodeInterfaces, node_facts
from kroute.model.objects import Change
from kroute.model.plan import NodePlan, Plan, Problem
from kroute.planning.catalog import Catalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.runtime import memory
from kroute.runtime.memory import GcTuning
from kroute.runtime.runner import begun, run_claimed
from kroute.runtime.source import ObjectSource
from kroute.runtime.state_dir import AnotherKrouteError, StateDirectory
from kroute.settings import WAIT, Settings
from kroute.settings.text import without_user
from kroute.telemetry.agent_parts import AgentParts
from kroute.telemetry.changes import ChangeObserver
from kroute.telemetry.events import EventRecorder, log_node
from kroute.telemetry.loop_watch import LoopWatch
from kroute.telemetry.observation import Observation
from kroute.telemetry.statistics import NEWEST_QUESTION, NewestMeasurements, Statistics
from kroute.watchers import Sink
from kroute.watchers.kubernetes.requests import ApiUse
from kroute.watchers.node import NodeWatcher, read_node_interfaces

if TYPE_CHECKING:
    from kroute.agent.allocator import Allocator
    from kroute.controllers.announcing.controller import Speaking
    from kroute.controllers.network_policy import Policies
    from kroute.controllers.pod_routes import Connecting
    from kroute.inspect.policies import Enforced
    from kroute.migration.take_over import TakeOver
    from kroute.planning.policies.catalog import PolicyCatalog
    from kroute.watchers.kubernetes.watcher import FollowedCluster

log = structlog.get_logger(__name__)

STOP_WITHIN = 4.0
"""Seconds that the controllers have after SIGTERM to finish the current pass."""

SLICE = 64
"""Services that are planned before other tasks run: a few milliseconds."""

WORK = 4000
"""Virtual servers, real servers and set entries planned at most between two looks at the event loop."""


class Agent:
    """kroute on one node, which has these `interfaces` and this `kernel`. The caller keeps `kernel` open meanwhile.

    `firewall` is the backend that was chosen, which the settings name. `loop_watch` watches the event loop in which the
    agent runs.
    """

    def __init__(
        self,
        settings: Settings,
        interfaces: NodeInterfaces,
        kernel: NodeKernel,
        firewall: Choice,
        source: ObjectSource,
        loop_watch: LoopWatch,
    ) -> None:
        self._settings = settings
        self._kernel = kernel
        self._source = source
        self._loop_watch = loop_watch
        self._changes = ChangeObserver(settings.node_name)
        self._catalog = Catalog(settings, node_facts(settings, None, interfaces))
        self._broadcaster = Broadcaster()
        events = source.api.when_up if source.api is not None else None  # without it they are only logged
        self._recorder = EventRecorder(settings.node_name, self._catalog.uid_of, events)
        self._changed = asyncio.Event()
        self._gc_tuning = GcTuning()
        monitor = kernel.monitor(except_interface=settings.dummy_interface, routes=False)
        self._node_watcher = NodeWatcher(settings.dummy_interface, self._take_interfaces, monitor=monitor)
        policy_catalog = _policy_catalog(settings)
        plans = _optional_plans(settings, policy_catalog, self._recorder)
        self._controllers = NodeControllers(settings, self._broadcaster, self._recorder.report, kernel, *plans)
        self._controllers.stage_gate.follow(self._changes.passed)
        self._traces = ProxyTraces(kernel, settings)
        self._ownership = Ownership(
            settings,
            report=self._recorder.report_on_node,
            take_back=self._proxy_gone,
            api=source.api,
            traces=self._traces.read,
            enforcer=self._traces.enforcer,
        )
        self._allocator = _allocator(settings, source, self._catalog, self._recorder)
        self._observation = Observation(self._parts(firewall, policy_catalog), self._recorder)

    def _parts(self, firewall: Choice, policy_catalog: "PolicyCatalog | None") -> AgentParts:
        """What telemetry reads."""
        return AgentParts(
            settings=self._settings,
            firewall=firewall,
            catalog=self._catalog,
            broadcaster=self._broadcaster,
            controllers=self._controllers,
            changes=self._changes,
            statistics=self._statistics,
            ownership=self._ownership,
            faults=self._source.faults,
            allocator=self._allocator.view if self._allocator is not None else None,
            policies=_enforced(policy_catalog, self._controllers, self._settings),
        )

    async def run(self, stop: asyncio.Event, state_dir: StateDirectory) -> None:
        """Serve the node until `stop` is set. The kernel's state stays as it is then."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._gc_tuning)
            await stack.enter_async_context(self._traces)
            await begun(stop, "following the kernel", lambda: stack.enter_async_context(self._controllers))
            answers = {**self._observation.answers, NEWEST_QUESTION: self._measured}
            answer = partial(agent_socket.serve, state_dir.path, answers, self._observation.other_answers.get)
            keep_socket = await begun(stop, "opening the agent's socket", lambda: stack.enter_async_context(answer()))
            if keep_socket is None or stop.is_set():
                return
            allocator = self._allocator
            take = allocator.beside(self._take) if allocator is not None else self._take
            async with asyncio.TaskGroup() as group:
                background = [
                    group.create_task(self._source.follow(take), name="follow"),
                    group.create_task(self._source.follow_api(self._take_api), name="api facts"),
                    group.create_task(self._node_watcher.run(), name="node"),
                    group.create_task(self._plan(), name="plan"),
                    group.create_task(self._recorder.run(), name="events"),
                    group.create_task(self._report_ready(state_dir), name="ready"),
                    group.create_task(self._replace_other_firewalls(), name="other firewalls"),
                    group.create_task(self._observation.run(), name="observation"),
                    group.create_task(keep_socket(), name="socket"),
                ]
                if allocator is not None:
                    background.append(group.create_task(allocator.run(), name="allocator"))
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
        gone = "PolicyEnforcerGone" if problem.reason == RIVAL_POLICIES else "ServiceProxyGone"
        self._recorder.take_back_on_node(problem, gone, f"{problem.subject} has ended on this node.")

    def _take(self, changes: Sequence[Change]) -> None:
        self._changes.read(changes)
        self._catalog.take(changes)
        self._controllers.optional.take_changes(changes)
        self._changed.set()

    def _take_interfaces(self, interfaces: NodeInterfaces) -> None:
        self._source.keep_to(interfaces.own)
        self._catalog.set_interfaces(interfaces)
        self._changed.set()

    def _take_api(self, api: ApiFacts) -> None:
        log.info("api.known", servers=sorted(api.servers), service_ranges=api.service_ranges)
        self._catalog.set_api(api)
        self._changed.set()

    async def _plan(self) -> None:
        """Publish the plans of what has changed, one slice after the other."""
        alarm = Alarm(self._changed, time.monotonic)
        while True:
            if self._catalog.ready and (due := self._catalog.due_in()) is not None:
                alarm.set(time.monotonic() + due)
            await self._changed.wait()
            await self._broadcaster.gather()
            self._changed.clear()
            while self._catalog.ready and self._catalog.has_marked:
                plans = self._catalog.plan_marked(SLICE, WORK)
                self._publish(plans)
                self._gc_tuning.made(len(plans))
                if self._catalog.has_marked:
                    await asyncio.sleep(0)
            self._changes.planned()  # before more is read, which would count as read with the first of this

    def _publish(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            if isinstance(plan, NodePlan):
                log_node(plan.node)
            self._recorder.report_all(plan)
        is_first = not self._broadcaster.has_started
        if not is_first and self._ownership.waits_for is None:
            self._changes.published(plans)
        self._broadcaster.publish(plans, more=is_first and self._catalog.has_marked)
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
        settings, controllers = self._settings, self._controllers
        if controllers.optional.network_policy is None:
            await retry_when_exhausted("removing network policies", lambda: remove_policies(settings))
        await retry_when_exhausted(
            "replacing another firewall backend",
            lambda: replace_others(settings, controllers.masquerade, controllers.optional.network_policy),
        )
        if controllers.optional.announcing is None:
            await controllers.withdraw(report := CleanupReport())
            for failure in report.failed:
                log.warning("announcements.kept", error=failure, next_step="end BIRD, or see docs/routing.md")
        if controllers.optional.pod_routes is None and controllers.has_connected():
            await controllers.disconnect(report := CleanupReport())
            for failure in report.failed:
                log.warning("pod_routes.kept", error=failure, next_step="see docs/pod-network.md")

    def _statistics(self) -> Statistics:
        return Statistics(
            watches={kind: reflector.statistics for kind, reflector in self._source.reflectors.items()},
            queues=self._broadcaster.statistics(),
            controllers=self._controllers.statistics(),
            sockets=dict(self._kernel.sockets),
            loop=self._loop_watch.statistics,
            latency=self._changes.statistics(),
            api=self._source.api.use() if self._source.api is not None else ApiUse(),
        )

    async def _measured(self, _about: str) -> bytes:
        return msgspec.json.encode(NewestMeasurements(list(self._loop_watch.long_rounds), list(self._changes.newest)))


def _allocator(
    settings: Settings, source: ObjectSource, catalog: Catalog, recorder: EventRecorder
) -> "Allocator | None":
    """What gives Services addresses, if this agent may."""
    if source.api is None or not settings.allocate_load_balancer_ips:
        return None
    from kroute.agent.allocator import Allocator  # noqa: PLC0415  few clusters have it

    return Allocator(settings, source.api, catalog, recorder)


def _policy_catalog(settings: Settings) -> "PolicyCatalog | None":
    """What plans NetworkPolicies, if these are enforced."""
    if not settings.network_policies:
        return None
    from kroute.planning.policies.catalog import PolicyCatalog  # noqa: PLC0415  few nodes have it

    return PolicyCatalog(settings.node_name, all_pods=settings.policy_default_deny)


def _optional_plans(
    settings: Settings, policies: "PolicyCatalog | None", recorder: EventRecorder
) -> "tuple[Policies | None, Speaking | None, Connecting | None]":
    """What the controllers need that plan by themselves, of those that the settings ask for."""
    return _policies(policies, recorder), _speaking(settings, recorder), _connecting(settings, recorder)


def _policies(catalog: "PolicyCatalog | None", recorder: EventRecorder) -> "Policies | None":
    """What the controller of NetworkPolicies needs, if these are planned."""
    if catalog is None:
        return None
    from kroute.controllers.network_policy import Policies  # noqa: PLC0415  as above

    return Policies(catalog, recorder.report_policy)


def _speaking(settings: Settings, recorder: EventRecorder) -> "Speaking | None":
    """What the controller that announces addresses needs, if any are announced."""
    if not settings.announce:
        return None
    from kroute.controllers.announcing.controller import Speaking  # noqa: PLC0415  few nodes have it
    from kroute.kernel.bird import Bird  # noqa: PLC0415  as above
    from kroute.planning.bgp.catalog import SpeakerCatalog  # noqa: PLC0415
    from kroute.watchers.yaml_text import value_of  # noqa: PLC0415

    def take_back(problem: Problem) -> None:
        recorder.take_back_on_node(problem, "RoutingRestored", f"This is over: {problem.subject}.")

    bird = Bird(settings.bird_socket, settings.bird_configuration)
    return Speaking(SpeakerCatalog(settings, value_of), bird, recorder.report_on_node, take_back)


def _connecting(settings: Settings, recorder: EventRecorder) -> "Connecting | None":
    """What the controller that connects pods needs, if kroute does."""
    if not settings.pod_network:
        return None
    from kroute.controllers.pod_routes import Connecting  # noqa: PLC0415  few nodes have it
    from kroute.kernel.cni import CniFile  # noqa: PLC0415  as above
    from kroute.planning.pod_routes import PodRouteCatalog  # noqa: PLC0415

    def take_back(problem: Problem) -> None:
        recorder.take_back_on_node(problem, "PodNetworkRestored", f"This is over: {problem.subject}.")

    cni = CniFile(settings.cni_file)
    return Connecting(PodRouteCatalog(settings), cni, recorder.report_on_node, take_back)


def _enforced(catalog: "PolicyCatalog | None", controllers: NodeControllers, settings: Settings) -> "Enforced | None":
    """The NetworkPolicies for those who ask about them, if these are enforced."""
    policies = controllers.optional.network_policy
    if catalog is None or policies is None:
        return None
    from kroute.inspect.policies import Enforced  # noqa: PLC0415  as above

    refusals = None
    if settings.refusals_logged_to is not None:
        from kroute.inspect.refusals import Refusals  # noqa: PLC0415  as above

        refusals = Refusals(start=int(time.time() * 1000))  # an agent that is started later begins higher
    return Enforced(catalog, policies.firewall, policies.lag, refusals)


async def serve(
    settings: Settings, loop_watch: LoopWatch, stop: asyncio.Event, cluster: "FollowedCluster | None" = None
) -> int:
    """Run an agent until `stop` is set; returns the exit code. `loop_watch` watches the event loop in which this runs.

    `cluster` is followed already (`kroute.agent.start`). Without it the source that the settings name is opened here.
    """
    found = await begun(stop, "looking for what is missing", lambda: preflight.look_at_node(settings))
    if found is None:
        return 0
    choice, missing = found
    for prerequisite in missing:
        log.error("prerequisite.missing", prerequisite=str(prerequisite))
    if missing or choice is None:
        return 1
    settings = settled_on(settings, choice.name)
    clean_up = partial(_clean_up, settings) if settings.cleanup_on_exit else None
    return await run_claimed(
        stop, partial(_claimed, settings, choice), partial(_agent, settings, choice, loop_watch, cluster), clean_up
    )


async def _claimed(settings: Settings, choice: Choice, stack: AsyncExitStack) -> StateDirectory:
    """The state directory, as soon as no other kroute runs here.

    Raises AnotherKrouteError if other proxies are not waited for.
    """
    is_said = False
    while True:
        try:
            state_dir = stack.enter_context(StateDirectory.claim(settings.state_dir))
            break
        except AnotherKrouteError as error:
            if settings.other_proxies != WAIT:
                raise
            if not is_said:
                log.warning("kroute.waiting", proxy="kroute", why=str(error))
            is_said = True
        await asyncio.sleep(WAITING_LOOK)
    log.info("kroute.starting", version=__version__, node=settings.node_name, interface=settings.dummy_interface)
    log.info("firewall.chosen", backend=choice.name, why=choice.why)
    return state_dir


async def _clean_up(settings: Settings, state_dir: StateDirectory) -> bool:
    from kroute.migration import cleanup  # noqa: PLC0415  it loads what undoes a director, too

    return await cleanup.undo_and_log(settings, state_dir)


async def _agent(
    settings: Settings,
    choice: Choice,
    loop_watch: LoopWatch,
    cluster: "FollowedCluster | None",
    _state_dir: StateDirectory,
    stack: AsyncExitStack,
) -> Agent:
    """An agent that follows the source that the settings name. `stack` closes the kernel and what is opened here."""
    interfaces = await read_node_interfaces(settings.dummy_interface)
    kernel = await stack.enter_async_context(open_kernel(settings.proc_sys, only=node_clients(settings)))
    if settings.manifests is not None:
        source = _manifests(settings.manifests, watched(settings))
    else:
        source = await _cluster(settings, cluster, stack)
    return Agent(settings, interfaces, kernel, choice, source, loop_watch)


def _manifests(directory: Path, kinds: Iterable[WatchedKind]) -> ObjectSource:
    from kroute.watchers.manifests import ManifestWatcher  # noqa: PLC0415  not for an API server

    files: list[ManifestWatcher] = []

    async def follow(sink: Sink) -> None:
        files.append(ManifestWatcher(directory, sink, kinds))
        await files[0].run()

    return ObjectSource(follow, faults=lambda: [fault for watcher in files for fault in watcher.faults])


async def _cluster(settings: Settings, cluster: "FollowedCluster | None", stack: AsyncExitStack) -> ObjectSource:
    from kroute.watchers.kubernetes.api import Api  # noqa: PLC0415  not for manifests
    from kroute.watchers.kubernetes.api_facts import ApiFactsWatcher  # noqa: PLC0415
    from kroute.watchers.kubernetes.watcher import followed  # noqa: PLC0415

    if cluster is None:
        cluster = await stack.enter_async_context(followed(await Api.open(settings), watched(settings)))
    api = cluster.api
    log.info("api.configured", server=without_user(api.server))
    return ObjectSource(
        cluster.pass_on, api, cluster.watcher.reflectors, follow_api=lambda notify: ApiFactsWatcher(api, notify).run()
    )
