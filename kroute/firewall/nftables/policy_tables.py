"""Implements `kroute.firewall.protocol.PolicyFirewall` with nf_tables: writes what differs from the plan.

A table exists in both families while a pod of this node is in the plan, or a network is closed, unless the kernel lacks
the family. A change is written in up to three steps. At first what is missing of chains and sets is made, with their
rules, and the sets of new groups are filled: no packet is led there yet. Then one transaction changes all other
elements, leads the pods to their groups, and deletes the groups that no pod has.
"""

import errno
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import structlog

from kroute.firewall.nftables.names import POLICY_TABLES, listed
from kroute.firewall.nftables.policy_rules import (
    BASE_CHAINS,
    BASE_SETS,
    CUT,
    LOGGED,
    NEXT,
    NEXT_SETS,
    Group,
    GroupSets,
    base_chains,
    base_sets,
    extra_elements,
    group_rules,
    next_chains,
    pod_elements,
)
from kroute.firewall.nftables.table_watch import TableWatch
from kroute.firewall.nftables.tables import ANONYMOUS, UNSUPPORTED, are_same
from kroute.firewall.protocol import AllowedPeers
from kroute.kernel.clients import NftablesClient
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.nftables.expressions import packets_counted
from kroute.kernel.nftables.objects import (
    AddChain,
    AddElements,
    AddRule,
    AddSet,
    AddTable,
    Chain,
    DeleteChain,
    DeleteElements,
    DeleteSet,
    DeleteTable,
    Element,
    ElementChange,
    FlushChain,
    NftChange,
    NftRule,
    NftSet,
    Table,
    TableState,
)
from kroute.model.addresses import Family, family_of
from kroute.model.policy_plan import NO_EXTRA, Answer, Extra, GroupChange, GroupKey, PodGroups, PolicyChange
from kroute.reconcile.cleanup_report import CleanupReport

log = structlog.get_logger(__name__)

Elements = dict[NftSet, list[Element]]

MANY = 200
"""Elements that leave a set of ranges at once, from which on the set is made anew. The kernel takes time by the set's
size for each that is deleted."""
AT_ONCE = 10_000
"""Elements of new groups that are kept in memory before they are written."""


class Difference(msgspec.Struct):
    """What is to be changed in one table. `drift` says what was wrong, one sentence each."""

    made: list[NftChange] = msgspec.field(default_factory=list)
    filled: Elements = msgspec.field(default_factory=dict)
    removed: Elements = msgspec.field(default_factory=dict)
    added: Elements = msgspec.field(default_factory=dict)
    gone: list[NftChange] = msgspec.field(default_factory=list)
    parts: list[tuple[Group, GroupSets]] = msgspec.field(default_factory=list)
    """The groups and sets whose elements may be among the removed."""
    drift: list[str] = msgspec.field(default_factory=list)
    refused: list[Failure[NftChange]] = msgspec.field(default_factory=list)

    def make(self, chain: Chain, rules: Iterable[NftRule]) -> None:
        self.made += [AddChain(chain), *map(AddRule, rules)]


