"""Writes what NetworkPolicies mean for the pods of this node.

This controller plans, too: `take_changes` keeps what the watchers saw, and each pass plans what is new and writes the
difference. After a failure the firewall is read, and what differs from the plan is written.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kroute.firewall.protocol import AllowedPeers, PolicyFirewall
from kroute.model.objects import Change, ObjectKey
from kroute.model.plan import Plan, Problem, ServicePlan
from kroute.model.policy_plan import GroupChange, PodGroups, PolicyChange
from kroute.reconcile.controller import Controller, Shared
from kroute.reconcile.resync_schedule import LONGEST_PAUSE

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

    def plan_marked(self, work: int | None = None) -> PolicyChange | None: ...

    def groups(self) -> AllowedPeers: ...

    def uid_of(self, key: ObjectKey) -> str: ...


class Policies(NamedTuple):
    """What plans, and what is called with a policy, its uid and all of its problems whenever these have changed."""

    catalog: Catalog
    report: Callable[[ObjectKey, str, Sequence[Problem]], None]


class NetworkPolicyController(Controller):
    """Owns what the firewall has of network policies. No plan of a Service concerns it."""

    name = "network_policy"
    first_period = 2 / 3
    longest_undisturbed = LONGEST_PAUSE

    def __init__(self, shared: Shared, policies: Policies, firewall: PolicyFirewall) -> None:
        super().__init__(shared)
        self._catalog, self._report = policies
        self.firewall = firewall
        self._reported: Mapping[ObjectKey, tuple[Problem, ...]] = {}

    @staticmethod
    def is_news(plan: Plan, before: Plan | None) -> bool:  # noqa: ARG004  no plan is
        return False

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Nothing: see `take_changes`."""

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
            self.wake.clear()
            await self.wake.wait()

    async def look(self) -> bool:
        return not await self.firewall.is_untouched()

    async def read(self) -> Iterable[str]:
        """Compare the firewall with the whole plan, and write what differs.

        Nothing is read when the kernel says that all is as it was.
        """
        if self.is_applied_state_known and await self.firewall.is_untouched():
            return []
        while self._catalog.has_marked:
            await self._plan()  # the comparison is with all that is planned
        drift = await self.firewall.restore(self._catalog.groups(), self._catalog.pods)
        self.status.wrote(len(drift))
        return drift

    async def write(self) -> None:
        while self._catalog.has_marked:
            if (change := await self._plan()) is not None:
                await self.firewall.write(change)
                self.status.wrote(len(change.pods) + len(change.gone) + sum(map(_elements, change.groups.values())))

    async def _plan(self) -> PolicyChange | None:
        """Plan a piece of what is new; returns the difference when it is planned."""
        change = self._catalog.plan_marked(WORK)
        before, after = self._reported, self._catalog.problems
        if before is not after:
            self._reported = after
            for key in sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)):
                self._report(key, self._catalog.uid_of(key), after.get(key, ()))
        await asyncio.sleep(0)
        return change


def _elements(change: GroupChange) -> int:
    """How many elements of a group have changed."""
    return sum(map(len, (change.networks_added, change.networks_removed, change.ports_added, change.ports_removed)))
