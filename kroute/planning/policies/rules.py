"""Read a NetworkPolicy: which pods it selects, and for each direction that it isolates, the peers and ports it allows.

What cannot be understood allows nothing and becomes a Problem. The API server refuses most of it; a manifest file, or
an API server that knows more than kroute, may not. `cluster_rules` beside this reads ClusterNetworkPolicies into the
same rules.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, summarize_address_range
from socket import AF_INET, AF_INET6, inet_pton
from sys import maxsize
from typing import NamedTuple

import msgspec

from kroute.model.addresses import canonical, is_subnet_of, network
from kroute.model.objects import (
    IPBlock,
    LabelSelector,
    NetworkPolicy,
    NetworkPolicyPeer,
    NetworkPolicyPort,
    NetworkPolicyRule,
    NetworkPolicySpec,
)
from kroute.model.plan import Problem, Problems, Protocol, quoted
from kroute.model.policy_plan import ANY, LAST_PORT, Action, Direction, PortName, PortRange, Tier
from kroute.model.steps import Steps, parts

INVALID, TOO_LARGE = "InvalidNetworkPolicy", "NetworkPolicyTooLarge"

SMALL = 16
"""So many ranges are remembered together with what they make: most peers are allowed the same few ports."""
MOST_CONDITIONS = 100
"""Conditions of one selector."""


class Limits(NamedTuple):
    """How much NetworkPolicies may take of a node. A rule beyond allows nothing, and no other namespace notices.

    `elements` are what a group allows: 10,000 pods with six ranges of ports each. `of_namespace` are those of all
    groups of a namespace together, each of some 100 bytes here and as many in the kernel. `selectors` are the different
    ones of peers in a namespace: labels of all pods are compared with each. How many policies a namespace has is for a
    ResourceQuota to say.
    """

    elements: int = 65_536
    of_namespace: int = 262_144
    selectors: int = 2_000


DEFAULTS = Limits()
NO_LIMITS = Limits(maxsize, maxsize, maxsize)
"""Of ClusterNetworkPolicies. Those who may write them may write anything; and to leave out a rule that denies or passes
would have to mean that everything is denied."""


Condition = tuple[str, str, frozenset[str]]
"""What a label has to be: its key, an operator, values; none for Exists and DoesNotExist."""
Selector = frozenset[Condition]
"""Selects the labels for which all conditions hold."""

_NEEDS_VALUES = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}


class PeerSelector(NamedTuple):
    """Pods that a policy or a rule names: in the namespace, or, if that is empty, in the selected ones. None: in
    whichever.
    """

    namespace: str
    namespaces: Selector | None
    pods: Selector


EVERY_POD = PeerSelector("", None, frozenset())


class Network(NamedTuple):
    """A network in canonical text, and its prefix as a number: a 1, another 1 for IPv6 or a 0, and its first bits.

    So the prefix of the network around it that is one bit shorter is half of that, rounded down.
    """

    text: str
    prefix: int

    def has(self, prefix: int) -> bool:
        """Whether the network of this prefix is within it."""
        bits = prefix.bit_length() - self.prefix.bit_length()
        return bits >= 0 and prefix >> bits == self.prefix


EVERYWHERE = (Network("0.0.0.0/0", 0b10), Network("::/0", 0b11))


def named(one: IPv4Network | IPv6Network) -> Network:
    """The network with its text and its prefix."""
    text = f"{canonical(str(one.network_address))}/{one.prefixlen}"
    return Network(text, prefix_of(text))


Ranges = frozenset[PortRange]


class Ports(msgspec.Struct, frozen=True):
    """The ports of a rule: ranges that do not overlap, and the names of ports."""

    ranges: Ranges
    names: frozenset[PortName] = frozenset()

    @property
    def count(self) -> int:
        """How many elements a peer has, at most."""
        return len(self.ranges) + len(self.names)

    def resolved(self, numbers: Mapping[PortName, int]) -> Ranges:
        """The ranges, with those names that have a number."""
        if not self.names:
            return self.ranges
        known = [name for name in self.names if name in numbers]
        return self.ranges.union([PortRange(name.protocol, numbers[name], numbers[name]) for name in known])

    def include(self, protocol: Protocol | None, port: int, numbers: Mapping[PortName, int]) -> bool:
        """Whether the port is one of them. None: it is of a protocol without ports."""
        return any(
            one.protocol in {None, protocol} and one.first <= port <= one.last
            for one in self.resolved(numbers)
            if protocol is not None or one == ANY
        )


EVERY_PORT = Ports(frozenset({ANY}))


class Rule(msgspec.Struct, frozen=True):
    """A rule that matches something. `name` says where the policy has it: `ingress[0]`."""

    name: str
    peers: tuple[PeerSelector, ...]
    blocks: tuple[Network, ...]
    ports: Ports
    action: Action = Action.ACCEPT

    @property
    def parts(self) -> int:
        """How large it is."""
        return len(self.peers) + len(self.blocks) + self.ports.count


class PolicyRules(msgspec.Struct, frozen=True):
    """A policy as it was understood. `rules` has the directions for which it counts. Without a `selector` it selects
    no pod at all. Of the policies of a tier, those with the lowest `priority` come first.
    """

    selector: PeerSelector | None
    rules: Mapping[Direction, tuple[Rule, ...]]
    problems: tuple[Problem, ...] = ()
    uid: str = ""
    tier: Tier = Tier.NETWORK_POLICY
    priority: int = 0


class Unreadable(Exception):  # noqa: N818  no error of the program
    """A field that cannot be understood: its name, what is wrong, what is allowed."""


def holds(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether the selector selects an object with these labels. NotIn and DoesNotExist also hold without the label."""
    for key, operator, values in selector:
        has_it = labels.get(key) in values if values else key in labels
        if has_it != (operator in {"In", "Exists"}):
            return False
    return True


