"""Hands the plans' set entries and the node's facts to the firewall, which masquerades and refuses packets.

Only the sets change with the Services, never the rules. An object that can refuse packets is added last and removed
first. So a set is made and filled before a rule looks it up. The rules refuse packets to an address in the set VIP
unless another set has their port, so an address is in VIP only while the sets hold all ports of its Services.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Literal

from kroute.base.backoff import Retries
from kroute.firewall.protocol import Firewall
from kroute.firewall.sets import SetFill
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, NodePlan, Plan, ServicePlan, SetEntry
from kroute.reconcile.comparison.set_entries import describe_drift
from kroute.reconcile.controller import Shared
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.resync_schedule import LONGEST_PAUSE as LONGEST_PAUSE_OF_RESYNCS
from kroute.reconcile.stage_gate import ENFORCED, ENTRIES_PREPARED, Revision, StageGate
from kroute.reconcile.staged_controller import StagedController

Present = Literal[True]

_RULES = "rules"


class Masquerade(StagedController[SetEntry, Present]):
    """Owns the rules and sets of the node's firewall. The plans name the elements of the sets."""

    name = "masquerade"
    stage = ENTRIES_PREPARED
    first_period = 1 / 3
    longest_undisturbed = LONGEST_PAUSE_OF_RESYNCS

    def __init__(self, shared: Shared, firewall: Firewall) -> None:
        self._sizes: Counter[tuple[Family, AddressSet]] = Counter()
        """How many entries of each set kroute has written or found; the kernel is never read for that."""
        super().__init__(shared, DesiredState(count=self._count))
        self._firewall = firewall
        self.node: NodeFacts | None = None
        """The facts of the node that the rules are for; None before its first plan."""
        self._rules_due = True
        self._is_checking_rules = self._has_checked_rules = False
        self._rule_retries: Retries[str] = Retries()
        self._enforcement = _Enforcement(self.gate, self.wake, self.desired.is_right, firewall.enforces)

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """The same as every staged controller, and what the plans restrict."""
        super().accept(plans)
        for plan in plans:
            self._enforcement.accept(plan)

    def accept_node(self, plan: NodePlan) -> None:
        """Take the node's plan in, with the facts of the node on which the rules depend."""
        super().accept_node(plan)
        if plan.node != self.node:
            self.node = plan.node
            self._rules_due = True

    @staticmethod
    def is_news(plan: Plan, before: Plan | None) -> bool:
        """Whether a plan has other set entries than the one before, or may have to pass ENFORCED, too."""
        if not isinstance(before, ServicePlan) or plan.set_entries != before.set_entries:
            return True
        if not plan.set_entries:
            return plan.is_empty
        return AddressSet.RESTRICTED in map(itemgetter(0), plan.set_entries)

    def wanted_by(self, plan: ServicePlan) -> Mapping[SetEntry, Present]:
        return dict.fromkeys(plan.set_entries, True)

    def wanted_by_node(self, plan: NodePlan) -> Mapping[SetEntry, Present]:
        return dict.fromkeys(plan.set_entries, True)

    @property
    def refused(self) -> int:
        """How many set entries the kernel has refused, and which are tried again."""
        return self.statistics().waiting

    def companions(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the passes: a resync at once when another program changes the firewall."""
        return [*super().companions(), self.resync_when_told("following the firewall", self._firewall.follow)]

    async def look(self) -> bool:
        """Look at the sets; `write` checks the rules if only these may have been changed."""
        if not await self._firewall.looks_untouched(lambda family, which: self._sizes[family, which]):
            return True
        self._rules_due = self._rules_due or not await self._firewall.are_rules_untouched()
        return False

    async def read(self) -> Iterable[str]:
        """Make the missing sets and scan the others. `write` checks the rules once the sets are written.

        Nothing is read when the kernel says that all is as it was.
        """
        if self.is_applied_state_known and await self._firewall.is_untouched():
            return []
        drift = await self._firewall.ensure_sets()
        resync = self.desired.resync()
        async for part in self._firewall.elements():
            for entry in part:
                resync.found(entry, True)
            await self.write_new_changes()
        self._rules_due = True
        drift += [
            describe_drift(delta.key, self._set_name(delta.key), is_there=delta.applied is not None)
            for delta in await resync.complete()
        ]
        self._enforcement.review()
        return drift

    def may_write(self, delta: Delta[SetEntry, Present]) -> bool:
        """Whether this delta need not wait.

        A VIP is added after the ports of its Services. It is removed at once, because the address may have become one
        of the node's own, which must not be cut off. Its ports are removed after it.
        """
        entry, comes = delta.key, delta.desired is not None
        if entry.set is AddressSet.VIP:
            return not comes or self._are_ports_known(entry)
        return super().may_write(delta) and (comes or not self._is_vip_leaving(entry))

    async def write(self) -> None:
        """Write the sets, then check and write the rules. No plan is prepared before the rules were checked once."""
        await self.write_deltas()
        await self.write_deltas()  # what had to wait for the first call: new VIPs, ports of removed VIPs
        if self.node is None:
            return  # only the first plan of the node shows whether an earlier run's rules are right
        await self.say()
        if not self._is_checking_rules and (self._rules_due or self._are_rules_to_be_tried_again()):
            await self._ensure_rules(self.node)
            await self.say()

    async def say(self) -> None:
        """Say which plans are prepared, and which are enforced. None is before the rules were checked once."""
        if self._has_checked_rules:
            await super().say()
            await self._enforcement.advance()

    def next_due(self) -> float | None:
        """When to try again to write rules that could not be written; None if there are none."""
        return self._rule_retries.next_due()

    async def apply(self, deltas: Sequence[Delta[SetEntry, Present]]) -> Mapping[SetEntry, str]:
        return await self._firewall.change_elements({delta.key: delta.desired is not None for delta in deltas})

    def event_of(self, delta: Delta[SetEntry, Present]) -> str:
        return "set_entry.added" if delta.desired else "set_entry.removed"

    def fields_of(self, delta: Delta[SetEntry, Present]) -> dict[str, object]:
        return {"set": self._set_name(delta.key), "entry": delta.key.element}

    def set_fills(self) -> list[SetFill]:
        """How full each set is that the kernel has, by family."""
        return [
            SetFill(self._firewall.set_name(family, which), self._sizes[family, which], *capacity)
            for family in Family
            for which in AddressSet
            if (capacity := self._firewall.capacity(family, which)) is not None
        ]

    async def _ensure_rules(self, node: NodeFacts) -> None:
        """Check and write the rules. Sets are written meanwhile: another program may hold the lock for long.

        Plans wait for the first attempt only, whatever comes of it. It waits for the lock for a few seconds.
        """
        self._rules_due, self._is_checking_rules = False, True
        try:
            drift = await self.keep_writing_during(self._firewall.ensure_rules(node))
        finally:
            self._is_checking_rules, self._has_checked_rules = False, True
        self.status.repaired(drift)
        hindrance = self._firewall.rules_hindered_by()
        self.status.hindered(hindrance)
        if hindrance:
            self._rule_retries.failed(_RULES, self.clock())
        else:
            self._rule_retries.clear()
        self._enforcement.review()
        if self._rules_due:
            self.wake.set()

    def _are_rules_to_be_tried_again(self) -> bool:
        due = self._rule_retries.next_due()
        return due is not None and self.clock() >= due

    def _are_ports_known(self, vip: SetEntry) -> bool:
        """Whether the sets hold all other entries that the Services with this VIP want."""
        return all(
            self.desired.is_right(entry)
            for owner in self.desired.owners(vip)
            for entry in self.desired.unsettled_of(owner)
            if entry.set is not AddressSet.VIP
        )

    def _is_vip_leaving(self, port: SetEntry) -> bool:
        """Whether the port's address is a VIP that has yet to be removed from its set."""
        return self.desired.is_leaving(SetEntry(AddressSet.VIP, (str(port.element[0]),)))

    def _count(self, entry: SetEntry, difference: int) -> None:
        self._sizes[entry.family, entry.set] += difference

    def _set_name(self, entry: SetEntry) -> str:
        return self._firewall.set_name(entry.family, entry.set)


class _Enforcement:
    """Says which plans have their source ranges (`loadBalancerSourceRanges`) enforced.

    A port's ranges are enforced when it is in the set RESTRICTED and the rules that look up that set exist. A missing
    entry of SOURCE_RANGE does not matter here: it only keeps out clients that should be served.

    `is_right` says whether a set entry is as desired, `enforces` whether a family's rules about restricted ports exist.
    """

    def __init__(
        self,
        gate: StageGate,
        waker: asyncio.Event,
        is_right: Callable[[SetEntry], bool],
        enforces: Callable[[Family], bool],
    ) -> None:
        self._gate = gate
        self._is_right = is_right
        self._enforces = enforces
        self._plans: dict[ObjectKey, tuple[ServicePlan, tuple[SetEntry, ...]]] = {}
        gate.join(waker, says={stage: partial(self._is_enforced, family) for family, stage in ENFORCED.items()})

    def accept(self, plan: ServicePlan) -> None:
        """Take a new plan in. Its stage is revoked if its ports are not all enforced, as the older plan's may be."""
        entries = tuple(entry for entry in plan.set_entries if entry.set is AddressSet.RESTRICTED)
        was_restricted = plan.key in self._plans
        if entries:
            self._plans[plan.key] = (plan, entries)
        else:
            self._plans.pop(plan.key, None)
        if entries or was_restricted or plan.is_empty:
            self._gate.submit(plan, *ENFORCED.values())
        if entries:
            self._revoke_what_is_open(plan)

    def review(self) -> None:
        """Revoke the stage of plans whose ports are no longer enforced; call this when sets or rules changed."""
        for plan, _ in self._plans.values():
            self._revoke_what_is_open(plan)

    async def advance(self) -> None:
        """Say which plans have passed the stage."""
        for stage in ENFORCED.values():
            await self._gate.advance(stage)

    def _revoke_what_is_open(self, plan: ServicePlan) -> None:
        for family, stage in ENFORCED.items():
            if not self._is_enforced(family, plan):
                self._gate.revoke(stage, [plan.key])
                self._gate.submit(plan, stage)

    def _is_enforced(self, family: Family, plan: Revision) -> bool:
        _, entries = self._plans.get(plan.key, (plan, ()))
        own = [entry for entry in entries if entry.family is family]
        return not own or (self._enforces(family) and all(self._is_right(entry) for entry in own))
