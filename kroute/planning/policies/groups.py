"""What the policies of a group of pods allow together: networks of peers, each with ranges of ports."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol
from kroute.model.policy_plan import Direction, GroupChange, GroupKey, PortElement, PortRange
from kroute.model.steps import Steps, parts
from kroute.planning.policies.peers import Identity, Selection
from kroute.planning.policies.rules import Network, PeerSelector, Ports, Rule, prefix_of, without

Ranges = frozenset[PortRange]
NamedRule = tuple[ObjectKey, Rule]
"""A rule, and the policy that it is of."""

_NOTHING: Ranges = frozenset()
_UNITS = 3
"""What a network takes for which is decided again what it is allowed."""


class Group:
    """The pods that the same policies isolate in one direction.

    What a network is allowed is what the rules say of it, without what they say of larger networks around it. It is
    decided from the rules alone, and again whenever a pod with the address enters or leaves one of the selections.
    """

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.pods: set[str] = set()
        """The addresses of its pods."""
        self.rules: Sequence[NamedRule] = ()
        self.refused: Set[int] = frozenset()
        """The numbers of those rules for which there is no room, whatever they select."""
        self.left_out: Set[int] = frozenset()
        """The same, and those for which there is no room with all that they select."""
        self.selections: Mapping[PeerSelector, Selection] = {}
        self.is_new = True
        self._sizes: dict[int, int] = {}
        self._allowed: dict[str, tuple[PortRange, ...]] = {}
        self._touched: set[str] | None = None
        """The networks to decide again; None: all."""
        self._ports: dict[Selection, list[Ports]] = {}
        self._blocks = _Blocks()

    @property
    def is_touched(self) -> bool:
        """Whether something of it is to be decided again."""
        return self._touched is None or bool(self._touched)

    def set_rules(
        self, rules: Sequence[NamedRule], refused: Set[int], selections: Mapping[PeerSelector, Selection]
    ) -> None:
        """Take other rules, and what the selectors of those that are not refused select."""
        self.rules, self.refused, self.selections, self._touched = rules, refused, selections, None

    def touch(self, networks: Iterable[str]) -> None:
        """Note that pods with these addresses have entered or left a selection."""
        if self._touched is not None:
            self._touched.update(networks)

    def admit(self, room: int) -> int:
        """Leave out the rules for which there is no room, and use the others. Returns what those take.

        They are taken in their order, and each that does not fit is left out. So it depends alone on what the cluster
        has now.
        """
        if self.is_touched:
            numbered = enumerate(self.rules)
            self._sizes = {number: self._size(rule) for number, (_, rule) in numbered if number not in self.refused}
        taken, left_out = 0, {*self.refused}
        for number, size in self._sizes.items():
            if taken + size > room:
                left_out.add(number)
            else:
                taken += size
        if left_out != self.left_out:
            self.left_out, self._touched = left_out, None
        return taken

    def elements(self) -> Iterator[tuple[str, PortRange]]:
        """All that is allowed now: networks with their ranges of ports."""
        return ((network, one) for network, ranges in self._allowed.items() for one in ranges)

    def allowing(
        self, network: str, identity: Identity | None, protocol: Protocol | None, port: int
    ) -> Steps[list[NamedRule]]:
        """The rules that allow a peer this port. `identity` is that of the pods with its address."""
        numbers, prefix, found = dict(self.key.ports), prefix_of(network), []
        of_peer = identity.ports if identity is not None and self.key.direction is Direction.EGRESS else numbers
        selections = identity.selections if identity is not None else frozenset[Selection]()
        left_out = self.left_out
        for policy, rule in [named for number, named in enumerate(self.rules) if number not in left_out]:
            selected = any(self.selections.get(peer) in selections for peer in rule.peers)
            is_allowed = selected and rule.ports.include(protocol, port, of_peer)
            if not is_allowed and rule.ports.include(protocol, port, numbers):
                for part in parts(rule.blocks):
                    is_allowed = is_allowed or any(block.has(prefix) for block in part)
                    yield len(part)
            if is_allowed:
                found.append((policy, rule))
            yield 1 + len(rule.peers) + rule.ports.count
        return found

    def update(self, identities: Mapping[str, Identity]) -> Steps[GroupChange]:
        """Decide again what was touched. `identities` are those of the pods that have addresses."""
        touched, self._touched = self._touched, set()
        if touched is None:
            touched = {*self._allowed, *(yield from self._apply_rules())}
            for selection in self._ports:
                for identity in selection.members:
                    touched.update(identity.networks)
                    yield len(identity.networks)
        added: list[PortElement] = []
        removed: list[PortElement] = []
        for part in parts(touched):
            for network in part:
                before = self._allowed.pop(network, ())
                after = self._decide(network, identities.get(network))
                if after:
                    self._allowed[network] = after
                if before != after:
                    added += [PortElement(network, *one) for one in {*after}.difference(before)]
                    removed += [PortElement(network, *one) for one in {*before}.difference(after)]
            yield _UNITS * len(part)
        is_new, self.is_new = self.is_new, False
        return GroupChange(is_new, *_apart(added), *_apart(removed))

    def _size(self, rule: Rule) -> int:
        """How many elements the rule may need. A pod that several peers select counts for each of them."""
        return (sum([self.selections[peer].size for peer in rule.peers]) + len(rule.blocks)) * rule.ports.count

    def _apply_rules(self) -> Steps[set[str]]:
        """Sort the rules that are not left out by what they are about. Returns the networks of their blocks."""
        self._ports, self._blocks, found = {}, _Blocks(), set()
        numbers = dict(self.key.ports)
        for rule in [rule for number, (_, rule) in enumerate(self.rules) if number not in self.left_out]:
            for peer in rule.peers:
                self._ports.setdefault(self.selections[peer], []).append(rule.ports)
            ranges = rule.ports.resolved(numbers)
            for part in parts(rule.blocks if ranges else ()):
                self._blocks.add(part, ranges)
                found.update([block.text for block in part])
                yield len(part)
            yield 1 + len(rule.peers)
        return found

    def _decide(self, network: str, identity: Identity | None) -> tuple[PortRange, ...]:
        allowed: list[Ranges] = []
        if identity is not None:
            numbers = identity.ports if self.key.direction is Direction.EGRESS else dict(self.key.ports)
            for selection in identity.selections & self._ports.keys():
                allowed += [ports.resolved(numbers) for ports in self._ports[selection]]
        return self._blocks.decide(network, allowed)


class _Blocks:
    """What networks are allowed by `ipBlock`, by their prefixes (`Network`)."""

    def __init__(self) -> None:
        self._ranges: dict[int, Ranges] = {}
        self._lengths: set[int] = set()

    def add(self, blocks: Iterable[Network], ranges: Ranges) -> None:
        for block in blocks:
            self._ranges[block.prefix] = self._ranges.get(block.prefix, _NOTHING) | ranges
            self._lengths.add(block.prefix.bit_length())

    def decide(self, network: str, allowed: list[Ranges]) -> tuple[PortRange, ...]:
        """What the network is allowed, if pods with the address are allowed that, and networks around it are not."""
        prefix = prefix_of(network) if self._ranges else 0
        surplus = [prefix.bit_length() - length for length in self._lengths]
        around = [self._ranges.get(prefix >> bits) for bits in surplus if bits > 0]
        return without(_union([*allowed, self._ranges.get(prefix)]), _union(around))


def _apart(elements: list[PortElement]) -> tuple[tuple[str, ...], tuple[PortElement, ...]]:
    """Networks with all ports, and those with some."""
    whole = tuple([one.network for one in elements if one.protocol is None])
    return whole, tuple([one for one in elements if one.protocol is not None])


def _union(several: Iterable[Ranges | None]) -> Ranges:
    found = [ranges for ranges in several if ranges]
    return found[0] if len(found) == 1 else _NOTHING.union(*found)