def reading(policy: NetworkPolicy, limits: Limits) -> Steps[PolicyRules]:
    """Read a policy, in steps. Never fails."""
    spec, problems = policy.spec, Problems()
    selector: PeerSelector | None = None
    try:
        pods = read_selector(spec.pod_selector, "podSelector")
        selector = PeerSelector(policy.metadata.namespace, None, pods)
    except Unreadable as error:
        problems.append(problem_of(error, "the policy selects no pod"))
    rules: dict[Direction, tuple[Rule, ...]] = {}
    for direction in _directions(spec, problems):
        found = []
        written = spec.ingress if direction is Direction.INGRESS else spec.egress
        for number, rule in enumerate(written or ()):
            reader = _RuleReader(policy.metadata.namespace, direction, number, limits, problems)
            if (understood := (yield from reader.read(rule))) is not None:
                found.append(understood)
        rules[direction] = tuple(found)
    return PolicyRules(selector, rules, problems.all(), policy.metadata.uid)


def _directions(spec: NetworkPolicySpec, problems: Problems) -> list[Direction]:
    """The directions in which the policy isolates: `policyTypes`, and without a known one what the API says then."""
    types = spec.policy_types or ()
    for text in sorted({*types} - {*Direction}):
        rest = "is not known and left out. Allowed: Ingress and Egress."
        problems.append(Problem.about(INVALID, f"policyTypes {quoted(text)}", rest))
    known = [direction for direction in Direction if direction in types]
    return known or [Direction.INGRESS, *([Direction.EGRESS] if spec.egress else [])]


