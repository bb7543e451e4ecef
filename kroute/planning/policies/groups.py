"""What the policies of a group of pods say together: networks of peers, each with ranges of ports.

NetworkPolicies allow what any of their rules allows (`Allowed`). Of the rules of ClusterNetworkPolicies the first that
matches counts (`first_match` beside this).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain

from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol
from kroute.model.policy_plan import Direction, GroupChange, GroupKey, PortElement, PortRange, Tier
from kroute.model.steps import Steps, parts
from kroute.planning.policies.first_match import FirstMatch
from kroute.planning.policies.peers import Identity, Selection
from kroute.planning.policies.rules import Network, PeerSelector, Ports, Ranges, Rule, prefix_of, without

NamedRule = tuple[ObjectKey, Rule]
"""A rule, and the policy that it is of."""

Decided = tuple[tuple[PortRange, ...], ...]
"""The ranges of ports that each part of a group has."""

_NOTHING: Ranges = frozenset()


class Group:
    """The pods that the same policies of a tier select in one direction.

    What is said of a network is decided from the rules alone, and again whenever a pod with the address enters or
    leaves one of the selections. Where no rule has a block, it is the same for all pods of an Identity.
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
        self._elements: dict[str | Identity | None, Decided] = {}
        """What the pods of an identity have, or, if the rules have blocks, a network."""
        self._touched: set[str] | None = None
        """The networks to decide again; None: all."""
        self._verdicts: Allowed | FirstMatch = Allowed(key)

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

    def elements(self) -> Iterator[tuple[GroupKey, Iterator[tuple[str, PortRange]]]]:
        """All that each part has now: networks with their ranges of ports."""
        return ((key, self._elements_of(key.part)) for key in self.key.of_parts())

    def matching(
        self, network: str, identity: Identity | None, protocol: Protocol | None, port: int
    ) -> Steps[list[NamedRule]]:
        """The rules that are about this port of a peer. `identity` is that of the pods with its address."""
        numbers, prefix, found = dict(self.key.ports), prefix_of(network), []
        of_peer = identity.kind.ports if identity is not None and self.key.direction is Direction.EGRESS else numbers
        selections = identity.selections if identity is not None else frozenset[Selection]()
        left_out = self.left_out
        for policy, rule in [named for number, named in enumerate(self.rules) if number not in left_out]:
            selected = any(self.selections.get(peer) in selections for peer in rule.peers)
            is_matched = selected and rule.ports.include(protocol, port, of_peer)
            if not is_matched and rule.ports.include(protocol, port, numbers):
                for part in parts(rule.blocks):
                    is_matched = is_matched or any(block.has(prefix) for block in part)
                    yield len(part)
            if is_matched:
                found.append((policy, rule))
            yield 1 + len(rule.peers) + rule.ports.count
        return found

    def update(
        self, at: Mapping[str, Identity], moved: Mapping[str, Identity | None], *, differs: bool
    ) -> Steps[dict[GroupKey, GroupChange]]:
        """Decide again what was touched. `at` are the identities of the pods that have addresses, `moved` those that
        addresses had at the last update and have no more. Returns the difference, if it is asked for.
        """
        touched, self._touched, before = self._touched, set(), self._elements
        if touched is None:
            touched, self._elements = (yield from self._apply_rules(moved)), {}
        added: list[list[PortElement]] = [[] for _ in self.key.parts]
        removed: list[list[PortElement]] = [[] for _ in self.key.parts]
        fresh: dict[str | Identity | None, Decided] = {}
        same: dict[Decided, Decided] = {}
        verdicts, nothing = self._verdicts, ((),) * len(self.key.parts)
        for part in parts(touched, verdicts.units):
            for network in part:
                identity = at.get(network)
                former = moved.get(network, identity)
                place = network if verdicts.has_blocks else identity
                if place not in fresh:
                    decided = verdicts.decide(network, identity)
                    fresh[place] = same.setdefault(decided, decided)
                if former is not None and not former.networks:
                    fresh[former] = nothing
                had = before.get(network) or before.get(former) or nothing
                for number, (old, new) in enumerate(zip(had, fresh[place], strict=True) if differs else ()):
                    if old != new:
                        added[number] += [PortElement(network, *one) for one in {*new}.difference(old)]
                        removed[number] += [PortElement(network, *one) for one in {*old}.difference(new)]
            yield verdicts.units * len(part)
        for place, decided in fresh.items():
            self._elements.pop(place, None)
            if any(decided):
                self._elements[place] = decided
        is_new, self.is_new = self.is_new, False
        changes = zip(self.key.of_parts(), added, removed, strict=True)
        return {key: GroupChange(is_new, *_apart(new), *_apart(old)) for key, new, old in changes}

    def _elements_of(self, part: int) -> Iterator[tuple[str, PortRange]]:
        return (
            (network, one)
            for place, decided in self._elements.items()
            for network in _networks(place)
            for one in decided[part]
        )

    def _size(self, rule: Rule) -> int:
        """How many elements the rule may need. A pod that several peers select counts for each of them."""
        return (sum([self.selections[peer].size for peer in rule.peers]) + len(rule.blocks)) * rule.ports.count

    def _apply_rules(self, moved: Mapping[str, Identity | None]) -> Steps[set[str]]:
        """Take the rules that are not left out. Returns all networks of which they or those before say something."""
        self._verdicts = Allowed(self.key) if self.key.tier is Tier.NETWORK_POLICY else FirstMatch(self.key)
        left_out = self.left_out
        used = [rule for number, (_, rule) in enumerate(self.rules) if number not in left_out]
        found = yield from self._verdicts.take(used, self.selections)
        found.update([network for network, identity in moved.items() if identity in self._elements])
        members = (identity for selection in self._verdicts.selections() for identity in selection.members)
        for place in chain(self._elements, members):
            found.update(_networks(place))
            yield len(_networks(place))
        return found


