"""What ClusterNetworkPolicies say of a peer: of their rules in order, the first that matches a port counts.

The kernel is given no order of rules. Parts of a group (`model.policy_plan.Part`) have what becomes of each range of
ports, after all rules. Ranges of different actions do not overlap, and all ports together (ANY) come last: so "TCP 25
is denied, then all is accepted" is two elements, the first of which counts.

A pod that a rule names may be within a network that another rule names. To cut its address out would make some twenty
networks of one, again with each pod that comes. Therefore parts of pods are asked first. They have the whole verdict of
each address that a selector names, also what rules say of networks around it, until the last rule that names the pod;
what is left after it, the parts of networks have. Networks within each other are cut where their verdicts differ: that
happens only when rules change.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import product
from typing import NamedTuple

from kroute.model.addresses import network
from kroute.model.policy_plan import ANY, Action, Direction, GroupKey, Part, PortRange
from kroute.model.steps import Steps, parts
from kroute.planning.policies.peers import Identity, Selection
from kroute.planning.policies.rules import (
    Network,
    PeerSelector,
    Ports,
    Ranges,
    Rule,
    named,
    prefix_of,
    remaining,
    without,
)

Verdict = Mapping[Action, tuple[PortRange, ...]]
"""What becomes of ranges of ports. What is in none of them is left to others."""
_NOTHING: Verdict = {}


def parts_of(rules: Collection[Rule]) -> tuple[Part, ...]:
    """The parts that a group with these rules needs, in the order in which they are asked.

    What rules say of networks, the parts of pods say too.
    """
    needed = {(False, rule.action) for rule in rules if rule.blocks}
    if any(rule.peers for rule in rules):
        needed |= {(True, rule.action) for rule in rules}
    return tuple([Part(*one) for one in product((True, False), Action) if one in needed])


class Claim(NamedTuple):
    """What a rule, by its number, says of ranges of ports."""

    number: int
    action: Action
    ranges: Ranges


class _Cell(NamedTuple):
    """A network with one verdict, but for the networks within it that have another one."""

    network: Network
    verdict: Verdict
    holes: list[Network]


class FirstMatch:
    """The rules of a group, by what they are about."""

    def __init__(self, key: GroupKey) -> None:
        self._parts: tuple[Part, ...] = key.parts
        self._numbers = dict(key.ports)
        self._of_peer = key.direction is Direction.EGRESS
        self._of_pods: dict[Selection, list[tuple[int, Action, Ports]]] = {}
        self._of_blocks: dict[int, list[Claim]] = {}
        """By their prefixes (`Network`)."""
        self._lengths: list[int] = []
        """Of these prefixes, in bits, the longest first."""
        self._cells: dict[str, Verdict] = {}
        self.units = 3
        """What a decision takes, at most."""

    def take(self, rules: Iterable[Rule], selections: Mapping[PeerSelector, Selection]) -> Steps[set[str]]:
        """Sort the rules by what they are about; to be called once. Returns the networks that have a verdict."""
        blocks: set[Network] = set()
        for number, rule in enumerate(rules):
            for peer in rule.peers:
                self._of_pods.setdefault(selections[peer], []).append((number, rule.action, rule.ports))
            claim = Claim(number, rule.action, rule.ports.resolved(self._numbers))
            for part in parts(rule.blocks):
                for block in part:
                    self._of_blocks.setdefault(block.prefix, []).append(claim)
                blocks.update(part)
                yield len(part)
            yield 1 + len(rule.peers)
            self.units += 1
        self._lengths = sorted({prefix.bit_length() for prefix in self._of_blocks}, reverse=True)
        for cell in (yield from self._cut(blocks)):
            holes = [network(hole.text) for hole in cell.holes]
            for left in parts(remaining(network(cell.network.text), holes)):
                self._cells |= dict.fromkeys([named(one).text for one in left], cell.verdict)
                yield 5 * len(left)
        return {*self._cells}

    def selections(self) -> Iterable[Selection]:
        """What the rules name of pods."""
        return self._of_pods

    @property
    def has_blocks(self) -> bool:
        """Whether a decision depends on the network; else it is the same for all pods of an identity."""
        return bool(self._of_blocks)

    def decide(self, network: str, identity: Identity | None) -> tuple[tuple[PortRange, ...], ...]:
        """What each part has of the network. `identity` is that of the pods with this address."""
        of_pod = self._of_pod(network, identity) if identity is not None else _NOTHING
        of_network = self._cells.get(network, _NOTHING)
        return tuple([(of_pod if part.of_pods else of_network).get(part.action, ()) for part in self._parts])

    def _of_pod(self, network: str, identity: Identity) -> Verdict:
        """The verdict of the rules until the last that names the pods with this address."""
        numbers = identity.kind.ports if self._of_peer else self._numbers
        claims = [
            Claim(number, action, ports.resolved(numbers))
            for selection in identity.selections & self._of_pods.keys()
            for number, action, ports in self._of_pods[selection]
        ]
        last = max([claim.number for claim in claims if claim.ranges], default=0)
        return _verdict([*claims, *(claim for claim in self._around(prefix_of(network)) if claim.number < last)])

    def _around(self, prefix: int) -> Iterable[Claim]:
        """What rules say of the network of this prefix, and of those around it."""
        longest = prefix.bit_length()
        return (
            claim
            for length in self._lengths
            if length <= longest
            for claim in self._of_blocks.get(prefix >> (longest - length), ())
        )

    def _cut(self, blocks: Iterable[Network]) -> Steps[Iterable[_Cell]]:
        """The networks, without those that say the same as the one around them."""
        cells: dict[int, _Cell] = {}
        for part in parts(sorted(blocks, key=lambda block: block.prefix.bit_length()), self.units):
            for block in part:
                longest = block.prefix.bit_length()
                outer = [cells.get(block.prefix >> (longest - length)) for length in self._lengths if length < longest]
                around = next(filter(None, outer), None)
                verdict = _verdict(self._around(block.prefix))
                if around is not None and around.verdict == verdict:
                    continue
                if around is not None:
                    around.holes.append(block)
                cells[block.prefix] = _Cell(block, verdict, [])
            yield self.units * len(part)
        return cells.values()


def _verdict(claims: Iterable[Claim]) -> Verdict:
    """What the first claims say. With ANY, the other ranges of its action need not be said."""
    found: dict[Action, tuple[PortRange, ...]] = {}
    covered: Ranges = frozenset()
    for _, action, ranges in sorted(claims, key=lambda claim: claim.number):
        left = without(ranges, covered)
        if ANY in left:
            return {**found, action: left}
        if left:
            found[action] = found.get(action, ()) + left
            covered |= ranges
    return found
