"""Implements `kroute.firewall.protocol.PolicyFirewall` with the legacy tables and ipset: writes what differs.

A change is written in this order: sets that are missing are made, and whatever a group allows enters them; then the
rules of each table are replaced in one commit, if a group or a range of ports has come or gone; then pods are led to
their groups, and what is allowed no more leaves the sets. So a packet never meets a group that is not complete.

Where pods enter a group that had others before, what it allows no more leaves it first; where pods leave a group that
goes on, what it allows anew enters it last. So no pod meets what its group allows only before the pod enters, or only
after it has left: a packet that both the old and the new policies refuse never passes, whenever the process is killed.
A group of ClusterNetworkPolicies also refuses by elements. So with each change of one, what it refuses anew enters its
sets at first, and what it refused leaves them last; in between, it accepts only what it accepted and will accept.

The sets of both families exist while a pod of this node is in the plan or a network is closed; rules only in the
families of these.
"""

import errno
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
import structlog

from kroute.firewall.iptables.address_sets import POLICIES, destroy_sets
from kroute.firewall.iptables.policy_rules import (
    GROUPS,
    REFUSALS,
    TABLES,
    Group,
    PolicySet,
    extra_elements,
    placed,
    pod_elements,
    shared_sets,
    standing_sets,
    table_rules,
)
from kroute.firewall.iptables.tables import remove_rules
from kroute.firewall.protocol import AllowedPeers
from kroute.kernel.clients import IpsetClient, XtablesClient
from kroute.kernel.digest import LastLook
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.ipset import AddEntry, DeleteEntry, Element, SetChange
from kroute.kernel.iptables.tools import Variant
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family, family_of
from kroute.model.policy_plan import NO_EXTRA, Answer, Extra, GroupKey, PodGroups, PolicyChange, PortElement, Tier
from kroute.reconcile.cleanup_report import CleanupReport

log = structlog.get_logger(__name__)

Elements = defaultdict[PolicySet, set[Element]]


def _elements(known: Mapping[PolicySet, set[Element]] | None = None) -> Elements:
    return defaultdict(set, known or {})


class Difference(msgspec.Struct):
    """What is to be changed. `needed` are sets that must exist, with or without elements. `drift` says what was wrong,
    one sentence each, and `refused` what the kernel has refused so far.
    """

    needed: set[PolicySet] = msgspec.field(default_factory=set)
    added: Elements = msgspec.field(default_factory=_elements)
    removed: Elements = msgspec.field(default_factory=_elements)
    drift: list[str] = msgspec.field(default_factory=list)
    refused: list[Failure[SetChange]] = msgspec.field(default_factory=list)

    def settle(self) -> None:
        """Leave out what is removed and added: of a network of every address, which is written as two, one may stay."""
        for one in self.removed.keys() & self.added.keys():
            both = self.removed[one] & self.added[one]
            self.removed[one] -= both
            self.added[one] -= both

    def sizes(self, before: Mapping[PolicySet, int], gone: Collection[Group]) -> dict[PolicySet, int]:
        """The sets that there are after the change, without those of the groups that are gone; with their sizes."""
        found = {one: size for one, size in before.items() if one.group not in gone}
        for one in self.needed:
            found.setdefault(one, 0)
        for one, added in self.added.items():
            found[one] = found.get(one, 0) + len(added)
        for one in found.keys() & self.removed.keys():
            found[one] -= len(self.removed[one])
        return {one: size for one, size in found.items() if size or one.stays}


