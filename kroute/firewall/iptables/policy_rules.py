"""The chains, rules and sets of network policies, by group of pods. Their names begin with KROUTENP-.

Table mangle has what goes to pods and leaves them, in POSTROUTING: IPVS has replaced the destination of packets to
Services, and nothing is masqueraded yet. What pods send to processes of their own node is judged behind IPVS, which
takes packets at 99 of the hook input. There only table nat has a chain, which sees the first packets of connections.
iptables refuses DROP in that table, so its rules hand packets to queue 0, where the kernel drops them while no program
listens. What conntrack does not track never meets table nat, and is judged in mangle's INPUT. The chain FORWARD asks
the groups about packets with a source of the node that come from elsewhere: POSTROUTING lets the node reach its pods.

Pods that are isolated are in one set for each direction. Those of each group are in another one, by which a rule for
each group leads their packets to its chain, which returns what the group allows.

While ClusterNetworkPolicies select a pod, the rules that lead are in two chains: the first one leads to groups of the
tier Admin, which go on to the second, NEXT, with what they do not decide; the second one leads to all others. Such a
pod's address is not in the set by which a pod reaches itself, but in one for each direction that NEXT asks, if
NetworkPolicies isolate it there.

Where pods that are not known are closed, the set KNOWN has the addresses of all pods that are. Packets from and to
other addresses of the node's pod networks are dropped, also before IPVS takes them, since no Service has them either.
Where connections are cut, a rule drops what their answering ends go on sending: conntrack would take it for a new
connection.

A rule's text is what iptables-save prints after `-A CHAIN`.
"""

import re
from base64 import b32encode
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from kroute.firewall.iptables.address_sets import POLICIES
from kroute.firewall.protocol import LOGGED_A_SECOND, LOGGED_AT_ONCE
from kroute.firewall.sets import ROOM, End
from kroute.kernel.ipset import Element, SetDefinition
from kroute.kernel.iptables.rule import WITHOUT_SYN, comment
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family, family_of
from kroute.model.plan import Protocol
from kroute.model.policy_plan import (
    ANY,
    LAST_PORT,
    NO_EXTRA,
    Action,
    Direction,
    Extra,
    GroupKey,
    Part,
    PodGroups,
    PortElement,
    PortRange,
    Tier,
)

NAT, MANGLE = "nat", "mangle"
TABLES = (NAT, MANGLE)

LONGEST_COMMENT = 255
_UNUSUAL = re.compile(r"[^\w.:, -]", re.ASCII)
"""What no name has that the API has accepted. In a rule's text, quotation marks would end the comment."""
HASH_SIZE = 64
"""The initial size of a set's hash table: most groups have few peers. The kernel enlarges it as the set grows."""

_PREFIXES = {Family.IPV4: POLICIES, Family.IPV6: f"{POLICIES}6-"}
_PODS = f"{POLICIES}PODS"
_CLOSED = f"{POLICIES}CLOSED"
"""The chain that drops packets of pods that are not known."""
_LED = {direction: f"{POLICIES}{direction.upper()}" for direction in Direction}
"""The chains with a rule for each group."""
_NEXT = {direction: f"{chain}-NEXT" for direction, chain in _LED.items()}
"""The same for all groups but those of the tier Admin, while ClusterNetworkPolicies select a pod."""
GROUPS = tuple(f"{POLICIES}{direction[0]}-" for direction in Direction)
"""What the names of groups' chains begin with."""
REFUSALS = "-j DROP", "-j QUEUE"
"""How the rules end that refuse packets."""
_Refusing = Callable[["Group", str], list[str]]
"""The rules of a group that refuse what is matched."""
_POD, _PEER = (
    {Direction.INGRESS: End.DESTINATION, Direction.EGRESS: End.SOURCE},
    {Direction.INGRESS: End.SOURCE, Direction.EGRESS: End.DESTINATION},
)
_BEGINS = "-m conntrack ! --ctstate RELATED,ESTABLISHED"
_FROM_NODE = "-m addrtype --src-type LOCAL"
_NOT_FROM_NODE = "-m addrtype ! --src-type LOCAL"
_UNTRACKED = "-m conntrack --ctstate UNTRACKED"
_WHY = comment("kroute: network policies")
_OF_CUT = comment("the answer of a connection that was cut")