class Allowed:
    """What NetworkPolicies allow a network: what rules say of it, without what they say of larger ones around it."""

    units = 3
    """What a decision takes."""

    def __init__(self, key: GroupKey) -> None:
        self._numbers = dict(key.ports)
        self._of_peer = key.direction is Direction.EGRESS
        self._ports: dict[Selection, list[Ports]] = {}
        self._blocks = _Blocks()

    def take(self, rules: Iterable[Rule], selections: Mapping[PeerSelector, Selection]) -> Steps[set[str]]:
        """Sort the rules by what they are about; to be called once. Returns the networks of their blocks."""
        found: set[str] = set()
        for rule in rules:
            for peer in rule.peers:
                self._ports.setdefault(selections[peer], []).append(rule.ports)
            ranges = rule.ports.resolved(self._numbers)
            for part in parts(rule.blocks if ranges else ()):
                self._blocks.add(part, ranges)
                found.update([block.text for block in part])
                yield len(part)
            yield 1 + len(rule.peers)
        return found

    def selections(self) -> Iterable[Selection]:
        """What the rules name of pods."""
        return self._ports

    @property
    def has_blocks(self) -> bool:
        """Whether a decision depends on the network; else it is the same for all pods of an identity."""
        return self._blocks.any

    def decide(self, network: str, identity: Identity | None) -> Decided:
        """What is allowed, in the one part. `identity` is that of the pods with this address."""
        allowed: list[Ranges] = []
        if identity is not None:
            numbers = identity.kind.ports if self._of_peer else self._numbers
            for selection in identity.selections & self._ports.keys():
                allowed += [ports.resolved(numbers) for ports in self._ports[selection]]
        return (self._blocks.decide(network, allowed),)


class _Blocks:
    """What networks are allowed by `ipBlock`, by their prefixes (`Network`)."""

    def __init__(self) -> None:
        self._ranges: dict[int, Ranges] = {}
        self._lengths: set[int] = set()

    @property
    def any(self) -> bool:
        return bool(self._ranges)

    def add(self, blocks: Iterable[Network], ranges: Ranges) -> None:
        for block in blocks:
            self._ranges[block.prefix] = _union([self._ranges.get(block.prefix), ranges])
            self._lengths.add(block.prefix.bit_length())

    def decide(self, network: str, allowed: list[Ranges]) -> tuple[PortRange, ...]:
        """What the network is allowed, if pods with the address are allowed that, and networks around it are not."""
        prefix = prefix_of(network) if self._ranges else 0
        surplus = [prefix.bit_length() - length for length in self._lengths]
        around = [self._ranges.get(prefix >> bits) for bits in surplus if bits > 0]
        return without(_union([*allowed, self._ranges.get(prefix)]), _union(around))


def _networks(place: str | Identity | None) -> Collection[str]:
    return (place,) if isinstance(place, str) else place.networks if place is not None else ()


def _apart(elements: list[PortElement]) -> tuple[tuple[str, ...], tuple[PortElement, ...]]:
    """Networks with all ports, and those with some."""
    whole = tuple([one.network for one in elements if one.protocol is None])
    return whole, tuple([one for one in elements if one.protocol is not None])


def _union(several: Iterable[Ranges | None]) -> Ranges:
    found = [ranges for ranges in several if ranges]
    return found[0] if len(found) == 1 else _NOTHING.union(*found)