class PolicyTables:
    """Owns the tables `ip kroute-policies` and `ip6 kroute-policies` with all that is in them."""

    def __init__(self, nftables: NftablesClient, log_group: int | None = None) -> None:
        self._nftables = nftables
        self._log_group = log_group
        self._present: set[Family] = set()
        """The families whose tables exist, as far as is known."""
        self._pods: dict[str, PodGroups] = {}
        """The groups to which the kernel leads the addresses of pods."""
        self._extra = NO_EXTRA
        self._watch = TableWatch(nftables, POLICY_TABLES.values())

    async def write(self, change: PolicyChange) -> None:
        pods = {**self._pods, **change.pods}
        isolated = {address: groups for address, groups in pods.items() if groups is not None}
        if isolated or self._extra.closed:
            for family, difference in self._differences(change, _with_next(isolated)).items():
                await self._write(family, difference)
        else:
            await self._delete(self._present)
        self._pods = isolated

    async def restore(self, allowed: AllowedPeers, pods: Mapping[str, PodGroups], extra: Extra = NO_EXTRA) -> list[str]:
        self._extra = extra
        since = await self._watch.begin()
        self._present = set(await listed(self._nftables, POLICY_TABLES))
        drift: list[str] = []
        if pods or extra.closed:
            for family, difference in (await self._compare(allowed, pods)).items():
                await self._write(family, difference)
                drift += [f"table {POLICY_TABLES[family]}: {what}" for what in difference.drift]
        else:
            drift += [f"table {POLICY_TABLES[family]}: no pod is isolated" for family in self._present]
            await self._delete(self._present)
        self._pods = dict(pods)
        self._watch.found_right(since)
        return drift

    async def change_cut(self, added: Collection[Answer], removed: Collection[Answer]) -> None:
        for family in sorted(self._present):
            more, fewer = ([it for _, it in extra_elements(family, Extra(cut=answers))] for answers in (added, removed))
            changes = [*_element_changes(AddElements, {CUT: more}), *_element_changes(DeleteElements, {CUT: fewer})]
            if changes:
                _raise(POLICY_TABLES[family], await self._nftables.write(POLICY_TABLES[family], changes))

    def group_name(self, key: GroupKey) -> str:
        return Group.of(key).chain

    async def refused(self) -> Mapping[str, int]:
        counts = Counter[str]()
        for family in sorted(self._present):
            state = await self._nftables.read(POLICY_TABLES[family])
            for _handle, rule in state.rules if state is not None else ():
                counts[rule.chain] += sum(filter(None, map(packets_counted, rule.expressions)))
        return counts

    async def is_untouched(self) -> bool:
        return await self._watch.is_untouched()

    async def follow(self, changed: Callable[[], None]) -> None:
        await self._watch.follow(changed)

    async def remove(self, report: CleanupReport) -> None:
        for family in await listed(self._nftables, POLICY_TABLES):
            table = POLICY_TABLES[family]
            with report.step(f"table {table}"):
                await self._delete([family])
                report.add(f"delete table {table}")

    def _differences(self, change: PolicyChange, with_next: bool) -> dict[Family, Difference]:
        found = {family: Difference() for family in Family}
        had_next = _with_next(self._pods)
        for family, difference in found.items():
            is_new = family not in self._present
            if is_new:
                _make_base(family, difference, self._extra)
                _put(difference.added, *extra_elements(family, self._extra))
            if with_next and (is_new or not had_next):
                _make(difference, NEXT_SETS, next_chains(family))
        for key, of_group in change.groups.items():
            _change_part(key, of_group, found, self._log_group)
        for address, groups in change.pods.items():
            difference = found[family_of(address)]
            both = self._pods.get(address), groups
            before, after = (dict(pod_elements(address, one, self._extra)) for one in both)
            _put(difference.removed, *(before.items() - after.items()))
            _put(difference.added, *(after.items() - before.items()))
        for key in change.gone:
            chains = [Group.of(key).chain] if key.part == 0 else []
            for difference in found.values():
                difference.gone += _deletions(chains, [definition.name for definition in GroupSets.of(key).all])
        for family in self._present if had_next and not with_next else ():
            found[family].gone += _deletions([chain.name for chain in NEXT.values()], [one.name for one in NEXT_SETS])
        return found

    async def _compare(self, allowed: AllowedPeers, pods: Mapping[str, PodGroups]) -> dict[Family, Difference]:
        """What differs between the kernel's tables and the plan. One group is compared after another."""
        listed = [(key, GroupSets.of(key), elements) for key, elements in allowed]
        with_next = _with_next(pods)
        of_no_group = [*base_sets(self._extra), *(NEXT_SETS if with_next else ())]
        sets = [*of_no_group, *(definition for _, of_part, _ in listed for definition in of_part.all)]
        names = {definition.name: definition for definition in sets}
        found = {family: Difference() for family in Family}
        states = {family: await self._state(family, names) for family in Family}
        for family, difference in found.items():
            _compare_base(family, states[family], difference, self._extra)
            if with_next:
                _compare_next(family, states[family], difference)
        for key, of_part, elements in listed:
            wanted: dict[Family, Elements] = {family: {} for family in Family}
            for network, ports in elements:
                _put(wanted[family_of(network)], of_part.place(network, *ports))
            for family, difference in found.items():
                rules = group_rules(family, Group.of(key), self._log_group)
                is_new = _compare_part(key, rules, states[family], difference)
                added = difference.filled if is_new else difference.added
                for definition in of_part.all:
                    of_set = wanted[family].get(definition, [])
                    await self._compare_set(family, states[family], definition, of_set, difference, added)
        for family, difference in found.items():
            of_family = {address: groups for address, groups in pods.items() if family_of(address) is family}
            of_pods = [one for each in of_family.items() for one in pod_elements(*each, self._extra)]
            led: Elements = {}
            _put(led, *of_pods, *extra_elements(family, self._extra))
            for definition in of_no_group:
                of_set = led.get(definition, [])
                await self._compare_set(family, states[family], definition, of_set, difference, difference.added)
            chains = {Group.of(key).chain for key, _, _ in listed} | {one.name for one in NEXT.values() if with_next}
            _delete_others(states[family], chains, names, difference)
            if not states[family].chains:
                difference.drift = ["it was missing, or could not be used"]
        return found

    async def _state(self, family: Family, sets: Mapping[str, NftSet]) -> TableState:
        """What the table has; one that another program has made unusable is deleted at first."""
        table = POLICY_TABLES[family]
        state = await self._nftables.read(table) if family in self._present else None
        if state is not None and _is_unusable(state, sets):
            await self._delete([family])
            state = None
        return state if state is not None else TableState({}, {}, [])

    async def _compare_set(
        self,
        family: Family,
        state: TableState,
        definition: NftSet,
        wanted: list[Element],
        difference: Difference,
        added: Elements,
    ) -> None:
        found: set[Element] = set()
        if definition.name in state.sets:
            async for part in self._nftables.elements(POLICY_TABLES[family], definition):
                found.update(part)
        surplus, missing = found.difference(wanted), set(wanted) - found
        _put(difference.removed, *((definition, element) for element in surplus))
        _put(added, *((definition, element) for element in missing))
        if surplus:
            difference.drift.append(f"set {definition.name} had {len(surplus)} elements that are not of the plan")
        if missing:
            difference.drift.append(f"set {definition.name} lacked {len(missing)} elements")
        if sum(map(len, difference.filled.values())) > AT_ONCE:
            await self._make(family, difference)

    async def _make(self, family: Family, difference: Difference) -> bool:
        """Make what is missing, and fill the sets of new groups. Returns whether the kernel has the family."""
        table, filled = POLICY_TABLES[family], difference.filled
        difference.filled = {}
        refused = await self._transact(table, difference.made)
        if refused and all(_is_logging(failure.change) for failure in refused):
            next_step = "load the modules nfnetlink_log, nft_log and nft_limit, and restart kroute"
            log.warning("policy_log.unsupported", error=f"table {table}: {refused[0]}", next_step=next_step)
            self._log_group = None  # the next attempt writes the rules without
        elif family not in self._present and any(failure.errno in UNSUPPORTED for failure in refused):
            return False  # no pod has an address of a family that the kernel lacks
        _raise(table, refused)
        self._present.add(family)
        difference.made = []
        difference.refused += await self._nftables.write(table, _element_changes(AddElements, filled))
        return True

    async def _write(self, family: Family, difference: Difference) -> None:
        if not await self._make(family, difference):
            return
        table = POLICY_TABLES[family]
        anew = [each for part in difference.parts for each in await self._made_anew(family, *part, difference)]
        removed = _element_changes(DeleteElements, difference.removed)
        added = _element_changes(AddElements, difference.added)
        refused = await self._change(table, [*anew, *removed, *added, *difference.gone])
        _raise(table, [*difference.refused, *refused])

    async def _made_anew(
        self, family: Family, group: Group, sets: GroupSets, difference: Difference
    ) -> list[NftChange]:
        """The changes that replace a set of ranges by one with the elements that stay, if many leave it."""
        ranges = sets.ranges
        if len(difference.removed.get(ranges, ())) < MANY:
            return []
        elements = {one async for part in self._nftables.elements(POLICY_TABLES[family], ranges) for one in part}
        elements.difference_update(difference.removed.pop(ranges))
        elements.update(difference.added.pop(ranges, ()))
        filled = [AddElements(ranges, tuple(elements))] if elements else []
        rules = map(AddRule, group_rules(family, group, self._log_group))
        return [FlushChain(group.chain), DeleteSet(ranges.name), AddSet(ranges), *filled, *rules]

    async def _change(self, table: Table, changes: Sequence[NftChange]) -> list[Failure[NftChange]]:
        """Make all changes at one moment; without those of a set, if the kernel refuses some of these."""
        refused = await self._transact(table, changes)
        names = {failure.change.set.name for failure in refused if isinstance(failure.change, ElementChange)}
        if names:
            rest = [one for one in changes if not isinstance(one, ElementChange) or one.set.name not in names]
            refused += await self._transact(table, rest)
        return refused

    async def _transact(self, table: Table, changes: Sequence[NftChange]) -> list[Failure[NftChange]]:
        return await self._nftables.transact(table, changes) if changes else []

    async def _delete(self, families: Iterable[Family]) -> None:
        for family in list(families):
            refused = await self._nftables.transact(POLICY_TABLES[family], [DeleteTable()])
            _raise(POLICY_TABLES[family], [failure for failure in refused if failure.errno != errno.ENOENT])
            self._present.discard(family)