_HALVES = {"0.0.0.0/0": ("0.0.0.0/1", "128.0.0.0/1"), "::/0": ("::/1", "8000::/1")}
"""A set has no network of every address."""


class Group(NamedTuple):
    """A group's chain, which has the same name after a restart, the comment of its rules that refuse packets, and what
    its rules depend on.
    """

    chain: str
    direction: Direction
    comment: str
    tier: Tier
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, key: GroupKey) -> "Group":
        """The group of which this is a part."""
        chain = f"{POLICIES}{key.direction[0]}-{_digest(key.identity)}"
        return cls(chain, key.direction, _UNUSUAL.sub("?", key.description)[:LONGEST_COMMENT], key.tier, key.parts)


class PolicySet(NamedTuple):
    """A set. Of a group's sets `ports` are those of all its networks, one of pods or of single ports has none. `part`
    is the number of the part of the group. Most `stays`: without an element the set is there, too, so that the first
    one needs no rule to be written. Those of a higher `step` are filled later, and emptied earlier: a closed address
    opens when its pod is isolated.
    """

    name: str
    type: str
    family: Family
    group: Group | None = None
    ports: PortRange | None = None
    part: int = 0
    stays: bool = True
    step: int = 0

    @property
    def definition(self) -> SetDefinition:
        """How it is made. A group has no more elements than `planning.policies.rules.Limits`, so no set is full."""
        return SetDefinition(self.name, self.type, self.family.number, HASH_SIZE, ROOM.first)

    @property
    def is_of_pods(self) -> bool:
        """Whether it has the pods of a group, and not peers that the group allows."""
        return self.group is not None and self.type == "hash:ip"

    @property
    def is_of_peers(self) -> bool:
        return self.group is not None and self.type != "hash:ip"

    @property
    def is_accepting(self) -> bool:
        """Whether it has peers that the group accepts, so that an element more opens, and does not close."""
        return self.is_of_peers and self.group is not None and self.group.parts[self.part].action is Action.ACCEPT


@lru_cache(8)
def isolated(family: Family, direction: Direction) -> PolicySet:
    """The set of all pods that are isolated in this direction."""
    return PolicySet(f"{_PREFIXES[family]}{direction.upper()}", "hash:ip", family)


@lru_cache(2)
def own(family: Family) -> PolicySet:
    """The set of each address, twice, of pods that only NetworkPolicies isolate: a pod reaches itself."""
    return PolicySet(f"{_PREFIXES[family]}OWN", "hash:net,net", family)


@lru_cache(4)
def next_own(family: Family, direction: Direction) -> PolicySet:
    """The same of pods that ClusterNetworkPolicies select too, if NetworkPolicies isolate them in the direction."""
    return PolicySet(f"{_PREFIXES[family]}OWN-{direction.upper()}", "hash:net,net", family, stays=False)


@lru_cache(2)
def known(family: Family) -> PolicySet:
    """The set of the addresses in the plan, all others of `closed_networks` are closed."""
    return PolicySet(f"{_PREFIXES[family]}KNOWN", "hash:ip", family, step=1)


@lru_cache(2)
def closed_networks(family: Family) -> PolicySet:
    return PolicySet(f"{_PREFIXES[family]}CLOSED", "hash:net", family, step=2)


@lru_cache(2)
def cut(family: Family) -> PolicySet:
    """The set of the answers of connections that were cut: where they come from, and the client."""
    return PolicySet(f"{_PREFIXES[family]}CUT", "hash:ip,port,ip", family)


