"""Create a director's parts and run them: watchers, catalog, probes, election, and the kernel's clients.

As in the agent, everything runs in one event loop, changes go into the catalog as they arrive, and one task plans.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from functools import partial

import msgspec
import structlog
from msgspec.structs import replace

from kroute import __version__
from kroute.checks import preflight
from kroute.director.catalog import KINDS, DirectorCatalog
from kroute.director.direct_routing import DirectRouting
from kroute.director.election import Election
from kroute.director.lease import DirectorIdentity, LeaseLock, LeaseRole
from kroute.director.probes import NodeProbes
from kroute.director.settings import DirectorSettings
from kroute.inspect import agent_socket, snapshot, support
from kroute.inspect import status as inspected
from kroute.inspect.director_status import director_status
from kroute.inspect.figures import read_figures
from kroute.inspect.status import Source
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.net.announcements import Announcer
from kroute.kernel.node_kernel import NodeKernel, open_kernel
from kroute.model.document import encode
from kroute.model.kinds import SERVICES, WatchedKind
from kroute.model.node_facts import NO_API, ApiFacts, NodeFacts, NodeInterfaces, node_facts
from kroute.model.objects import Change
from kroute.reconcile.batches import in_turns
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.controller import Shared
from kroute.reconcile.ledger import Ledger
from kroute.runtime.namespace_lock import LockRole
from kroute.runtime.runner import begun, run_claimed, stop_signal
from kroute.runtime.source import ObjectSource
from kroute.runtime.state_dir import StateDirectory
from kroute.settings import Settings
from kroute.settings.text import without_user
from kroute.telemetry.events import EventRecorder
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.api_facts import ApiFactsWatcher
from kroute.watchers.kubernetes.watcher import KubernetesWatcher
from kroute.watchers.node import NodeWatcher, read_node_interfaces

log = structlog.get_logger(__name__)

WITHDRAW_WITHIN = 4.0
"""Seconds in which the VIPs must be given up after SIGTERM. If they are not, the kernel removes them when they
expire."""

PAUSES_FOR_VERDICTS = 4
"""After the planning for verdicts of probes, no other verdicts are planned for so many times as long as it took. So
nodes of a large Service that fail and recover all the time cost a fifth of the planning."""
LONGEST_PAUSE_FOR_VERDICTS = 1.0


class Director:
    """A director with these settings, of the cluster whose API server `api` asks.

    `interfaces` is what the machine's interfaces say at the start. Of the kernel it uses IPVS, the addresses, the
    sysctls and a monitor.
    """

    def __init__(
        self,
        settings: DirectorSettings,
        api: Api,
        identity: DirectorIdentity,
        interfaces: NodeInterfaces,
        ledger: Ledger,
        kernel: NodeKernel,
    ) -> None:
        common = settings.common
        self._settings = settings
        self._api = api
        self._source = ObjectSource(
            lambda sink: KubernetesWatcher(api, sink, kinds=watched(settings.selector)).run(),
            api,
            follow_api=lambda notify: ApiFactsWatcher(api, notify).run(),
        )
        self._started = time.time()
        self._own_addresses = OwnAddresses(ledger)
        self._interfaces = self._own_addresses.without_vips(interfaces)
        self._api_facts = NO_API
        self._catalog = DirectorCatalog(common, machine_facts(common, self._interfaces))
        self._node_watcher = NodeWatcher(common.dummy_interface, self._take_interfaces)
        self._broadcaster = Broadcaster()
        self._recorder = EventRecorder(common.node_name, self._catalog.uid_of, api.when_up)
        self._changed = asyncio.Event()
        self._probes = NodeProbes(settings.probes, self._changed.set)
        self._monitor = kernel.monitor(only_interface=settings.vip_interface, routes=False)
        self._routing = DirectRouting(
            Shared(common, self._broadcaster, self._recorder.report),
            settings,
            kernel,
            ledger,
            self._monitor,
            Announcer(),
        )
        lease = settings.lease
        self._election = Election(
            LeaseLock(api, lease.namespace, lease.name),
            str(identity),
            lease,
            lambda role: self._routing.lead(role is LeaseRole.ACTIVE),
            self._routing.live.is_set,
            new_identity=identity.renew,
            attempted=self._routing.confirm,
            sleep=api.presence.sleep,  # less if the API server comes back
        )

    async def run(self, stop: asyncio.Event, state_dir: StateDirectory) -> None:
        """Direct until `stop` is set, then give the VIPs and the Lease to the standby."""
        answers = {
            snapshot.QUESTION: self._shown,
            inspected.QUESTION: self._answer_status,
            support.PLANS: lambda _about: support.plans_answer(self._broadcaster.plans),
            support.RECENT: support.recent_answer,
        }
        async with AsyncExitStack() as stack:
            await begun(stop, "following the machine's addresses", lambda: stack.enter_async_context(self._monitor))
            answer = partial(agent_socket.serve, state_dir.path, answers)
            keep_socket = await begun(
                stop, "opening the director's socket", lambda: stack.enter_async_context(answer())
            )
            if keep_socket is None or stop.is_set():
                return
            async with asyncio.TaskGroup() as group:
                background = [
                    group.create_task(self._source.follow(self._take), name="follow"),
                    group.create_task(self._source.follow_api(self._take_api), name="api facts"),
                    group.create_task(self._node_watcher.run(), name="machine"),
                    group.create_task(self._plan(), name="plan"),
                    group.create_task(self._probes.run(), name="probes"),
                    group.create_task(self._recorder.run(), name="events"),
                    group.create_task(self._routing.vips.keep_alive(), name="lifetimes"),
                    group.create_task(self._report_ready(state_dir), name="ready"),
                    group.create_task(keep_socket(), name="socket"),
                    (electing := group.create_task(self._election.run(), name="election")),
                ]
                serving = group.create_task(self._routing.run(), name=DirectRouting.name)
                await stop.wait()
                log.info("kroute.stopping")
                electing.cancel()
                await asyncio.wait([electing])
                await self._hand_over()
                for task in background:
                    task.cancel()
                self._routing.stop()
                await asyncio.wait([serving], timeout=WITHDRAW_WITHIN)
                serving.cancel()

    async def _hand_over(self) -> None:
        """Give up the VIPs, then the Lease: no other director may take it while this one answers for the VIPs."""
        try:
            async with asyncio.timeout(WITHDRAW_WITHIN):
                await self._routing.withdraw()
        except TimeoutError:
            log.warning("vip.unreleased", consequence=f"the kernel drops them within {self._settings.lease.duration} s")
        await self._election.release()

    def _take(self, changes: Sequence[Change]) -> None:
        self._catalog.take(changes)
        self._changed.set()

    def _take_interfaces(self, interfaces: NodeInterfaces) -> None:
        self._source.keep_to(interfaces.own)
        self._interfaces = self._own_addresses.without_vips(interfaces)
        self._renew_machine()

    def _take_api(self, api: ApiFacts) -> None:
        self._api_facts = api
        self._renew_machine()

    def _renew_machine(self) -> None:
        self._catalog.set_machine(machine_facts(self._settings.common, self._interfaces, self._api_facts))
        self._changed.set()

    async def _plan(self) -> None:
        """Publish the plans that have changed. The first time, wait until each probe has had a result."""
        loop = asyncio.get_running_loop()
        published = False
        verdicts_from = loop.time()
        while True:
            await self._changed.wait()
            self._changed.clear()
            began, are_all_checked = loop.time(), self._probes.settled
            if began < verdicts_from:
                loop.call_at(verdicts_from, self._changed.set)
            elif (published or are_all_checked) and self._catalog.set_failing(self._probes.failing) and published:
                verdicts_from = math.inf
            plans = await in_turns(self._catalog.planning_marked())
            self._probes.want(self._catalog.take_asked())
            if verdicts_from == math.inf:
                took = loop.time() - began
                verdicts_from = loop.time() + min(PAUSES_FOR_VERDICTS * took, LONGEST_PAUSE_FOR_VERDICTS)
            if not published:
                if not (self._catalog.ready and are_all_checked and self._probes.settled):
                    continue
                plans = list(self._catalog.plans.values())
                log.info("plans.first_published", services=len(plans))
                published = True
            for plan in plans:
                self._recorder.report_all(plan)
            if plans or not self._routing.live.is_set():
                self._broadcaster.publish(plans)

    async def _report_ready(self, state_dir: StateDirectory) -> None:
        await self._routing.live.wait()
        await state_dir.mark_ready()
        log.info("kroute.ready", services=len(self._broadcaster.services))

    async def _shown(self, _about: str) -> bytes:
        async with Ipvs() as ipvs:  # a socket of its own: an answer does not wait for the controller's writes
            return encode(snapshot.of_agent(self._broadcaster.services.values(), await ipvs.read()))

    async def _answer_status(self, _about: str) -> bytes:
        is_away = self._api.presence.is_away or self._election.has_missed
        plans = list(self._broadcaster.services.values())
        async with Ipvs() as ipvs:  # as above
            kernel = await read_figures(plans, ipvs, with_traffic=False)
        status = director_status(
            kernel.total,
            node=self._settings.common.node_name,
            started=self._started,
            election=self._election.role.value,
            is_live=self._routing.live.is_set(),
            pending=max(int(self._changed.is_set()), *(queue.depth for queue in self._broadcaster.statistics())),
            plans=plans,
            work=self._routing.statistics(),
            failing=[f"{probe.kind} {probe.address} port {probe.port}" for probe in self._probes.failing],
            source=Source("api", connected=not is_away, server=without_user(self._api.server)),
        )
        return encode(status)


async def serve(settings: DirectorSettings) -> int:
    """Run a director until SIGTERM. Returns the exit code."""
    stop = stop_signal()
    missing = await begun(stop, "looking for what is missing", lambda: preflight.findings(preflight.DIRECTOR))
    if missing:
        for prerequisite in missing:
            log.error("prerequisite.missing", prerequisite=str(prerequisite))
        return 1
    return await run_claimed(stop, partial(_claim, settings), partial(_director, settings))


async def _claim(settings: DirectorSettings, stack: AsyncExitStack) -> StateDirectory:
    return stack.enter_context(StateDirectory.claim(settings.common.state_dir, LockRole.DIRECTOR))


async def _director(settings: DirectorSettings, state_dir: StateDirectory, stack: AsyncExitStack) -> Director:
    """A director. `stack` closes the kernel, the ledger and the API connection."""
    common = settings.common
    identity = DirectorIdentity.open(common.node_name, state_dir.path)
    api = await stack.enter_async_context(await Api.open(common))
    ledger = stack.enter_context(closing(Ledger.open(common.state_dir)))
    kernel = await stack.enter_async_context(open_kernel(common.proc_sys, only=("ipvs", "addresses")))
    director = Director(settings, api, identity, await read_node_interfaces(common.dummy_interface), ledger, kernel)
    log.info("kroute.starting", version=__version__, director=str(identity), interface=settings.vip_interface)
    log.info("api.configured", server=without_user(api.server))
    return director


def watched(selector: str) -> tuple[WatchedKind, ...]:
    """The kinds with `selector` applied.

    No API selector knows external IPs: planning leaves out Services without any.
    """
    labels = ",".join(filter(None, (SERVICES.label_selector, selector)))
    return tuple(replace(kind, label_selector=labels) if kind is SERVICES else kind for kind in KINDS)


def machine_facts(settings: Settings, interfaces: NodeInterfaces, api: ApiFacts = NO_API) -> NodeFacts:
    """The facts of a machine that is no node: nothing is local to it, and it directs both families."""
    facts = node_facts(settings, None, interfaces, api)
    return msgspec.structs.replace(facts, name="", ipv4=None, ipv6=None, node_port_addresses=())


class OwnAddresses:
    """Tells the machine's own addresses from the VIPs that a director has bound, which are on the same interface."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._vips: frozenset[str] = frozenset()

    def without_vips(self, interfaces: NodeInterfaces) -> NodeInterfaces:
        """The interfaces without the director's VIPs.

        The ledger names a VIP before it is bound and until it is gone. A reader of the addresses may learn of that
        later, so a VIP stays one until the interfaces have been seen without it.
        """
        bound = {address for _, address in self._ledger.addresses}
        self._vips = (self._vips & interfaces.own) | bound
        return interfaces._replace(own=interfaces.own - self._vips)