def _raise(table: Table, refused: Iterable[Failure[NftChange]]) -> None:
    for failure in refused:
        raise KernelError(f"table {table}: {failure}; trying again", errno=failure.errno)


def _put(elements: Elements, *placed: tuple[NftSet, Element]) -> None:
    for definition, element in placed:
        elements.setdefault(definition, []).append(element)


def _with_next(pods: Mapping[str, PodGroups]) -> bool:
    return any(groups.is_of_cluster for groups in pods.values())


def _make_base(family: Family, difference: Difference, extra: Extra) -> None:
    difference.made.append(AddTable())
    _make(difference, base_sets(extra), base_chains(family, extra))


def _make(difference: Difference, sets: Iterable[NftSet], chains: Mapping[Chain, Iterable[NftRule]]) -> None:
    difference.made += map(AddSet, sets)
    for chain, rules in chains.items():
        difference.make(chain, rules)


def _change_part(key: GroupKey, change: GroupChange, found: Mapping[Family, Difference], log_group: int | None) -> None:
    group, sets = Group.of(key), GroupSets.of(key)
    for family, difference in found.items():
        if change.is_new:
            _make_part(key, group_rules(family, group, log_group), sets.all, difference)
        difference.parts.append((group, sets))
    for element in change.added:
        difference = found[family_of(element.network)]
        _put(difference.filled if change.is_new else difference.added, sets.place(*element))
    for element in change.removed:
        _put(found[family_of(element.network)].removed, sets.place(*element))


