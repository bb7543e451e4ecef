"""The controllers of a node, with the kernel clients and the ledger that they share."""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Self

from kroute.broadcaster import Broadcaster
from kroute.controllers.cleanup import cleanup, hand_over
from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.health_checks.controller import HealthChecks
from kroute.controllers.liveness import RESYNC_PERIODS, complaints
from kroute.controllers.masquerade.controller import Masquerade
from kroute.controllers.route_fix import RouteFix
from kroute.controllers.service_proxy.controller import ServiceProxy
from kroute.firewall.backend import firewall_of
from kroute.histogram import Histogram
from kroute.kernel.conntrack import Conntrack
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.xtables import Xtables
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.modules import kernel_version
from kroute.kernel.net.addresses import Addresses
from kroute.kernel.net.links import Links
from kroute.kernel.net.monitor import Monitor
from kroute.kernel.net.routes import Routes
from kroute.kernel.netlink.client import NetlinkClient, NetlinkStatistics
from kroute.kernel.sysctl import Sysctls
from kroute.model.addresses import Family
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.controller import Controller
from kroute.reconcile.ledger import Ledger
from kroute.reconcile.pass_status import ControllerStatistics, Report
from kroute.reconcile.stage_gate import StageGate
from kroute.settings import Settings


class NodeControllers:
    """An async context manager, in which the controllers either `run` or are asked to `cleanup`.

    Making one reads the ledger (LedgerError); entering raises KernelError when the kernel cannot be spoken to.
    """

    def __init__(self, settings: Settings, broadcaster: Broadcaster, report: Report) -> None:
        self.stage_gate = gate = StageGate()
        self._broadcaster = broadcaster
        self._patience = RESYNC_PERIODS * settings.resync_period
        self._ledger = Ledger.open(settings.state_dir)
        links, ipvs, addresses, routes, ipset, conntrack = Links(), Ipvs(), Addresses(), Routes(), Ipset(), Conntrack()
        self._sockets: dict[str, NetlinkClient] = {
            "links": links,
            "ipvs": ipvs,
            "addresses": addresses,
            "routes": routes,
            "ipset": ipset,
            "conntrack": conntrack,
        }
        xtables = {family: Xtables(family.number) for family in Family}
        monitors = (
            Monitor(only_interface=settings.dummy_interface, routes=False),
            Monitor(only_interface=settings.dummy_interface, other_addresses=True),
        )
        self._clients: tuple[AbstractAsyncContextManager[object], ...] = (
            *self._sockets.values(),
            *xtables.values(),
            *monitors,
        )
        self._interface = DummyInterface(settings.dummy_interface, links, self._ledger)
        self._service_proxy = ServiceProxy(
            settings,
            broadcaster.subscribe(ServiceProxy.name),
            gate,
            interface=self._interface,
            ledger=self._ledger,
            ipvs=ipvs,
            addresses=addresses,
            conntrack=conntrack,
            sysctls=Sysctls(settings.proc_sys),
            kernel_version=kernel_version(),
            monitor=monitors[0],
            report=report,
        )
        self._route_fix = RouteFix(
            settings,
            broadcaster.subscribe(RouteFix.name),
            gate,
            interface=self._interface,
            routes=routes,
            monitor=monitors[1],
        )
        self._masquerade = Masquerade(
            settings, broadcaster.subscribe(Masquerade.name), gate, firewall=firewall_of(settings, ipset, xtables)
        )
        self._health_checks = HealthChecks(
            settings,
            broadcaster.subscribe(HealthChecks.name),
            report=report,
            healthy=lambda: self.is_live and not self.complaints(),
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self._ledger.close)
            for client in self._clients:
                await stack.enter_async_context(client)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    async def run(self) -> None:
        """Keep the kernel as the plans say, until `stop`."""
        async with asyncio.TaskGroup() as group:
            for controller in self._all:
                group.create_task(controller.run(), name=controller.name)

    def stop(self) -> None:
        """Let `run` return when the batches in hand are written."""
        for controller in self._all:
            controller.stop()

    async def live(self) -> None:
        """Return once every Service of the first full list is served, or has been waited for long enough."""
        await self._service_proxy.live.wait()

    @property
    def is_live(self) -> bool:
        """Whether `live` would return at once."""
        return self._service_proxy.live.is_set()

    @property
    def taken_over(self) -> int:
        """How many virtual servers were there already at the start, without a ledger that names them."""
        return self._ledger.taken_over

    def complaints(self) -> list[str]:
        """Why this node is not healthy, one sentence each; empty while the controllers do their work."""
        return complaints(self._broadcaster.statistics(), self.statistics(), self._patience)

    def statistics(self) -> dict[str, ControllerStatistics]:
        """Each controller's counters, by its name."""
        return {controller.name: controller.statistics() for controller in self._all}

    def passes(self) -> dict[str, Histogram]:
        """How long each controller's passes have taken, by its name."""
        return {controller.name: controller.status.passes for controller in self._all}

    def sockets(self) -> dict[str, NetlinkStatistics]:
        """What each netlink socket has done, by what it speaks of."""
        return {name: client.statistics for name, client in self._sockets.items()}

    async def cleanup(self) -> CleanupReport:
        """Undo what earlier runs did on this node; not while `run` runs."""
        return await cleanup(self._service_proxy, self._route_fix, self._masquerade, self._interface, self._ledger)

    async def hand_over(self, *, keep_interface: bool) -> CleanupReport:
        """Undo what another proxy that serves has its own of; not while `run` runs."""
        return await hand_over(self._masquerade, self._interface, self._ledger, keep_interface=keep_interface)

    @property
    def _all(self) -> tuple[Controller, ...]:
        return self._service_proxy, self._route_fix, self._masquerade, self._health_checks
