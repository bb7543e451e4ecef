"""Read a ClusterNetworkPolicy (`policy.networking.k8s.io/v1alpha2`): which pods it selects, and its rules in order.

What cannot be understood closes, as the API asks of a peer without a field that is known: a rule that accepts matches
nothing, and one that denies or passes denies everything. Each becomes a Problem. `nodes` and `domainNames`, which only
the API's experimental channel has, are among what kroute does not know.
"""

from collections.abc import Sequence

from kroute.model.objects import (
    ClusterNetworkPolicy,
    ClusterPeer,
    ClusterPolicyRule,
    ClusterPort,
    ClusterProtocol,
    IPBlock,
)
from kroute.model.plan import Problem, Problems, Protocol, quoted
from kroute.model.policy_plan import LAST_PORT, Action, Direction, PortName, PortRange, Tier
from kroute.model.steps import Steps
from kroute.planning.policies.rules import (
    EVERY_PORT,
    EVERYWHERE,
    INVALID,
    Network,
    PeerSelector,
    PolicyRules,
    Ports,
    Rule,
    Selector,
    Unreadable,
    problem_of,
    read_block,
    read_selector,
    without,
)

_TIERS = {tier.value: tier for tier in (Tier.ADMIN, Tier.BASELINE)}
_EVERY: Selector = frozenset()


def reading_cluster(policy: ClusterNetworkPolicy) -> Steps[PolicyRules]:
    """Read a policy, in steps. Never fails."""
    spec, problems = policy.spec, Problems()
    selector: PeerSelector | None = None
    try:
        selector = _pods(spec.subject, "subject")
    except Unreadable as error:
        problems.append(problem_of(error, "the policy selects no pod"))
    tier = _TIERS.get(spec.tier)
    if tier is None:
        rest = "is not known, so only its Deny rules hold, in the tier Admin. Allowed: Admin and Baseline."
        problems.append(Problem.about(INVALID, f"tier {quoted(spec.tier)}", rest))
    rules: dict[Direction, tuple[Rule, ...]] = {}
    for direction, written in ((Direction.INGRESS, spec.ingress), (Direction.EGRESS, spec.egress)):
        found = []
        for number, rule in enumerate(written or ()):
            understood = yield from _rule(rule, direction, number, problems)
            if understood is not None and (tier is not None or understood.action is Action.DENY):
                found.append(_in_tier(tier, understood))
        if found:
            rules[direction] = tuple(found)
    return PolicyRules(selector, rules, problems.all(), policy.metadata.uid, tier or Tier.ADMIN, spec.priority)


def _in_tier(tier: Tier | None, rule: Rule) -> Rule:
    """What the rule is in its tier: what the last one passes is accepted."""
    if tier is not Tier.BASELINE or rule.action is not Action.PASS:
        return rule
    return Rule(rule.name, rule.peers, rule.blocks, rule.ports)


def _rule(rule: ClusterPolicyRule, direction: Direction, number: int, problems: Problems) -> Steps[Rule | None]:
    """The rule; None: it accepts nothing."""
    name = f"{direction.lower()}[{number}]"
    called = f"{name} {quoted(rule.name)}" if rule.name else name
    try:
        action = _action(rule.action, name)
        ports = yield from _ports(rule.protocols or (), name)
        peers, blocks = yield from _peers(rule, direction, name, with_networks=not ports.names)
    except Unreadable as error:
        is_accepting = rule.action == Action.ACCEPT
        problems.append(problem_of(error, f"the rule {'accepts nothing' if is_accepting else 'denies everything'}"))
        return None if is_accepting else Rule(called, (), EVERYWHERE, EVERY_PORT, Action.DENY)
    return Rule(called, peers, blocks, ports, action)


def _action(written: str, name: str) -> Action:
    if written not in {*Action}:
        raise Unreadable(f"{name}.action {quoted(written)}", "is not known", "Accept, Deny and Pass")
    return Action(written)