class _RuleReader:
    """Reads a rule of a policy."""

    def __init__(self, namespace: str, direction: Direction, number: int, limits: Limits, problems: Problems) -> None:
        self._namespace = namespace
        self._direction = direction
        self._name = f"{direction.lower()}[{number}]"
        self._limits = limits
        self._problems = problems

    def read(self, rule: NetworkPolicyRule) -> Steps[Rule | None]:
        """The rule as far as it is understood; None: it allows nothing."""
        is_ingress = self._direction is Direction.INGRESS
        ports = (yield from self._ports(rule.ports)) if rule.ports else EVERY_PORT
        if not ports.count:
            return None
        written = rule.sources if is_ingress else rule.destinations
        if not written:
            return Rule(self._name, (EVERY_POD,) if ports.names and not is_ingress else (), EVERYWHERE, ports)
        found: dict[PeerSelector | Network, None] = {}
        for number, peer in enumerate(written):
            where = f"{self._name}.{'from' if is_ingress else 'to'}[{number}]"
            try:
                found |= dict.fromkeys((yield from self._peers(peer, where)))
            except Unreadable as error:
                self._problems.append(problem_of(error, "this peer allows nothing"))
        peers = tuple([one for one in found if isinstance(one, PeerSelector)])
        blocks = tuple([one for one in found if isinstance(one, Network)])
        if ports.names and not is_ingress and blocks:
            rest = "has an ipBlock and the name of a port, which allow nothing together. Write the port's number."
            self._problems.append(Problem.about(INVALID, self._name, rest))
        return Rule(self._name, peers, blocks, ports)

    def _peers(self, peer: NetworkPolicyPeer, where: str) -> Steps[Sequence[PeerSelector | Network]]:
        pods, namespaces = peer.pod_selector, peer.namespace_selector
        if (peer.ip_block is None) == (pods is None and namespaces is None):
            wrong = "names no peer" if peer.ip_block is None else "has an ipBlock and a selector"
            raise Unreadable(where, wrong, "podSelector and namespaceSelector, or ipBlock")
        if peer.ip_block is not None:
            return (yield from read_block(peer.ip_block, f"{where}.ipBlock", self._limits.elements))
        yield 2
        of_pods = read_selector(pods, f"{where}.podSelector")
        if namespaces is None:
            return [PeerSelector(self._namespace, None, of_pods)]
        return [PeerSelector("", read_selector(namespaces, f"{where}.namespaceSelector"), of_pods)]

    def _ports(self, written: Sequence[NetworkPolicyPort]) -> Steps[Ports]:
        found: set[PortRange | PortName] = set()
        for part in parts(enumerate(written)):
            for number, port in part:
                try:
                    found.add(_port(port, f"{self._name}.ports[{number}]"))
                except Unreadable as error:
                    self._problems.append(problem_of(error, "this port allows nothing"))
            yield 2 * len(part)
        ranges = without(frozenset([one for one in found if isinstance(one, PortRange)]))
        return Ports(frozenset(ranges), frozenset([one for one in found if isinstance(one, PortName)]))


def problem_of(error: Unreadable, consequence: str) -> Problem:
    """The Problem of a field that cannot be understood."""
    subject, wrong, allowed = error.args
    return Problem.about(INVALID, subject, f"{wrong}, so {consequence}. Allowed: {allowed}.")


def read_selector(written: LabelSelector | None, where: str) -> Selector:
    """What the field `where` selects. Raises Unreadable."""
    labels, expressions = (written.match_labels, written.match_expressions) if written is not None else (None, None)
    if len(labels or ()) + len(expressions or ()) > MOST_CONDITIONS:
        raise Unreadable(where, "has too many conditions", f"{MOST_CONDITIONS}")
    found = {(key, "In", frozenset({value})) for key, value in (labels or {}).items()}
    for number, one in enumerate(expressions or ()):
        subject = f"{where}.matchExpressions[{number}]"
        if one.operator not in _NEEDS_VALUES:
            allowed = "In, NotIn, Exists and DoesNotExist"
            raise Unreadable(subject, f"has an unknown operator, {quoted(one.operator)}", allowed)
        if _NEEDS_VALUES[one.operator] != bool(one.values):
            wrong = "has values" if one.values else "has no values"
            raise Unreadable(subject, wrong, "values for In and NotIn, none for Exists and DoesNotExist")
        found.add((one.key, one.operator, frozenset(one.values or ())))
    return frozenset(found)


def _port(port: NetworkPolicyPort, where: str) -> PortRange | PortName:
    name = port.protocol or "TCP"
    if name not in Protocol.__members__:
        raise Unreadable(f"{where}.protocol {quoted(name)}", "is not known", "TCP, UDP and SCTP")
    protocol, first, last = Protocol[name], port.port, port.end_port
    if isinstance(first, int):
        last = first if last is None else last
        if not 1 <= first <= last <= LAST_PORT:
            text = f"{first} to {last}" if port.end_port is not None else f"{first}"
            raise Unreadable(f"{where} {text}", "is no port or no range", "1 to 65535, and an endPort from port on")
        return PortRange(protocol, first, last)
    if last is not None:
        raise Unreadable(f"{where}.endPort {last}", "has no number as port beside it", "port as a number")
    return PortRange(protocol, 0, LAST_PORT) if first is None else PortName(protocol, first)


