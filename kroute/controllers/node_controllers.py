"""Makes all controllers of a node, and gives them what they share. They are made nowhere else.

The agent runs them. `kroute cleanup` calls their cleanup. `kroute plan` runs them on kernel clients that only record
writes, and the tests step them on fake ones.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import msgspec

from kroute.base.histogram import Histogram
from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.health_checks import HealthChecks
from kroute.controllers.live_addresses import LiveAddresses
from kroute.controllers.masquerade import Masquerade
from kroute.controllers.prepared_pods import PreparedPods
from kroute.controllers.route_fix import RouteFix
from kroute.controllers.service_proxy.controller import ServiceProxy
from kroute.firewall.backend import firewall_of, policies_of
from kroute.firewall.protocol import Removable
from kroute.firewall.sets import SetFill
from kroute.kernel.clients import EventSource
from kroute.kernel.net.links import TUNNELS
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.objects import Change
from kroute.model.plan import VirtualServerKey
from kroute.reconcile.broadcaster import Broadcaster, QueueStatistics
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.controller import Controller, Shared
from kroute.reconcile.ledger import Ledger
from kroute.reconcile.pass_status import ControllerStatistics, Report
from kroute.settings import Settings

if TYPE_CHECKING:
    from kroute.controllers.announcing.controller import Announcing, Speaking
    from kroute.controllers.direct_return import DirectReturn
    from kroute.controllers.network_policy import NetworkPolicyController, Policies
    from kroute.controllers.pod_routes import Connecting, PodRoutes


REPAIRS_APART = 60.0
"""Seconds between two repairs of one object that a rival service proxy changes back."""


RESYNC_PERIODS = 2
"""After how many resync periods of waiting, failing or one pass kroute is unhealthy (kubernetes,
pkg/proxy/healthcheck/proxy_health.go: an update may wait for two sync periods)."""


class OptionalControllers(msgspec.Struct):
    """Those that few nodes have."""

    direct_return: "DirectReturn | None" = None
    network_policy: "NetworkPolicyController | None" = None
    announcing: "Announcing | None" = None
    pod_routes: "PodRoutes | None" = None

    @property
    def all(self) -> list[Controller]:
        """Those that this node has."""
        every = (self.direct_return, self.network_policy, self.announcing, self.pod_routes)
        return [one for one in every if one is not None]

    def take_changes(self, changes: Iterable[Change]) -> None:
        """Pass on what the watchers saw to those that plan by themselves."""
        for one in (self.network_policy, self.announcing, self.pod_routes):
            if one is not None:
                one.take_changes(changes)


class NodeControllers:
    """An async context manager; inside it, call either `run` or a cleanup.

    The caller keeps `kernel` open meanwhile. The settings name the firewall backend (`kroute.firewall.backend`).
    `policies` has what plans NetworkPolicies, where these are enforced, and `speaking` what plans and reaches the BGP
    speaker, where addresses are announced. `connecting` has what plans routes to other nodes' pods, where kroute
    connects pods.
    `clock` returns seconds and never goes back. The constructor reads the ledger (LedgerError). Entering subscribes to
    the kernel's events (KernelError); leaving closes the ledger.
    """

    def __init__(
        self,
        settings: Settings,
        broadcaster: Broadcaster,
        report: Report,
        kernel: NodeKernel,
        policies: "Policies | None" = None,
        speaking: "Speaking | None" = None,
        connecting: "Connecting | None" = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        shared = Shared(settings, broadcaster, report, clock)
        self.stage_gate = shared.gate
        self.ledger = Ledger.open(settings.state_dir)
        self.interface = DummyInterface(settings.dummy_interface, kernel.links, self.ledger)
        self._broadcaster = broadcaster
        self._monitors: tuple[EventSource, ...] = (
            kernel.monitor(only_interface=settings.dummy_interface, routes=False),
            kernel.monitor(only_interface=settings.dummy_interface, other_addresses=True),
        )
        self.route_fix = RouteFix(shared, self.interface, kernel.routes, self._monitors[1])
        self.masquerade = Masquerade(shared, firewall_of(settings, kernel))
        self.health_checks = HealthChecks(shared, healthy=lambda: self.is_live and not self.complaints())
        self._kernel, shares = kernel, (PreparedPods(), addresses := LiveAddresses())
        self.optional = _optional(shared, kernel, shares, policies)
        if connecting is not None:
            from kroute.controllers.pod_routes import PodRoutes  # noqa: PLC0415  few nodes have it

            monitor = kernel.monitor(except_interface=settings.dummy_interface, routes=False)
            self._monitors = (*self._monitors, monitor)
            self.optional.pod_routes = PodRoutes(shared, connecting, kernel.pod_network, monitor)
        # The last to subscribe is the last to be woken: by then the others have said which stages need no write. Where
        # plans are there before `run`, as after a wait for the node, it is the first to run, which costs it a pass.
        # Only announcing comes after it, which announces what it has bound.
        self.service_proxy = ServiceProxy(shared, kernel, self.interface, self.ledger, self._monitors[0], *shares)
        if speaking is not None:
            from kroute.controllers.announcing.controller import Announcing  # noqa: PLC0415  few nodes have it

            self.optional.announcing = Announcing(shared, speaking, addresses, self.service_proxy.live)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self.ledger.close)
            for monitor in self._monitors:
                await stack.enter_async_context(monitor)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    @property
    def kernel_writers(self) -> tuple[Controller, ...]:
        """All controllers but the health checks, which listen on ports and write nothing to the kernel."""
        return self.service_proxy, self.route_fix, self.masquerade, *self.optional.all

    @property
    def _all(self) -> tuple[Controller, ...]:
        return *self.kernel_writers, self.health_checks

    async def run(self) -> None:
        """Run all controllers until `stop`."""
        async with asyncio.TaskGroup() as group:
            for controller in self._all:
                group.create_task(controller.run(), name=controller.name)

    def stop(self) -> None:
        """Make `run` return once the current passes are over."""
        for controller in self._all:
            controller.stop()

    def restrain(self, is_rival: bool) -> None:
        """Let all but the first repair of what others change wait, while a rival service proxy writes the same."""
        for controller in self.kernel_writers:
            controller.restrain(REPAIRS_APART if is_rival else 0.0)

    async def live(self) -> None:
        """Return once no Service waits to go live: each is live (`ServiceProxy`), or was waited for long enough."""
        await self.service_proxy.live.wait()

    @property
    def is_live(self) -> bool:
        """Whether `live` would return at once."""
        return self.service_proxy.live.is_set()

    @property
    def taken_over(self) -> int:
        """How many virtual servers were adopted at the start because no ledger existed."""
        return self.ledger.taken_over

    def complaints(self) -> list[str]:
        """Why this node is not healthy, one sentence each; empty if it is."""
        limit = RESYNC_PERIODS * self.service_proxy.settings.resync_period
        return complaints(self._broadcaster.statistics(), self.statistics(), limit)

    def statistics(self) -> dict[str, ControllerStatistics]:
        """Each controller's counters, by its name."""
        return {controller.name: controller.statistics() for controller in self._all}

    def passes(self) -> dict[str, Histogram]:
        """The durations of each controller's passes, by its name."""
        return {controller.name: controller.status.passes for controller in self._all}

    def set_fills(self) -> list[SetFill]:
        """How full each set of the firewall is."""
        return self.masquerade.set_fills()

    def ejections(self) -> int:
        """How many times a real server was ejected so far."""
        return self.service_proxy.weights.ejections.total

    def refuted_ejections(self) -> int:
        """How many times a real server that was to be ejected accepted a connection of this node's own."""
        return self.service_proxy.weights.ejections.refuted

    def ejected(self, keys: Collection[VirtualServerKey]) -> list[str]:
        """What there is to say of the ejected real servers of these virtual servers, one sentence each."""
        return self.service_proxy.weights.ejected(keys)

    async def cleanup(self, firewalls: Sequence[Removable]) -> CleanupReport:
        """Undo everything that earlier runs did on this node, in the order in which a Service is withdrawn.

        Only the ledger and kroute's names say what that is. `run` must not be running. `firewalls` are those of every
        backend that has left something.

        A step that fails is reported, and the others go on. The ledger is removed last, and only if nothing failed, so
        that another cleanup can finish the work. An object that no longer exists counts neither as undone nor as
        failed.

        Without a ledger and without any set of kroute's, kroute never ran here, and nothing is undone. A link with the
        name of the dummy interface is then another proxy's: kube-proxy's has the same name.
        """
        report = CleanupReport()
        await self.withdraw(report)
        await self.disconnect(report)
        if not self.ledger.exists and not firewalls:
            return report
        for controller in (self.service_proxy, self.route_fix):
            with report.step(controller.name):
                await controller.cleanup(report)
        await self._undo_what_no_proxy_shares(firewalls, report, keep_interface=False)
        return report

    async def hand_over(self, firewalls: Sequence[Removable], *, keep_interface: bool) -> CleanupReport:
        """Undo what another proxy, which serves by now, does not use.

        That is the announcements, the rules, the sets, and the link unless `keep_interface`. Virtual servers and
        sysctls stay; so do the link's addresses and routes if it stays. The rest is as with `cleanup`.
        """
        await self.withdraw(report := CleanupReport())
        await self._undo_what_no_proxy_shares(firewalls, report, keep_interface=keep_interface)
        return report

    async def withdraw(self, report: CleanupReport) -> None:
        """Have routers send clients elsewhere than to what an earlier run has announced."""
        settings = self.service_proxy.settings
        if settings.bird_configuration.exists():
            from kroute.controllers.announcing.controller import withdraw_all  # noqa: PLC0415  few nodes announce
            from kroute.kernel.bird import Bird  # noqa: PLC0415  as above

            bird = Bird(settings.bird_socket, settings.bird_configuration)
            await withdraw_all(bird, settings.withdraw_grace, report)

    def has_connected(self) -> bool:
        """Whether an earlier run seems to have connected pods. It costs little."""
        has_links = any(name.startswith(TUNNELS) for _, name in socket.if_nameindex())
        return has_links or self.service_proxy.settings.cni_file.exists()

    async def disconnect(self, report: CleanupReport) -> None:
        """Undo what an earlier run did to connect pods."""
        from kroute.controllers.pod_routes import disconnect  # noqa: PLC0415  few nodes have it
        from kroute.kernel.cni import CniFile  # noqa: PLC0415  as above

        await disconnect(self._kernel.pod_network, CniFile(self.service_proxy.settings.cni_file), report)

    async def _undo_what_no_proxy_shares(
        self, firewalls: Iterable[Removable], report: CleanupReport, *, keep_interface: bool
    ) -> None:
        """Direct return goes first, since its addresses are delivered by the rules."""
        from kroute.controllers.direct_return import undo_direct_return  # noqa: PLC0415  for a cleanup alone

        await undo_direct_return(self._kernel.tunnels, report)
        for firewall in firewalls:
            with report.step("firewall"):
                await firewall.remove(report)
        if not keep_interface:
            with report.step(f"link {self.interface.name}"):
                if await self.interface.delete():
                    report.add(f"delete link {self.interface.name}")
        if not report.failed:  # else the ledger may name objects that still exist
            with report.step("ledger"):
                if self.ledger.remove():
                    report.add(f"remove the ledger {self.ledger.path}")


