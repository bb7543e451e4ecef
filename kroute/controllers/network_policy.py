"""Writes what NetworkPolicies mean for the pods of this node.

This controller plans, too: `take_changes` keeps what the watchers saw, and each pass plans what is new and writes the
difference. After a failure the firewall is read, and what differs from the plan is written.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kroute.base.histogram import Histogram
from kroute.firewall.protocol import AllowedPeers, PolicyFirewall
from kroute.kernel.clients import ConntrackClient
from kroute.kernel.errors import KernelError
from kroute.model.addresses import network
from kroute.model.objects import Change, ObjectKey
from kroute.model.plan import NodePlan, Plan, Problem, ServicePlan
from kroute.model.plan import Protocol as PortProtocol
from kroute.model.policy_plan import Action, Extra, GroupChange, GroupKey, PodGroups, PolicyChange
from kroute.model.steps import Steps
from kroute.reconcile.controller import Controller, Shared
from kroute.reconcile.resync_schedule import LONGEST_PAUSE

if TYPE_CHECKING:
    from kroute.controllers.policy_cuts import PolicyCuts, Verdict

LAG_BOUNDS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
WORK = 2_000
"""Units of planning, of one or two microseconds, before other tasks run."""


class Catalog(Protocol):
    """What plans (`kroute.planning.policies.catalog.PolicyCatalog`)."""

    pods: dict[str, PodGroups]
    problems: dict[ObjectKey, tuple[Problem, ...]]

    @property
    def ready(self) -> bool: ...

    @property
    def has_marked(self) -> bool: ...

    def take(self, changes: Iterable[Change]) -> None: ...

    def plan_marked(self, work: int | None = None, *, differs: bool = True) -> PolicyChange | None: ...

    def groups(self) -> AllowedPeers: ...

    def addresses_of(self, key: GroupKey) -> Collection[str]: ...

    def judging(self, source: str, destination: str, protocol: PortProtocol | None, port: int) -> "Steps[Verdict]": ...

    def uid_of(self, key: ObjectKey) -> str: ...


class Policies(NamedTuple):
    """What plans, and what is called with a policy, its uid and all of its problems whenever these have changed."""

    catalog: Catalog
    report: Callable[[ObjectKey, str, Sequence[Problem]], None]


class NetworkPolicyController(Controller):
    """Owns what the firewall has of network policies. No plan of a Service concerns it, but the node's does."""

    name = "network_policy"
    first_period = 2 / 3
    longest_undisturbed = LONGEST_PAUSE
    _cuts: "PolicyCuts | None"

    def __init__(
        self, shared: Shared, policies: Policies, firewall: PolicyFirewall, conntrack: ConntrackClient
    ) -> None:
        super().__init__(shared)
        self._catalog, self._report = policies
        self.firewall = firewall
        self._reported: Mapping[ObjectKey, tuple[Problem, ...]] = {}
        self.lag = Histogram(LAG_BOUNDS)
        """The seconds from when the network of a new pod was ready until its rules were in the kernel."""
        self._ready: dict[ObjectKey, float] = {}
        self._own: Collection[str] = ()
        self._cuts = None
        if shared.settings.policy_cuts_connections:
            from kroute.controllers.policy_cuts import PolicyCuts  # noqa: PLC0415  few nodes have it

            self._cuts = PolicyCuts(self.status, conntrack, self._catalog.judging, firewall.change_cut)
        self._closed: Collection[str] = ()
        self._closed_before: Collection[str] = ()
        """The networks of which only known pods are open, and those that the firewall has."""

    @staticmethod
    def is_news(plan: Plan, before: Plan | None) -> bool:
        return isinstance(plan, NodePlan) and not (isinstance(before, NodePlan) and before.node == plan.node)

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Nothing: see `take_changes`."""

    def accept_node(self, plan: NodePlan) -> None:
        self._own = plan.node.own
        if self.settings.policy_default_deny:
            self._closed = tuple(_networks(plan.node.pod_cidrs))
        if self._closed != self._closed_before:
            self.resync_soon()

    def take_changes(self, changes: Iterable[Change]) -> None:
        """Take what the watchers saw; only Pods, Namespaces and NetworkPolicies count."""
        self._catalog.take(changes)
        if self._catalog.has_marked or not self.has_adopted:
            self.wake.set()

    def companions(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the passes: a resync at once when another program changes it."""
        return [*super().companions(), self.resync_when_told("following network policies", self.firewall.follow)]

    async def start(self) -> None:
        """Wait for the objects, too: until they are known, what an earlier run left is right."""
        await super().start()
        while not (self.is_stopping or self._catalog.ready):
            await self.take()  # else the node's plan would wait, which looks like a fault of the controller
            await self.wake.wait()

    async def look(self) -> bool:
        return not await self.firewall.is_untouched()

    async def read(self) -> Iterable[str]:
        """Compare the firewall with the whole plan, and write what differs.

        Nothing is read when the kernel says that all is as it was.
        """
        is_as_before = self._closed == self._closed_before
        if is_as_before and self.is_applied_state_known and await self.firewall.is_untouched():
            return []
        has_planned = self._catalog.has_marked
        while self._catalog.has_marked:
            await self._plan(differs=False)  # the comparison is with all that is planned
        extra = Extra(self._closed, self._cuts.answers if self._cuts is not None else None)
        try:
            drift = await self.firewall.restore(self._catalog.groups(), self._catalog.pods, extra)
        except KernelError as error:
            if has_planned:  # whatever it was: `write` does not know what was planned here
                raise KernelError(str(error)) from error
            raise
        self._closed_before = extra.closed
        self._observe_lag()
        if drift:
            self._suspect(address for address, groups in self._catalog.pods.items() if any(groups))
        self.status.wrote(len(drift))
        return drift if is_as_before else []

    def next_due(self) -> float | None:
        return self._cuts.next_due() if self._cuts is not None else None

    async def write(self) -> None:
        while self._catalog.has_marked:
            if (change := await self._plan()) is not None:
                self._suspect(self._concerned(change))
                await self.firewall.write(change)
                self._observe_lag()
                self.status.wrote(len(change.pods) + len(change.gone) + sum(map(_elements, change.groups.values())))
        if self._cuts is not None:
            await self._cuts.cut(self._own)

    def _observe_lag(self) -> None:
        """Note for all new pods that their rules are in the kernel now."""
        now = time.time()
        for since in self._ready.values():
            self.lag.observe(max(0.0, now - since))
        self._ready.clear()

    def _suspect(self, addresses: Iterable[str]) -> None:
        if self._cuts is not None:
            self._cuts.suspect(addresses)

    def _concerned(self, change: PolicyChange) -> Iterator[str]:
        """The addresses that may be allowed less than before."""
        yield from (address for address, groups in change.pods.items() if groups is not None and any(groups))
        for key, of_group in change.groups.items():
            is_accepting = key.parts[key.part].action is Action.ACCEPT
            if not is_accepting or of_group.networks_removed or of_group.ports_removed:
                yield from self._catalog.addresses_of(key)

    async def _plan(self, *, differs: bool = True) -> PolicyChange | None:
        """Plan a piece of what is new; returns the difference when it is planned."""
        change = self._catalog.plan_marked(WORK, differs=differs)
        if change is not None and self.has_adopted:
            self._ready |= change.ready
        before, after = self._reported, self._catalog.problems
        if before is not after:
            self._reported = after
            for key in sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)):
                self._report(key, self._catalog.uid_of(key), after.get(key, ()))
        await asyncio.sleep(0)
        return change


def _networks(cidrs: Iterable[str]) -> Iterator[str]:
    """The networks among these that can be understood; the API refuses others."""
    for cidr in cidrs:
        with suppress(ValueError):
            yield str(network(cidr))


def _elements(change: GroupChange) -> int:
    """How many elements of a group have changed."""
    return sum(map(len, (change.networks_added, change.networks_removed, change.ports_added, change.ports_removed)))