def read_block(block: IPBlock, where: str, most: int) -> Steps[list[Network]]:
    """What remains of the network, as networks; of their number `most` at most. Raises Unreadable."""
    whole, holes = _network(block.cidr, f"{where}.cidr"), []
    for part in parts(enumerate(block.excepted or ())):
        for number, text in part:
            subject = f"{where}.except[{number}]"
            hole = _network(text, subject)
            if not is_subnet_of(hole, whole):
                raise Unreadable(f"{subject} {quoted(text)}", f"is outside of {whole}", "a part of cidr")
            holes.append(hole)
        yield 5 * len(part)
    found: list[Network] = []
    for left in parts(remaining(whole, holes)):
        found += map(named, left)
        if len(found) > most:
            raise Unreadable(where, f"without its exceptions is more than {most} networks", "fewer exceptions")
        yield 5 * len(left)
    return found


def _network(text: str, subject: str) -> IPv4Network | IPv6Network:
    try:
        address, _, length = text.partition("/")
        return network(f"{address}/{int(length)}")
    except ValueError:
        allowed = "ADDRESS/LENGTH, such as 10.0.0.0/8 or fd00::/8"
        raise Unreadable(f"{subject} {quoted(text)}", "is not a network", allowed) from None


def remaining(
    whole: IPv4Network | IPv6Network, holes: Iterable[IPv4Network | IPv6Network]
) -> Iterator[IPv4Network | IPv6Network]:
    """What is left of the network without the holes, as few networks."""
    address = type(whole.network_address)
    edges = [(int(hole.network_address), int(hole.broadcast_address)) for hole in holes]
    for first, last in _outside(_joined(edges), [(int(whole.network_address), int(whole.broadcast_address))]):
        yield from summarize_address_range(address(first), address(last))


def prefix_of(network: str) -> int:
    """The prefix of a network in canonical text, as a number (`Network`)."""
    address, _, length = network.partition("/")
    mark, family, bits = (0b11, AF_INET6, 128) if ":" in address else (0b10, AF_INET, 32)
    return (mark << bits | int.from_bytes(inet_pton(family, address))) >> (bits - int(length))


def without(allowed: Ranges, covered: Ranges = frozenset()) -> tuple[PortRange, ...]:
    """What is allowed and not covered, in order, as few ranges that neither overlap nor touch: ANY, or of protocols.

    ANY is returned whatever else is covered: its rest has protocols without ports, so no ranges could say it.
    """
    is_small = len(allowed) + len(covered) <= SMALL
    return _remembered(allowed, covered) if is_small else _without(allowed, covered)


def _without(allowed: Ranges, covered: Ranges) -> tuple[PortRange, ...]:
    if ANY in covered or not allowed:
        return ()
    if ANY in allowed:
        return (ANY,)
    return tuple([
        PortRange(protocol, first, last)
        for protocol in Protocol
        for first, last in _outside(_of(protocol, covered), _of(protocol, allowed))
    ])  # fmt: skip


_remembered = lru_cache(maxsize=1 << 12)(_without)


def _of(protocol: Protocol, ranges: Iterable[PortRange]) -> list[tuple[int, int]]:
    return _joined([(one.first, one.last) for one in ranges if one.protocol == protocol])


def _joined(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces from first to last, in order; those that overlap or touch are one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(pieces):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def _outside(holes: Sequence[tuple[int, int]], pieces: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is left of the pieces without the holes, which are in order and do not overlap."""
    ends = [last for _, last in holes]
    for first, last in pieces:
        for number in range(bisect_left(ends, first), len(holes)):
            hole_first, hole_last = holes[number]
            if hole_first > last:
                break
            if hole_first > first:
                yield first, hole_first - 1
            first = hole_last + 1  # noqa: PLW2901  what is left of the piece
        if first <= last:
            yield first, last
