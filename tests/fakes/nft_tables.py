"""The tables of nf_tables of a fake kernel, and what the kernel refuses about them."""

import asyncio
import copy
import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_network

from kroute.kernel.netlink.message import attributes, to_text
from kroute.kernel.nftables.expressions import chain_named_by, parse_expression
from kroute.kernel.nftables.objects import (
    AddChain,
    AddElements,
    AddRule,
    AddSet,
    Chain,
    DeleteChain,
    DeleteElements,
    DeleteRule,
    DeleteSet,
    Element,
    FlushChain,
    FlushSet,
    NftChange,
    NftRule,
    NftSet,
    Table,
    has_ranges,
    is_interval,
    is_verdict_map,
)
from kroute.kernel.nftables.set_keys import encode_key, flags_of, key_length, key_type, parts_of

HOOKS_OF_TYPES = {
    "filter": {"prerouting", "input", "forward", "output", "postrouting"},
    "nat": {"prerouting", "input", "output", "postrouting"},
    "route": {"output"},
}
NAT_AFTER = -200
"""A chain of type nat has a priority above that of conntrack."""
HOOKS_OF_EXPRESSIONS = {
    "masq": {"postrouting"},
    "nat": {"postrouting", "input"},
    "dnat": {"prerouting", "output"},
    "reject": {"prerouting", "input", "forward", "output"},
}
"""Where a base chain may reach an expression; `nat` means that of a source, `dnat` the same of a destination."""
LONGEST_COMMENT = 127


@dataclass
class FakeNftSet:
    definition: NftSet
    elements: set[Element] = field(default_factory=set)


@dataclass
class FakeNftTable:
    """A table; `rules` are those of each chain, with their handles."""

    family: int
    sets: dict[str, FakeNftSet] = field(default_factory=dict)
    chains: dict[str, Chain] = field(default_factory=dict)
    rules: dict[str, list[tuple[int, NftRule]]] = field(default_factory=dict)
    lacking: set[str] = field(default_factory=set)
    next_handle: int = 1

    def copy(self) -> "FakeNftTable":
        return copy.deepcopy(self)

    def refusal(self, change: NftChange) -> int:
        """Make one change of something in the table; returns 0, or the errno with which the kernel refuses it."""
        match change:
            case AddSet(definition):
                return self._add_set(definition)
            case AddChain(chain):
                return self._add_chain(chain)
            case AddRule(rule):
                return self._add_rule(rule)
            case AddElements() | DeleteElements() | FlushSet():
                return self._change_elements(change)
            case _:
                return self._delete(change)

    def reached_from(self, name: str) -> Iterator[str]:
        """The chain and those that it leads to; raises RecursionError for a circle."""
        yield name
        for _handle, rule in self.rules.get(name, ()):
            for expression in rule.expressions:
                if target := chain_named_by(expression):
                    yield from self.reached_from(target)

    def _add_set(self, definition: NftSet) -> int:
        if definition.name in self.sets:
            return errno.EEXIST
        if (
            parts_of(self.family, key_type(self.family, definition.parts), flags_of(definition.parts))
            != definition.parts
        ):
            return errno.EINVAL
        self.sets[definition.name] = FakeNftSet(definition)
        return 0

    def _add_chain(self, chain: Chain) -> int:
        if chain.name in self.chains:
            return errno.EEXIST
        if chain.hook and (chain.type not in HOOKS_OF_TYPES or chain.type in self.lacking):
            return errno.ENOENT
        if chain.hook and chain.hook not in HOOKS_OF_TYPES[chain.type]:
            return errno.EOPNOTSUPP
        if chain.type == "nat" and chain.priority <= NAT_AFTER:
            return errno.EOPNOTSUPP
        self.chains[chain.name] = chain
        self.rules[chain.name] = []
        return 0

    def _add_rule(self, rule: NftRule) -> int:
        if rule.chain not in self.chains:
            return errno.ENOENT
        if len(rule.comment.encode()) > LONGEST_COMMENT:
            return errno.EINVAL
        loaded: set[int] = set()
        for expression in rule.expressions:
            if number := self._expression_refusal(expression, loaded):
                return number
        self.rules[rule.chain].append((self.next_handle, rule))
        self.next_handle += 1
        return self._reachability()

    def _expression_refusal(self, expression: bytes, loaded: set[int]) -> int:
        name, parts = parse_expression(expression)
        if name in self.lacking:
            return errno.ENOENT
        if name == "lookup":
            found = self.sets.get(to_text(parts[1]))
            if found is None:
                return errno.ENOENT
            begin = _register_byte(parts[2])
            key = range(begin, begin + key_length(self.family, found.definition.parts))
            return 0 if loaded.issuperset(key) else errno.ENODATA
        if target := chain_named_by(expression):
            if target not in self.chains:
                return errno.ENOENT
            return errno.EOPNOTSUPP if self.chains[target].hook else 0
        loaded.update(_loaded(name, parts))
        return 0

    def _reachability(self) -> int:
        """Whether base chains reach only what is for their type and hook, and in no circle."""
        for base in self.chains.values():
            if not base.hook:
                continue
            try:
                reached = set(self.reached_from(base.name))
            except RecursionError:
                return errno.EMLINK
            rules = [rule for name in reached for _handle, rule in self.rules[name]]
            for name, parts in (parse_expression(it) for rule in rules for it in rule.expressions):
                of_destination = name == "nat" and int.from_bytes(parts[1], "big") == 1
                if base.hook not in HOOKS_OF_EXPRESSIONS.get("dnat" if of_destination else name, {base.hook}):
                    return errno.EOPNOTSUPP
                if name in {"masq", "nat"} and base.type != "nat":
                    return errno.EOPNOTSUPP
        return 0

    def _change_elements(self, change: AddElements | DeleteElements | FlushSet) -> int:
        found = self.sets.get(change.name if isinstance(change, FlushSet) else change.set.name)
        if found is None:
            return errno.ENOENT
        if isinstance(change, FlushSet):
            found.elements.clear()
            return 0
        return self._change(found, change)

    def _change(self, found: FakeNftSet, change: AddElements | DeleteElements) -> int:
        for element in change.elements:
            if not self._fits(found.definition, change.set.parts, element):
                return errno.EINVAL
            if isinstance(change, AddElements) and is_verdict_map(found.definition.parts):
                if element[-1] not in self.chains:
                    return errno.ENOENT
                if any(other[:-1] == element[:-1] and other != element for other in found.elements):
                    return errno.EEXIST
            if isinstance(change, AddElements):
                if _overlaps(found, element):
                    return errno.EEXIST
                found.elements.add(element)
            elif element not in found.elements:
                return errno.ENOENT
            else:
                found.elements.remove(element)
        return 0

    def _fits(self, definition: NftSet, parts: tuple[str, ...], element: Element) -> bool:
        try:
            first, last = encode_key(self.family, parts, element)
        except ValueError:
            return False
        is_range = first != last
        return len(first) == key_length(self.family, definition.parts) and (
            is_interval(definition.parts) or has_ranges(definition.parts) or not is_range
        )

    def _delete(self, change: NftChange) -> int:
        number = 0
        match change:
            case DeleteSet(name):
                number = self._delete_set(name)
            case DeleteChain(name):
                number = self._delete_chain(name)
            case FlushChain(name):
                if name not in self.rules:
                    number = errno.ENOENT
                else:
                    self.rules[name].clear()
            case DeleteRule(chain, handle):
                kept = [it for it in self.rules.get(chain, ()) if it[0] != handle]
                if len(kept) == len(self.rules.get(chain, ())):
                    number = errno.ENOENT
                else:
                    self.rules[chain] = kept
        return number

    def _delete_set(self, name: str) -> int:
        if name not in self.sets:
            return errno.ENOENT
        parsed = (parse_expression(it) for rule in self._every_rule() for it in rule.expressions)
        if any(kind == "lookup" and to_text(parts[1]) == name for kind, parts in parsed):
            return errno.EBUSY
        del self.sets[name]
        return 0

    def _delete_chain(self, name: str) -> int:
        if name not in self.chains:
            return errno.ENOENT
        targets = {chain_named_by(it) for rule in self._every_rule() for it in rule.expressions}
        maps = [found for found in self.sets.values() if is_verdict_map(found.definition.parts)]
        targets |= {str(element[-1]) for found in maps for element in found.elements}
        if self.rules[name] or name in targets:
            return errno.EBUSY
        del self.chains[name], self.rules[name]
        return 0

    def _every_rule(self) -> Iterator[NftRule]:
        return (rule for rules in self.rules.values() for _handle, rule in rules)


