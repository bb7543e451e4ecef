"""What the controllers would do to this node now: the same controllers, on kernel classes that only write it down.

There is thus one way of finding differences, and no other order, adoption or ownership than the agent's own. The
ledger is a copy; listeners of health checks are not opened, and UDP flows are not looked at.
"""

import shutil
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kroute.broadcaster import Broadcaster
from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.masquerade.controller import Masquerade
from kroute.controllers.route_fix import RouteFix
from kroute.controllers.service_proxy.bind_gate import PATIENCE
from kroute.controllers.service_proxy.controller import ServiceProxy
from kroute.firewall.backend import firewall_of
from kroute.firewall.protocol import Firewall
from kroute.inspect.dry_run.recording import (
    NoConntrack,
    Recorder,
    RecordingAddresses,
    RecordingIpvs,
    RecordingLinks,
    RecordingRoutes,
    RecordingSysctls,
)
from kroute.inspect.dry_run.recording_rules import RecordingIpset, RecordingXtables
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.xtables import Xtables
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.modules import kernel_version
from kroute.kernel.net.addresses import Addresses
from kroute.kernel.net.links import Links
from kroute.kernel.net.monitor import Monitor
from kroute.kernel.net.routes import Routes
from kroute.kernel.sysctl import Sysctls
from kroute.model.addresses import Family
from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, Plan, Problem
from kroute.reconcile.ledger import Ledger
from kroute.reconcile.pass_status import Report
from kroute.reconcile.stage_gate import StageGate
from kroute.settings import Settings

if TYPE_CHECKING:
    from kroute.reconcile.controller import Controller

_PASSES = 30
"""How often each controller may pass until all have come to rest; they need a handful."""


class PlannedChange(msgspec.Struct, frozen=True):
    """One change that the agent would make. `service` is empty for one that no Service asks for (any more).

    `kind` is what is changed (virtual server, real server, address, route, set entry, rules, sysctl ...), `action` add,
    edit or delete, `what` the sentence.
    """

    service: str
    kind: str
    action: str
    what: str


class Rehearsed(msgspec.Struct):
    """The changes in the order in which they would be made, alike ones sorted.

    `problems` are what is wrong with Services, or could not be found out.
    """

    changes: list[PlannedChange]
    problems: list[str]


class NodeReader:
    """The kernel classes that are read. An async context manager."""

    def __init__(self) -> None:
        self.links, self.ipvs, self.addresses, self.routes, self.ipset = Links(), Ipvs(), Addresses(), Routes(), Ipset()
        self.xtables: Mapping[Family, Xtables] = {family: Xtables(family.number) for family in Family}
        self.sysctls = Sysctls()
        self.kernel_version = kernel_version()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "NodeReader":
        clients: tuple[AbstractAsyncContextManager[object], ...]
        clients = (self.links, self.ipvs, self.addresses, self.routes, self.ipset, *self.xtables.values())
        async with AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(client)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()


async def rehearse(settings: Settings, plans: Sequence[Plan], node: NodeReader) -> Rehearsed:
    """What an agent with these settings would write for these plans, which are the full list.

    Raises:
        KernelError: the kernel does not tell what it has.
    """
    recorder = Recorder()
    problems: list[str] = []

    def report(key: ObjectKey, problem: Problem) -> None:
        problems.append(f"{key}: {problem.reason}: {problem.message}")

    with tempfile.TemporaryDirectory(prefix="kroute-plan-") as directory:
        _copy_ledger(settings.state_dir, Path(directory))
        stage = _Stage(msgspec.structs.replace(settings, state_dir=Path(directory)), node, recorder, report)
        await stage.play(plans)
    if recorder.errors:
        raise KernelError(recorder.errors[0])
    for plan in plans:
        for problem in plan.problems:
            report(plan.key, problem)
    owners = _owners(plans, stage.firewall)
    changes = [
        PlannedChange(owners.get(change.subject, ""), change.kind, change.action, change.what)
        for change in recorder.changes
    ]
    return Rehearsed(_in_order(changes), problems + recorder.unknown)


class _Stage:
    """The three controllers that write, on a clock that moves only when they are to lose their patience."""

    def __init__(self, settings: Settings, node: NodeReader, recorder: Recorder, report: Report) -> None:
        self._now = 0.0
        self._broadcaster = Broadcaster()
        self._ledger = Ledger.open(settings.state_dir)
        gate = StageGate()
        interface = DummyInterface(settings.dummy_interface, RecordingLinks(node.links, recorder), self._ledger)
        self._service_proxy = ServiceProxy(
            settings,
            self._broadcaster.subscribe(ServiceProxy.name),
            gate,
            interface=interface,
            ledger=self._ledger,
            ipvs=RecordingIpvs(node.ipvs, recorder),
            addresses=RecordingAddresses(node.addresses, recorder),
            conntrack=NoConntrack(),
            sysctls=RecordingSysctls(node.sysctls, recorder),
            kernel_version=node.kernel_version,
            monitor=Monitor(only_interface=settings.dummy_interface),  # never opened: nothing happens meanwhile
            report=report,
            clock=self._clock,
        )
        route_fix = RouteFix(
            settings,
            self._broadcaster.subscribe(RouteFix.name),
            gate,
            interface=interface,
            routes=RecordingRoutes(node.routes, recorder),
            monitor=Monitor(only_interface=settings.dummy_interface),
            clock=self._clock,
        )
        self.firewall = firewall_of(
            settings,
            RecordingIpset(node.ipset, recorder),
            {family: RecordingXtables(it, recorder, family.value) for family, it in node.xtables.items()},
        )
        masquerade = Masquerade(
            settings,
            self._broadcaster.subscribe(Masquerade.name),
            gate,
            firewall=self.firewall,
            clock=self._clock,
        )
        self._controllers: tuple[Controller, ...] = (self._service_proxy, route_fix, masquerade)

    async def play(self, plans: Sequence[Plan]) -> None:
        """Let the controllers take these plans in and write, until they have nothing left to do."""
        self._broadcaster.publish(plans)
        for controller in self._controllers:
            await controller.start()
        await self._settle()
        if not self._service_proxy.live.is_set():
            self._now += PATIENCE + 1
            await self._settle()
        self._ledger.close()

    async def _settle(self) -> None:
        for _ in range(_PASSES):
            for controller in self._controllers:
                await controller.step()
            if not any(controller.wake.is_set() for controller in self._controllers):
                return

    def _clock(self) -> float:
        return self._now


def _copy_ledger(source: Path, target: Path) -> None:
    ledger = Ledger(source).path
    if ledger.exists():
        shutil.copy(ledger, Ledger(target).path)


def _owners(plans: Sequence[Plan], firewall: Firewall) -> dict[Hashable, str]:
    """The Services that ask for the subject of a change, by that subject."""
    owners: dict[Hashable, list[str]] = {}
    for plan in plans:
        subjects: list[Hashable] = [(firewall.set_name(it.family, it.set), it.element) for it in plan.set_entries]
        if not isinstance(plan, NodePlan):
            subjects += [*(it.key for it in plan.virtual_servers), *(it.address for it in plan.vips)]
        for subject in subjects:
            owners.setdefault(subject, []).append(plan.service_name)
    return {subject: " ".join(names) for subject, names in owners.items()}


def _in_order(changes: Sequence[PlannedChange]) -> list[PlannedChange]:
    """What is written together comes in no order of its own; two plans of one state are to be equal."""
    order: dict[tuple[str, str], int] = {}
    for change in changes:
        order.setdefault((change.kind, change.action), len(order))
    return sorted(changes, key=lambda it: (order[it.kind, it.action], it.service, it.what))