def shared_sets(family: Family, extra: Extra = NO_EXTRA) -> list[PolicySet]:
    """The sets of no group that are always there."""
    of_closed = [known(family), closed_networks(family)] if extra.closed else []
    of_cut = [cut(family)] if extra.cut is not None else []
    return [own(family), *(isolated(family, direction) for direction in Direction), *of_closed, *of_cut]


def extra_elements(extra: Extra) -> Iterator[tuple[PolicySet, Element]]:
    """The elements of the sets of closed networks, and of those of answers."""
    yield from ((closed_networks(family_of(network)), (network,)) for network in extra.closed)
    for one in extra.cut or ():
        yield cut(family_of(one.address)), (one.address, int(Protocol.TCP), one.port, one.client)


@lru_cache(1024)
def pods_of(group: Group, family: Family) -> PolicySet:
    """The set of the group's pods."""
    return _of_group("P", "hash:ip", group, family)


@lru_cache(4096)
def networks_of(group: Group, family: Family, ports: PortRange, part: int = 0) -> PolicySet:
    """The set of the networks of a part of the group with these ports."""
    return _of_group("N", "hash:net", group, family, ports, part)


@lru_cache(1024)
def ports_of(group: Group, family: Family, part: int = 0) -> PolicySet:
    """The set of networks with a single port each."""
    return _of_group("S", "hash:net,port", group, family, None, part)


def standing_sets(key: GroupKey) -> list[PolicySet]:
    """The sets that a part of a group has whatever is in it; with the first one, that of the group's pods."""
    group, part = Group.of(key), key.part
    of_part = [one for it in Family for one in (ports_of(group, it, part), networks_of(group, it, ANY, part))]
    return [*of_part, *(pods_of(group, family) for family in Family if part == 0)]


def placed(group: Group, part: int, element: PortElement) -> tuple[PolicySet, list[Element]]:
    """The set and the elements for a network and its range of ports."""
    network, protocol, first, last = element
    family = family_of(network)
    networks = _HALVES.get(network, (network,))
    if protocol is None or first < last:
        of_range = networks_of(group, family, PortRange(protocol, first, last), part)
        return of_range, [(one,) for one in networks]
    return ports_of(group, family, part), [(one, int(protocol), first) for one in networks]


def pod_elements(
    address: str, groups: PodGroups | None, extra: Extra = NO_EXTRA
) -> Iterator[tuple[PolicySet, Element]]:
    """The elements for the address of a pod with these groups; none for one that is not in the plan."""
    if groups is None:
        return
    family = family_of(address)
    alone = f"{address}/{128 if family is Family.IPV6 else 32}"
    if extra.closed:
        yield known(family), (address,)
    if any(groups) and not groups.is_of_cluster:
        yield own(family), (alone, alone)
    for direction in Direction:
        for key in groups.of(direction):
            yield pods_of(Group.of(key), family), (address,)
            yield isolated(family, direction), (address,)
            if groups.is_of_cluster and key.tier is Tier.NETWORK_POLICY:
                yield next_own(family, direction), (alone, alone)