def _peers(
    rule: ClusterPolicyRule, direction: Direction, name: str, *, with_networks: bool
) -> Steps[tuple[tuple[PeerSelector, ...], tuple[Network, ...]]]:
    """The pods and the networks of a rule. Raises Unreadable, also for networks if the rule must not have them."""
    written, field = (rule.sources, "from") if direction is Direction.INGRESS else (rule.destinations, "to")
    if not written:
        raise Unreadable(f"{name}.{field}", "has no peer", "at least one")
    peers: dict[PeerSelector, None] = {}
    blocks: dict[Network, None] = {}
    for number, peer in enumerate(written):
        where = f"{name}.{field}[{number}]"
        if peer.networks and direction is Direction.EGRESS and peer.namespaces is None and peer.pods is None:
            blocks |= dict.fromkeys((yield from _networks(peer.networks, f"{where}.networks")))
        else:
            peers[_pods(peer, where)] = None
            yield 2
    if blocks and not with_networks:
        raise Unreadable(name, "has networks and the name of a port, which none has", "the port's number")
    return tuple(peers), tuple(blocks)


def _networks(written: Sequence[str], where: str) -> Steps[list[Network]]:
    found: list[Network] = []
    for number, text in enumerate(written):
        found += yield from read_block(IPBlock(text), f"{where}[{number}]", 1)
    return found


def _pods(peer: ClusterPeer, where: str) -> PeerSelector:
    """The pods that a subject or a peer selects. Raises Unreadable."""
    if (peer.namespaces is None) == (peer.pods is None) or peer.networks:
        raise Unreadable(where, "names nothing that kroute knows, or too much", "namespaces or pods; to: networks")
    if peer.pods is None:
        return PeerSelector("", read_selector(peer.namespaces, f"{where}.namespaces"), _EVERY)
    if peer.pods.pod_selector is None:
        raise Unreadable(f"{where}.pods", "has no podSelector", "podSelector, and namespaceSelector or all Namespaces")
    namespaces = read_selector(peer.pods.namespace_selector, f"{where}.pods.namespaceSelector")
    return PeerSelector("", namespaces, read_selector(peer.pods.pod_selector, f"{where}.pods.podSelector"))


def _ports(written: Sequence[ClusterProtocol], name: str) -> Steps[Ports]:
    """The ports of a rule: all, if it has no protocol."""
    if not written:
        return EVERY_PORT
    found: set[PortRange | PortName] = set()
    for number, one in enumerate(written):
        found.update(_protocol(one, f"{name}.protocols[{number}]"))
        yield 2
    ranges = without(frozenset([one for one in found if isinstance(one, PortRange)]))
    return Ports(frozenset(ranges), frozenset([one for one in found if isinstance(one, PortName)]))


def _protocol(one: ClusterProtocol, where: str) -> list[PortRange] | list[PortName]:
    fields = ((Protocol.TCP, one.tcp), (Protocol.UDP, one.udp), (Protocol.SCTP, one.sctp))
    given = [(protocol, ports) for protocol, ports in fields if ports is not None]
    if len(given) + bool(one.destination_named_port) != 1:
        raise Unreadable(where, "names no protocol, or several", "tcp, udp, sctp or destinationNamedPort")
    if one.destination_named_port:
        return [PortName(protocol, one.destination_named_port) for protocol in Protocol]
    [(protocol, ports)] = given
    return [PortRange(protocol, *_numbers(ports.destination_port, f"{where}.{protocol.name.lower()}.destinationPort"))]


def _numbers(port: ClusterPort | None, where: str) -> tuple[int, int]:
    """The first and the last port. Raises Unreadable."""
    if port is None or (port.number is None) == (port.range is None):
        raise Unreadable(where, "is no port", "a number or a range")
    number, written = port.number or 0, port.range
    first, last = (written.start, written.end) if written is not None else (number, number)
    if not 1 <= first <= last <= LAST_PORT:
        text = f"{first} to {last}" if written is not None else f"{first}"
        raise Unreadable(f"{where} {text}", "is no port or no range", "1 to 65535, and an end from start on")
    return first, last