@dataclass
class FakeNft:
    """All tables. A watcher is a client with the tables whose changes by others it wants to hear of."""

    tables: dict[Table, FakeNftTable] = field(default_factory=dict)
    generation: int = 1
    lacking: set[str] = field(default_factory=set)
    """Expressions ("masq"), types of chains ("route") and families ("ip6") that this kernel lacks."""
    watchers: list[tuple[object, set[Table], "asyncio.Queue[str]"]] = field(default_factory=list)

    def commit(self, table: Table, state: FakeNftTable | None, by: object) -> bool:
        """Replace a table by what a transaction made of it; returns whether that changed anything."""
        if self.tables.get(table) == state:
            return False
        self.generation += 1
        if state is None:
            del self.tables[table]
        else:
            self.tables[table] = state
        for watcher, tables, queue in self.watchers:
            if table in tables and watcher is not by:
                queue.put_nowait("another program (process 1)")
        return True


def _overlaps(found: FakeNftSet, element: Element) -> bool:
    """Whether a network overlaps another one that stands: the kernel refuses it, or confuses the two."""
    if element in found.elements:
        return False
    if has_ranges(found.definition.parts):
        return any(_have_a_packet_in_common(element, other) for other in found.elements)
    if not is_interval(found.definition.parts):
        return False
    network = ip_network(str(element[0]))
    return any(network.overlaps(ip_network(str(it[0]))) for it in found.elements)


def _have_a_packet_in_common(one: Element, other: Element) -> bool:
    return (
        ip_network(str(one[0])).overlaps(ip_network(str(other[0])))
        and one[1] == other[1]
        and max(int(one[2]), int(other[2])) <= min(int(one[3]), int(other[3]))
    )


def _loaded(name: str, parts: dict[int, bytes]) -> range:
    """The bytes of the registers that an expression loads, in steps of four."""
    length = 0
    if name == "payload":
        length = int.from_bytes(parts[4], "big")
    elif name in {"meta", "ct"} and 1 in parts:
        length = 16 if name == "meta" and int.from_bytes(parts[2], "big") in {6, 7} else 4
    elif name == "immediate" and 1 in attributes(parts[2]):
        length = len(attributes(parts[2])[1])
    begin = _register_byte(parts[1]) if length else 0
    return range(begin, begin + (length + 3 & ~3))


def _register_byte(number: bytes) -> int:
    register = int.from_bytes(number, "big")
    return (register - 1) * 16 if register < 8 else (register - 8) * 4