def table_rules(family: Family, sets: Collection[PolicySet], log_group: int | None = None) -> dict[str, TableRules]:
    """The rules of one family, by table, for all groups that have these sets.

    `log_group` is that of nfnetlink_log; None: nothing is logged.
    """
    groups: dict[Group, list[PolicySet]] = {}
    for one in sorted(sets):
        if one.family is family and one.group is not None:
            groups.setdefault(one.group, []).append(one)
    groups = dict(sorted(groups.items()))
    with_next = any(group.tier is not Tier.NETWORK_POLICY for group in groups)
    following = {
        direction: [
            f"{_in(one, End.SOURCE, End.DESTINATION)} {comment('a pod reaches itself')} -j RETURN"
            for one in [next_own(family, direction)]
            if one in sets
        ]
        for direction in Direction
        if with_next
    }
    closes, cuts = (one in sets for one in (closed_networks(family), cut(family)))
    chains: dict[str, Sequence[str]] = {_PODS: _pod_rules(family, closes=closes, cuts=cuts)}
    for direction in Direction:
        of_direction = {group: of_group for group, of_group in groups.items() if group.direction is direction}
        chains |= _group_chains(
            direction, of_direction, partial(_refusing, "DROP", log_group), following.get(direction)
        )
    ingress, egress = (f"{_in(isolated(family, it), _POD[it])} " for it in Direction)
    to_egress = f"{_WHY} -j {_LED[Direction.EGRESS]}"
    of_neighbours = "! -p ipv6-icmp " if family is Family.IPV6 else ""
    jumps = [
        ("INPUT", f"{of_neighbours}{_UNTRACKED} {egress}{to_egress}"),
        ("FORWARD", f"{_BEGINS} {ingress}{_FROM_NODE} {_WHY} -j {_LED[Direction.INGRESS]}"),
        ("POSTROUTING", f"{_BEGINS} {_WHY} -j {_PODS}"),
    ]
    if closes:
        chains[_CLOSED] = [*_neighbours(family), f"{comment('of a pod that is not known yet')} -j DROP"]
        jumps += _closing(family)
    found = {MANGLE: TableRules(MANGLE, chains, jumps, prefix=POLICIES)}
    of_egress = {group: of_group for group, of_group in groups.items() if group.direction is Direction.EGRESS}
    if of_egress:
        refusing = partial(_refusing, "QUEUE", log_group)
        chains = _group_chains(Direction.EGRESS, of_egress, refusing, following.get(Direction.EGRESS))
        found[NAT] = TableRules(NAT, chains, [("INPUT", f"{_BEGINS} {egress}{to_egress}")], prefix=POLICIES)
    return found


def _pod_rules(family: Family, *, closes: bool, cuts: bool) -> list[str]:
    """What POSTROUTING asks about packets that begin connections."""
    ends = (End.SOURCE, End.DESTINATION) if closes else ()
    answer = f"{WITHOUT_SYN} {_in(cut(family), End.SOURCE, End.SOURCE, End.DESTINATION)} {_OF_CUT} -j DROP"
    ingress, egress = (_in(isolated(family, it), _POD[it]) for it in Direction)
    return [
        *_neighbours(family),
        *([answer] if cuts else []),
        f"{_in(own(family), End.SOURCE, End.DESTINATION)} {comment('a pod reaches itself')} -j RETURN",
        f"{egress} {comment('from an isolated pod')} -j {_LED[Direction.EGRESS]}",
        *(f"{_unknown(family, end)} {_NOT_FROM_NODE} {_WHY} -j {_CLOSED}" for end in ends),
        f"{ingress} {_NOT_FROM_NODE} {comment('to an isolated pod, not from its node')} -j {_LED[Direction.INGRESS]}",
    ]


def _closing(family: Family) -> list[tuple[str, str]]:
    """What leads from the kernel's chains to CLOSED; POSTROUTING leads there by `_pod_rules`."""
    return [
        ("INPUT", f"{_BEGINS} {_unknown(family, End.SOURCE)} {_NOT_FROM_NODE} {_WHY} -j {_CLOSED}"),
        ("FORWARD", f"{_BEGINS} {_unknown(family, End.DESTINATION)} {_FROM_NODE} {_WHY} -j {_CLOSED}"),
    ]


def _neighbours(family: Family) -> list[str]:
    """What a bridge shows of neighbours in IPv6, which conntrack does not track."""
    rule = f"-p ipv6-icmp {_UNTRACKED} {comment('neighbours and multicast listeners')} -j RETURN"
    return [rule] if family is Family.IPV6 else []


def _unknown(family: Family, end: End) -> str:
    """The match for packets with an address of a closed network that is of no known pod."""
    return f"{_in(closed_networks(family), end)} -m set ! --match-set {known(family).name} {end}"