def _make_part(key: GroupKey, rules: Iterable[NftRule], sets: Iterable[NftSet], difference: Difference) -> None:
    """Make sets of a part, and with the last one of its group the chain."""
    difference.made += map(AddSet, sets)
    if _is_last(key):
        difference.make(Chain(Group.of(key).chain), rules)


def _is_logging(change: NftChange) -> bool:
    return isinstance(change, AddRule) and change.rule.comment == LOGGED


def _is_unusable(state: TableState, sets: Mapping[str, NftSet]) -> bool:
    """Whether the table lacks some base chain or set, or has something of another kind: it is made anew."""
    base_sets = {definition.name for definition in BASE_SETS}
    chains = {chain.name: chain for chain in BASE_CHAINS}
    return (
        state.is_dormant
        or not base_sets <= state.sets.keys()
        or not chains.keys() <= state.chains.keys()
        or any(sets.get(name, found) != found for name, found in state.sets.items())
        or any(chains.get(name, Chain(name)) != found for name, found in state.chains.items())
    )


def _compare_base(family: Family, state: TableState, difference: Difference, extra: Extra) -> None:
    if not state.chains:
        _make_base(family, difference, extra)
        return
    difference.made += [AddSet(one) for one in base_sets(extra) if one.name not in state.sets]
    for chain, rules in base_chains(family, extra).items():
        _compare_rules(state, chain.name, rules, difference)


def _compare_next(family: Family, state: TableState, difference: Difference) -> None:
    chains = next_chains(family)
    missing = {chain: rules for chain, rules in chains.items() if chain.name not in state.chains}
    difference.drift += [f"chain {chain.name} was missing" for chain in missing]
    _make(difference, [one for one in NEXT_SETS if one.name not in state.sets], missing)
    for chain in chains.keys() - missing.keys():
        _compare_rules(state, chain.name, chains[chain], difference)


def _is_last(key: GroupKey) -> bool:
    """Whether it is the last part of its group, so that with its sets all are there that the chain's rules name."""
    return key.part == len(key.parts) - 1


def _compare_part(key: GroupKey, rules: list[NftRule], state: TableState, difference: Difference) -> bool:
    """Whether the chain of the group is missing, so that no packet is led there yet."""
    group, sets = Group.of(key), GroupSets.of(key)
    difference.parts.append((group, sets))
    missing = [definition for definition in sets.all if definition.name not in state.sets]
    if group.chain not in state.chains:
        if key.part == 0:
            difference.drift.append(f"chain {group.chain} was missing")
        _make_part(key, rules, missing, difference)
        return True
    difference.made += map(AddSet, missing)
    if _is_last(key):
        _compare_rules(state, group.chain, rules, difference)
    return False


def _compare_rules(state: TableState, chain: str, wanted: list[NftRule], difference: Difference) -> None:
    if not are_same([rule for _, rule in state.rules if rule.chain == chain], wanted):
        difference.drift.append(f"chain {chain} had other rules")
        difference.made += [FlushChain(chain), *map(AddRule, wanted)]


def _delete_others(state: TableState, chains: set[str], sets: Collection[str], difference: Difference) -> None:
    """Delete what is not of the plan; base chains are."""
    others = [name for name, chain in state.chains.items() if name not in chains and chain not in BASE_CHAINS]
    foreign = [name for name in state.sets if name not in sets and not name.startswith(ANONYMOUS)]
    difference.drift += [f"chain {name} is not of the plan" for name in others]
    difference.drift += [f"set {name} is not of the plan" for name in foreign]
    difference.gone += _deletions(others, foreign)


def _deletions(chains: Sequence[str], sets: Iterable[str]) -> list[NftChange]:
    return [*map(FlushChain, chains), *map(DeleteSet, sets), *map(DeleteChain, chains)]


def _element_changes(kind: type[AddElements | DeleteElements], elements: Elements) -> list[ElementChange]:
    return [kind(definition, tuple(of_set)) for definition, of_set in elements.items() if of_set]