def _optional(
    shared: Shared, kernel: NodeKernel, shares: tuple[PreparedPods, LiveAddresses], policies: "Policies | None"
) -> OptionalControllers:
    """The controllers that the settings ask for, of which each loads what it needs; announcing comes later."""
    optional, settings = OptionalControllers(), shared.settings
    if settings.direct_return:
        from kroute.controllers.direct_return import DirectReturn  # noqa: PLC0415  few nodes have it

        optional.direct_return = DirectReturn(shared, kernel.tunnels, *shares)
    if policies is not None:
        from kroute.controllers.network_policy import NetworkPolicyController  # noqa: PLC0415  as above

        firewall = policies_of(settings, kernel)
        optional.network_policy = NetworkPolicyController(shared, policies, firewall, kernel.conntrack)
    return optional


def complaints(
    queues: Iterable[QueueStatistics], controllers: Mapping[str, ControllerStatistics], limit: float
) -> list[str]:
    """One sentence for each queue that has waited, and each controller that has failed or been busy, for `limit` s.

    `/healthz` and the health check ports of Services answer with this. None of these rules depends on a single Service
    or on the API server. An object that the kernel refuses is tried again alone, and without an API server the data
    path stays as it is. A load balancer that removed the node for either would cause an outage.
    """
    found = [
        f"{queue.depth} plans wait for {queue.subscriber}, the oldest for {queue.lag:.0f} s"
        for queue in queues
        if queue.lag >= limit
    ]
    for name, controller in controllers.items():
        if controller.failing_for >= limit:
            found.append(f"{name} has failed for {controller.failing_for:.0f} s: {controller.last_error}")
        elif controller.busy_for >= limit:
            found.append(f"{name} has been at one pass for {controller.busy_for:.0f} s")
    return found
