"""A dry run: what the controllers would change on this node now. They are the agent's own, on a recording kernel.

So the differences, their order, adoption and ownership are exactly those of the agent. The ledger is a copy. Ports for
health checks are not opened, and UDP flows are not compared.
"""

import shutil
import tempfile
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec

from kroute.controllers.network_policy import Policies
from kroute.controllers.node_controllers import NodeControllers
from kroute.controllers.pod_routes import Connecting
from kroute.controllers.service_proxy.readiness import PATIENCE
from kroute.firewall.backend import firewall_of
from kroute.firewall.protocol import Firewall
from kroute.inspect.recording import EDIT, Recorder, recording
from kroute.kernel.cni import CniFile
from kroute.kernel.errors import KernelError
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.document import Document
from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, Plan, Problem
from kroute.planning.pod_routes import PodRouteCatalog
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.ledger import Ledger
from kroute.reconcile.pass_status import Report
from kroute.settings import Settings

_PASSES = 30
"""The most passes of each controller until all have nothing left to do. A handful is enough."""


class PlannedChange(msgspec.Struct, frozen=True, rename="camel"):
    """One change that the agent would make. `service` is empty if no Service asks for it (any more).

    `kind` is what would change (virtual server, real server, address, route, set entry, rules, sysctl ...). `action` is
    add, edit or delete. `what` is the sentence.
    """

    service: str
    kind: str
    action: str
    what: str


class PlannedChanges(Document):
    """What an agent would change on this node now.

    The changes are in the order in which the agent would make them; those of one kind and action are sorted.
    `problems` are the Services' problems, and what could not be compared.
    """

    kind: ClassVar[str] = "PlannedChangeList"

    changes: list[PlannedChange] = msgspec.field(name="items")
    problems: list[str]

    def names(self) -> list[str]:
        """The Services for which something would change, and the other things by their kind."""
        return [change.service or change.kind for change in self.changes]


class RecordingCni:
    """CNI's configuration, which is read, and of which only a write is recorded."""

    def __init__(self, client: CniFile, recorder: Recorder) -> None:
        self._recorder = recorder
        self.read, self.bridge_in_use = client.read, client.bridge_in_use

    def write(self, text: str) -> None:  # noqa: ARG002  the sentence has no room for it
        self._recorder.note("CNI", EDIT, "write the configuration of CNI")

    def remove(self) -> bool:
        return False


async def dry_run(
    settings: Settings,
    plans: Sequence[Plan],
    kernel: NodeKernel,
    policies: PolicyCatalog | None = None,
    pod_routes: PodRouteCatalog | None = None,
) -> PlannedChanges:
    """What an agent with these settings would write for these plans, which are all plans of the node.

    `policies` has all objects that NetworkPolicies need, where these are enforced, and `pod_routes` all Nodes, where
    kroute connects pods.

    Raises:
        KernelError: the kernel does not tell its state.
    """
    recorder = Recorder()
    problems: list[str] = []

    def report(key: ObjectKey, problem: Problem) -> None:
        problems.append(f"{key}: {problem.reason}: {problem.message}")

    with tempfile.TemporaryDirectory(prefix="kroute-plan-") as directory:
        _copy_ledger(settings.state_dir, Path(directory))
        on_copy = msgspec.structs.replace(settings, state_dir=Path(directory))
        cni = RecordingCni(CniFile(settings.cni_file), recorder)
        own = partial(report, ObjectKey("", settings.node_name))
        connecting = Connecting(pod_routes, cni, own, lambda _: None) if pod_routes is not None else None
        await _run(on_copy, plans, recording(kernel, recorder), report, policies, connecting)
    if policies is not None:
        for key, found in policies.problems.items():
            for problem in found:
                report(key, problem)
    if recorder.errors:
        raise KernelError(recorder.errors[0])
    for plan in plans:
        for problem in plan.problems:
            report(plan.key, problem)
    owners = _owners(plans, firewall_of(settings, kernel))
    changes = [
        PlannedChange(owners.get(change.subject, ""), change.kind, change.action, change.what)
        for change in recorder.changes
    ]
    return PlannedChanges(_in_order(changes), problems + recorder.unknown)


async def _run(
    settings: Settings,
    plans: Sequence[Plan],
    kernel: NodeKernel,
    report: Report,
    policies: PolicyCatalog | None,
    connecting: Connecting | None,
) -> None:
    """Reconcile these plans until the controllers have nothing left to do.

    Their clock moves only once: past the time after which controllers stop waiting for each other.
    """
    now = 0.0
    broadcaster = Broadcaster()
    given = Policies(policies, lambda *_: None) if policies is not None else None
    made = NodeControllers(settings, broadcaster, report, kernel, given, None, connecting, clock=lambda: now)
    async with made as controllers:
        broadcaster.publish(plans)
        for controller in controllers.kernel_writers:
            await controller.start()
        await _settle(controllers)
        if not controllers.is_live:
            now += PATIENCE + 1
            await _settle(controllers)


async def _settle(controllers: NodeControllers) -> None:
    for _ in range(_PASSES):
        for controller in controllers.kernel_writers:
            await controller.step()
        if not any(controller.wake.is_set() for controller in controllers.kernel_writers):
            return


def _copy_ledger(source: Path, target: Path) -> None:
    ledger = Ledger(source).path
    if ledger.exists():
        shutil.copy(ledger, Ledger(target).path)


def _owners(plans: Sequence[Plan], firewall: Firewall) -> dict[Hashable, str]:
    """The Services that ask for each subject of a change, by that subject."""
    owners: dict[Hashable, list[str]] = {}
    for plan in plans:
        entries = plan.set_entries
        subjects: list[Hashable] = [(firewall.set_name(entry.family, entry.set), entry.element) for entry in entries]
        if not isinstance(plan, NodePlan):
            subjects += [server.key for server in plan.virtual_servers]
            subjects += [*(vip.address for vip in plan.vips), *plan.direct_vips]
        for subject in subjects:
            owners.setdefault(subject, []).append(plan.service_name)
    return {subject: " ".join(names) for subject, names in owners.items()}


def _in_order(changes: Sequence[PlannedChange]) -> list[PlannedChange]:
    """Sort changes that have no order among themselves, so that two dry runs of one state are equal."""
    order: dict[tuple[str, str], int] = {}
    for change in changes:
        order.setdefault((change.kind, change.action), len(order))
    return sorted(changes, key=lambda change: (order[change.kind, change.action], change.service, change.what))