def _group_chains(
    direction: Direction, groups: dict[Group, list[PolicySet]], refusing: _Refusing, following: Sequence[str] | None
) -> dict[str, Sequence[str]]:
    """The chains of all groups of a direction, and those that lead to them. `following` are the rules with which the
    chain NEXT begins; None: there is none.
    """
    first: list[str] = []
    chains: dict[str, Sequence[str]] = {_LED[direction]: first}
    others = first
    if following is not None:
        chains[_NEXT[direction]] = others = [*following]
    for group, sets in groups.items():
        led = first if group.tier is Tier.ADMIN else others
        led += [f"{_in(one, _POD[direction])} -g {group.chain}" for one in sets if one.is_of_pods]
        peers = [one for one in sets if one.is_of_peers]
        of_group = _allowing if group.tier is Tier.NETWORK_POLICY else _by_parts
        chains[group.chain] = of_group(group, peers, refusing)
    if following is not None:
        first.append(f"{comment('what the tier Admin has left')} -g {_NEXT[direction]}")
    return chains


def _allowing(group: Group, sets: Sequence[PolicySet], refusing: _Refusing) -> list[str]:
    """The rules of a group of NetworkPolicies."""
    rules = [
        f"{_matched(one, group)}{comment('an allowed port' if one.ports is None else 'allowed')} -j RETURN"
        for one in sets
    ]
    return [*rules, *refusing(group, "")]


def _by_parts(group: Group, sets: Sequence[PolicySet], refusing: _Refusing) -> list[str]:
    """The rules of a group of ClusterNetworkPolicies: for pods, then for networks, single ports before all ports."""
    leave = f"-g {_NEXT[group.direction]}"
    ends = {Action.ACCEPT: "-j RETURN", Action.PASS: leave}
    rules: list[str] = []
    for one in sorted(sets, key=lambda one: (not group.parts[one.part].of_pods, one.ports == ANY)):
        action, matched = group.parts[one.part].action, _matched(one, group)
        rules += refusing(group, matched) if action is Action.DENY else [f"{matched}{comment(action)} {ends[action]}"]
    if group.tier is Tier.ADMIN:
        rules.append(f"{comment('not decided by this tier')} {leave}")
    return rules


def _refusing(refusal: str, log_group: int | None, group: Group, matched: str) -> list[str]:
    """The rules that refuse what is matched, after they have logged some of it."""
    log = f"-j NFLOG --nflog-prefix {group.chain} --nflog-group {log_group}"
    logging = f"{matched}-m limit --limit {LOGGED_A_SECOND}/sec --limit-burst {LOGGED_AT_ONCE} {log}"
    return [*([] if log_group is None else [logging]), f"{matched}{comment(group.comment)} -j {refusal}"]


def _matched(one: PolicySet, group: Group) -> str:
    """The match for packets of the peers that are in a set of the group, and a space."""
    peer = _PEER[group.direction]
    return f"{_in(one, peer, End.DESTINATION)} " if one.ports is None else f"{_to_ports(one.ports)}{_in(one, peer)} "


def _to_ports(ports: PortRange) -> str:
    """The match for packets to these ports; "" for ANY."""
    protocol, first, last = ports
    if protocol is None:
        return ""
    name = f"-p {protocol.name.lower()} "
    return name if (first, last) == (0, LAST_PORT) else f"{name}-m multiport --dports {first}:{last} "


def _in(one: PolicySet, *ends: End) -> str:
    """The match for packets that are in a set."""
    return f"-m set --match-set {one.name} {','.join(ends)}"


def _of_group(
    letter: str, kind: str, group: Group, family: Family, ports: PortRange | None = None, part: int = 0
) -> PolicySet:
    digest = group.chain.rpartition("-")[2]
    if ports or part:
        digest = _digest((group.chain, ports, part) if part else (group.chain, ports))
    stays = ports is None or ports == ANY
    return PolicySet(f"{_PREFIXES[family]}{letter}-{digest}", kind, family, group, ports, part, stays)


def _digest(named: object) -> str:
    """80 bits: the name of a chain may have 28 letters, that of a set 31."""
    return b32encode(blake2b(msgspec.json.encode(named), digest_size=10).digest()).decode()
