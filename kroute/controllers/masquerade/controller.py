"""Keeps the nat and filter rules and the sets that they look up.

The rules never change with the Services; the sets do. What refuses packets is there last and goes first: a set is there
and filled before a rule looks into it, and an address is in the set VIP, which refuses what is in no other set, only
while the sets hold all of its Services' ports.
"""

import errno
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import structlog

from kroute.broadcaster import Subscription
from kroute.controllers.masquerade.address_sets import FAMILIES, PREFIX, Family, family_of, set_definitions
from kroute.controllers.masquerade.node_rules import NodeRules
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import AddEntry, DeleteEntry, Ipset, SetChange, SetDefinition
from kroute.kernel.iptables.xtables import Xtables
from kroute.model.plan import AddressSet, NodePlan, ServicePlan, SetEntry
from kroute.reconcile.batches import sliced
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.stage_gate import ENTRIES_PREPARED, StageGate
from kroute.reconcile.staged_controller import StagedController
from kroute.settings import Settings

if TYPE_CHECKING:
    from kroute.model.node_facts import NodeFacts

log = structlog.get_logger(__name__)

Present = Literal[True]

VIP_SETS = frozenset(family.set_name(AddressSet.VIP) for family in FAMILIES)


class Masquerade(StagedController[AddEntry, Present]):
    """Owns the rules and sets named KROUTE-. `xtables` has an entry for each family that the node may have."""

    name = "masquerade"
    stage = ENTRIES_PREPARED
    first_audit = 1 / 3

    def __init__(
        self,
        settings: Settings,
        subscription: Subscription,
        gate: StageGate,
        *,
        ipset: Ipset,
        xtables: Mapping[Family, Xtables],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(settings, subscription, gate, DesiredState(), None, clock)
        self._ipset = ipset
        self._rules = NodeRules(settings, xtables, self.account)
        self._node: NodeFacts | None = None
        self._rules_due = True
        self._looked_at_rules = False
        self._leftover_sets: set[str] = set()
        self._kept_sets: set[str] = set()

    def accept_node(self, plan: NodePlan) -> None:
        """Want what the plan names, and take in what the rules need to know of the node."""
        super().accept_node(plan)
        if plan.node != self._node:
            self._node = plan.node
            self._rules_due = True

    def wanted_by(self, plan: ServicePlan) -> Mapping[AddEntry, Present]:
        """One set entry for each of the plan's, in the set of its family."""
        return _in_sets(plan.set_entries)

    def wanted_by_node(self, plan: NodePlan) -> Mapping[AddEntry, Present]:
        """The same."""
        return _in_sets(plan.set_entries)

    async def read(self) -> Iterable[str]:
        """Make the sets that are missing, and read the others. The rules are looked at when the sets are right."""
        drift: list[str] = []
        present = await self._ipset.names()
        definitions = set_definitions()
        for definition in definitions:
            if definition.name not in present:
                await self._ipset.create(definition)
                drift.append(f"set {definition.name} was missing")
            elif not await self._fits(definition):
                await self._remake(definition)
                drift.append(f"set {definition.name} was of another kind")
        resync = self.desired.resync()
        for definition in definitions:
            if definition.name not in present:
                continue  # it is new, and so it is empty
            async for elements in sliced(await self._ipset.read(definition.name)):
                for element in elements:
                    resync.found(AddEntry(definition.name, element), True)
                await self.meanwhile()
        self._leftover_sets = {name for name in present if name.startswith(PREFIX)} - {it.name for it in definitions}
        self._rules_due = True
        drift += [
            f"entry {one.key} was {'not wanted' if one.applied else 'missing'}" for one in await resync.complete()
        ]
        return drift

    def may_write(self, delta: Delta[AddEntry, Present]) -> bool:
        """A VIP comes after the ports of its Services; it goes at once, and its ports go after it.

        At once, because the address may have become one of the node's own, which must not be cut off.
        """
        entry, comes = delta.key, delta.desired is not None
        if entry.set in VIP_SETS:
            return not comes or self._are_ports_known(entry)
        return super().may_write(delta) and (comes or not self._is_vip_leaving(entry))

    async def write(self) -> None:
        """Fill the sets, then see to the rules. At first, no plan is prepared before the rules have been seen to."""
        await self.write_deltas()
        await self.write_deltas()  # what had to wait for the first: VIPs that come, ports of VIPs that went
        if self._node is None:
            return  # what an earlier run's rules do may be right: that shows only with the first plans
        if self._rules_due:
            if self._looked_at_rules:
                await self.gate.advance(self.stage)  # an audit of the rules may wait for the xtables lock
            self._rules_due, self._looked_at_rules = False, True
            await self._rules.ensure(self._node)
            await self._destroy_leftover_sets()
        await self.gate.advance(self.stage)

    async def apply(self, deltas: Sequence[Delta[AddEntry, Present]]) -> Mapping[AddEntry, str]:
        """Write set entries."""
        changes: list[SetChange] = [delta.key if delta.desired else DeleteEntry(*delta.key) for delta in deltas]
        failures = await self._ipset.write(changes)
        return {AddEntry(*failure.change): str(failure) for failure in failures}

    def event_of(self, delta: Delta[AddEntry, Present]) -> str:
        """`set_entry.added`, `set_entry.removed`."""
        return "set_entry.added" if delta.desired else "set_entry.removed"

    def fields_of(self, delta: Delta[AddEntry, Present]) -> dict[str, object]:
        """The set and its element."""
        return {"set": delta.key.set, "entry": delta.key.element}

    async def has_sets(self) -> bool:
        """Whether there is a set of ours, from whatever run."""
        return any(name.startswith(PREFIX) for name in await self._ipset.names())

    async def cleanup(self, report: CleanupReport) -> None:
        """Remove the rules, then the sets."""
        await self._rules.cleanup(report)
        for name in sorted(name for name in await self._ipset.names() if name.startswith(PREFIX)):
            with report.step(f"set {name}"):
                await self._ipset.destroy(name)
                report.add(f"destroy set {name}")

    def _are_ports_known(self, vip: AddEntry) -> bool:
        """Whether the sets hold everything else that the Services with this VIP want in them."""
        return all(
            self.desired.is_right(entry)
            for owner in self.desired.owners(vip)
            for entry in self.desired.wanted_by(owner)
            if entry.set not in VIP_SETS
        )

    def _is_vip_leaving(self, port: AddEntry) -> bool:
        """Whether the port's address is a VIP that has yet to go."""
        address = str(port.element[0])
        vip = AddEntry(family_of(address).set_name(AddressSet.VIP), (address,))
        return self.desired.is_leaving(vip)

    async def _fits(self, definition: SetDefinition) -> bool:
        found = await self._ipset.definition(definition.name)
        return found is not None and found.fits(definition)

    async def _remake(self, definition: SetDefinition) -> None:
        """Replace a set of another kind; rules that look into it go first."""
        await self._rules.withdraw(definition.family)
        await self._ipset.destroy(definition.name)
        await self._ipset.create(definition)

    async def _destroy_leftover_sets(self) -> None:
        """Destroy what bears our name and no rule of ours needs: sets that an earlier version had."""
        for name in sorted(self._leftover_sets - self._kept_sets):
            try:
                await self._ipset.destroy(name)
            except KernelError as error:
                if error.errno != errno.EBUSY:
                    raise
                self._kept_sets.add(name)
                log.warning("set.kept", set=name, error=str(error), next_step="delete the rule that names it")
            else:
                log.info("set.destroyed", set=name)
        self._leftover_sets.clear()


def _in_sets(entries: Iterable[SetEntry]) -> dict[AddEntry, Present]:
    return {AddEntry(family_of(entry.element[0]).set_name(entry.set), entry.element): True for entry in entries}