class PolicyChains:
    """Owns the chains and sets whose names begin with KROUTENP-."""

    def __init__(
        self, ipset: IpsetClient, xtables: Mapping[Variant, XtablesClient], log_group: int | None = None
    ) -> None:
        self._ipset = ipset
        self._log_group = log_group
        self._clients = {family: xtables[Variant(family.number, "legacy")] for family in Family}
        self._pods: dict[str, PodGroups] = {}
        """The groups to which the kernel leads the addresses of pods."""
        self._extra = NO_EXTRA
        self._sizes: dict[PolicySet, int] = {}
        """The sets that exist, with the number of their elements."""
        self._rules: dict[tuple[Family, str], TableRules] = {}
        """What each table has."""
        self._looks: defaultdict[PolicySet, LastLook] = defaultdict(LastLook)
        self._is_right = False

    async def write(self, change: PolicyChange) -> None:
        self._is_right = False
        difference = Difference(needed={*self._shared_sets()})
        for one, element in extra_elements(self._extra):
            if one not in self._sizes:
                difference.added[one].add(element)
        for key, of_group in change.groups.items():
            if of_group.is_new:
                difference.needed.update(standing_sets(key))
            _put(difference.added, key, of_group.added)
            _put(difference.removed, key, of_group.removed)
        for address, groups in change.pods.items():
            both = self._pods.pop(address, None), groups
            before, after = (set(pod_elements(address, one, self._extra)) for one in both)
            for elements, led in ((difference.removed, before - after), (difference.added, after - before)):
                for one, element in led:
                    elements[one].add(element)
            if groups is not None:
                self._pods[address] = groups
        if self._pods or self._extra.closed:
            await self._make(difference, {Group.of(key) for key in change.gone})
        else:
            await self._remove_all()
        self._is_right = True

    async def restore(self, allowed: AllowedPeers, pods: Mapping[str, PodGroups], extra: Extra = NO_EXTRA) -> list[str]:
        self._is_right = False
        self._pods, self._extra, self._sizes, self._rules = dict(pods), extra, {}, {}
        present = await self._present()
        drift: list[str] = []
        if pods or extra.closed:
            difference = await self._compare(allowed, pods, present)
            drift = [*difference.drift, *await self._make(difference)]
            for name in sorted(present - {one.name for one in self._sizes}):
                await self._ipset.destroy(name)
                drift.append(f"set {name} is not of the plan")
        elif present:
            drift = [f"no pod is isolated: {what}" for what in await self._remove_all()]
        self._is_right = True
        return drift

    async def change_cut(self, added: Collection[Answer], removed: Collection[Answer]) -> None:
        difference = Difference()
        for elements, answers in ((difference.added, added), (difference.removed, removed)):
            for one, element in extra_elements(Extra(cut=answers)):
                elements[one].add(element)
        if self._sizes.keys() >= {*difference.added, *difference.removed}:  # else there is no isolated pod
            self._sizes = difference.sizes(self._sizes, ())
            refused = await self._change(AddEntry, difference.added, lambda _: True)
            refused += await self._change(DeleteEntry, difference.removed, lambda _: True)
            for failure in refused:
                raise KernelError(f"{failure}; trying again", errno=failure.errno)

    def group_name(self, key: GroupKey) -> str:
        return Group.of(key).chain

    async def refused(self) -> Mapping[str, int]:
        counts = Counter[str]()
        for (family, table), written in self._rules.items():
            for chain, packets in (await self._clients[family].packets(table)).items():
                if chain.startswith(GROUPS):
                    rules = zip(packets, written.chains.get(chain, ()), strict=False)  # another program may change them
                    counts[chain] += sum(count for count, rule in rules if rule.endswith(REFUSALS))
        return counts

    async def is_untouched(self) -> bool:
        if not self._is_right or await self._present() != {one.name for one in self._sizes}:
            return False
        for (family, _), rules in self._rules.items():
            if await self._clients[family].differences(rules):
                return False
        for one, size in self._sizes.items():
            if not self._looks[one].is_same(await self._ipset.digest(one.name), (size,)):
                return False
        return True

    async def follow(self, changed: Callable[[], None]) -> None:
        """Return at once: neither ipset nor the tables report their changes."""

    async def remove(self, report: CleanupReport) -> None:
        for family in Family:
            for table in reversed(TABLES):
                key = Variant(family.number, "legacy"), table
                await remove_rules(self._clients[family], key, POLICIES, report)
        await destroy_sets(self._ipset, POLICIES, report)

    def _shared_sets(self) -> list[PolicySet]:
        return [one for family in Family for one in shared_sets(family, self._extra)]

    async def _present(self) -> set[str]:
        """The names of the sets of any run."""
        return {name for name in await self._ipset.names() if name.startswith(POLICIES)}

    async def _remove_all(self) -> list[str]:
        report = CleanupReport()
        await self.remove(report)
        for what in report.failed:
            raise KernelError(f"{what}; trying again")
        self._sizes, self._rules = {}, {}
        self._looks.clear()
        return report.undone

    async def _compare(
        self, allowed: AllowedPeers, pods: Mapping[str, PodGroups], present: Collection[str]
    ) -> Difference:
        """What differs between the kernel's sets and the plan. One group is compared after another."""
        difference = Difference(drift=[] if present else ["the sets of network policies were missing"])
        led = _elements()
        for address, groups in pods.items():
            for one, element in pod_elements(address, groups, self._extra):
                led[one].add(element)
        for one, element in extra_elements(self._extra):
            led[one].add(element)
        wanted = _elements({one: led[one] for one in self._shared_sets()})
        wanted.update({one: elements for one, elements in led.items() if one.group is None})
        await self._compare_sets(wanted, present, difference)
        for key, peers in allowed:
            wanted = _elements({one: led.pop(one, set()) for one in standing_sets(key)})
            _put(wanted, key, (PortElement(network, *ports) for network, ports in peers))
            await self._compare_sets(wanted, present, difference)
        return difference

    async def _compare_sets(self, wanted: Elements, present: Collection[str], difference: Difference) -> None:
        """Note what differs. Sets of peers that are missing are filled at once: no rule names them yet."""
        for one, elements in wanted.items():
            difference.needed.add(one)
            found = await self._found(one) if one.name in present else None
            if found is None and present:
                difference.drift.append(f"set {one.name} was missing, or of another kind")
            if surplus := (found or set()) - elements:
                difference.removed[one] = surplus
                difference.drift.append(f"set {one.name} had {len(surplus)} elements that are not of the plan")
            if missing := elements - (found or set()):
                difference.drift.append(f"set {one.name} lacked {len(missing)} elements")
            if found is None and one.is_of_peers:
                await self._ipset.create(one.definition)
                self._sizes[one] = len(missing)
                difference.refused += await self._change(AddEntry, {one: missing}, lambda _: True)
            elif missing:
                difference.added[one] = missing

    async def _found(self, one: PolicySet) -> set[Element] | None:
        """The elements of a set; None if there was none of its kind, as there is none then."""
        definition, wanted = await self._ipset.definition(one.name), one.definition
        if definition is not None and definition.fits(wanted):
            self._looks[one].read(await self._ipset.digest(one.name))
            found = await self._ipset.read(one.name)
            self._sizes[one] = len(found)
            return found
        for family in Family:
            for table in TABLES:
                await self._clients[family].remove(table, POLICIES)
        await self._ipset.destroy(one.name)
        return None

    async def _make(self, difference: Difference, gone: Collection[Group] = ()) -> list[str]:
        """Make the changes; returns what was wrong with the rules."""
        difference.settle()
        before, self._sizes = self._sizes, difference.sizes(self._sizes, gone)
        for one in sorted(self._sizes.keys() - before.keys()):
            await self._ipset.create(one.definition)
        added, removed = difference.added, difference.removed
        entered, left = ({one.group for one in part if part[one] and one.is_of_pods} for part in (added, removed))
        of_cluster = {
            one.group for one in before if one.group is not None and one.group.tier is not Tier.NETWORK_POLICY
        }
        close_first, open_last = entered | of_cluster, left | of_cluster
        refused = [*difference.refused]
        refused += await self._change(AddEntry, added, lambda one: one.is_of_peers and not one.is_accepting)
        refused += await self._change(
            DeleteEntry, removed, lambda one: one.is_accepting and one.group in close_first and one in before
        )
        refused += await self._change(AddEntry, added, lambda one: one.is_accepting and one.group not in open_last)
        refused += await self._change(AddEntry, added, lambda one: one.is_of_pods)
        families, drift = {family_of(one) for one in (*self._pods, *self._extra.closed)}, []
        if before.keys() != self._sizes.keys() or families != {family for family, _ in self._rules}:
            drift = await self._write_rules_as_possible(families)
        refused += await self._change(AddEntry, added, lambda one: one.group is None)
        refused += await self._change(DeleteEntry, removed, lambda one: one.group is None)
        refused += await self._change(DeleteEntry, removed, lambda one: one.is_of_pods and one in self._sizes)
        refused += await self._change(AddEntry, added, lambda one: one.is_accepting and one.group in open_last)
        refused += await self._change(
            DeleteEntry,
            removed,
            lambda one: one.is_of_peers and one in self._sizes and not (one.is_accepting and one.group in close_first),
        )
        for one in sorted(before.keys() - self._sizes.keys()):
            self._looks.pop(one, None)
            await self._ipset.destroy(one.name)
        for failure in refused:
            raise KernelError(f"{failure}; trying again", errno=failure.errno)
        return drift

    async def _write_rules_as_possible(self, families: Collection[Family]) -> list[str]:
        """Write the rules, without those that log if these are what is refused; returns what was wrong."""
        try:
            return await self._write_rules(families, self._log_group)
        except KernelError as error:
            if self._log_group is None or error.errno == errno.EAGAIN:
                raise
            drift = await self._write_rules(families, None)
            next_step = "load the modules nfnetlink_log, xt_NFLOG and xt_limit, and restart kroute"
            log.warning("policy_log.unsupported", error=str(error), next_step=next_step)
            self._log_group = None
            return drift

    async def _write_rules(self, families: Collection[Family], log_group: int | None) -> list[str]:
        """Write the rules that are other ones than were last written; returns what was wrong."""
        wanted = {
            (family, table): rules
            for family in families
            for table, rules in table_rules(family, self._sizes, log_group).items()
        }
        drift: list[str] = []
        for family, client in self._clients.items():
            for table in TABLES:
                rules, known = wanted.get((family, table)), self._rules.get((family, table))
                if rules is not None and rules != known:
                    words = f"{family} rules of table {table}"
                    drift += [f"{words}: {what}" for what in await client.ensure(rules)]
                elif rules is None and any(name.startswith(POLICIES) for name in await client.chains(table)):
                    drift += [f"{family} {what}" for what in await client.remove(table, POLICIES)]
        if wanted != self._rules:
            for look in self._looks.values():
                look.wrote()  # a set counts the rules that refer to it
        self._rules = wanted
        return drift

    async def _change(
        self,
        kind: type[AddEntry | DeleteEntry],
        elements: Mapping[PolicySet, set[Element]],
        is_meant: Callable[[PolicySet], bool],
    ) -> list[Failure[SetChange]]:
        """Add or delete the elements of the sets that are meant; returns those that are refused."""
        changes: list[SetChange] = []
        for one in sorted(elements, key=lambda one: one.step, reverse=kind is DeleteEntry):
            if elements[one] and is_meant(one):
                self._looks[one].wrote()
                changes += [kind(one.name, element) for element in elements[one]]
        return await self._ipset.write(changes)


def _put(elements: Elements, key: GroupKey, allowed: Iterable[PortElement]) -> None:
    """Add the elements of a part of a group."""
    group = Group.of(key)
    for element in allowed:
        one, found = placed(group, key.part, element)
        elements[one].update(found)
