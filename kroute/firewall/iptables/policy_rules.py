"""The chains, rules and sets of network policies, by group of pods. Their names begin with KROUTENP-.

Table mangle has what goes to pods and leaves them, in POSTROUTING: IPVS has replaced the destination of packets to
Services, and nothing is masqueraded yet. What pods send to processes of their own node is judged behind IPVS, which
takes packets at 99 of the hook input. There only table nat has a chain, which sees the first packets of connections.
iptables refuses DROP in that table, so its rules hand packets to queue 0, where the kernel drops them while no program
listens. What conntrack does not track never meets table nat, and is judged in mangle's INPUT. The chain FORWARD asks
the groups about packets with a source of the node that come from elsewhere: POSTROUTING lets the node reach its pods.

Pods that are isolated are in one set for each direction. Those of each group are in another one, by which a rule for
each group leads their packets to its chain, which returns what the group allows.

A rule's text is what iptables-save prints after `-A CHAIN`.
"""

import re
from base64 import b32encode
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from kroute.firewall.iptables.address_sets import POLICIES
from kroute.firewall.protocol import LOGGED_A_SECOND, LOGGED_AT_ONCE
from kroute.firewall.sets import ROOM, End
from kroute.kernel.ipset import Element, SetDefinition
from kroute.kernel.iptables.rule import comment
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family, family_of
from kroute.model.policy_plan import ANY, LAST_PORT, Direction, GroupKey, PodGroups, PortElement, PortRange

NAT, MANGLE = "nat", "mangle"
TABLES = (NAT, MANGLE)

LONGEST_COMMENT = 255
_UNUSUAL = re.compile(r"[^\w.:, -]", re.ASCII)
"""What no name has that the API has accepted. In a rule's text, quotation marks would end the comment."""
HASH_SIZE = 64
"""The initial size of a set's hash table: most groups have few peers. The kernel enlarges it as the set grows."""

_PREFIXES = {Family.IPV4: POLICIES, Family.IPV6: f"{POLICIES}6-"}
_PODS = f"{POLICIES}PODS"
_LED = {direction: f"{POLICIES}{direction.upper()}" for direction in Direction}
"""The chains with a rule for each group."""
GROUPS = tuple(f"{POLICIES}{direction[0]}-" for direction in Direction)
"""What the names of groups' chains begin with. The last rule of each refuses packets."""
_POD, _PEER = (
    {Direction.INGRESS: End.DESTINATION, Direction.EGRESS: End.SOURCE},
    {Direction.INGRESS: End.SOURCE, Direction.EGRESS: End.DESTINATION},
)
_BEGINS = "-m conntrack ! --ctstate RELATED,ESTABLISHED"
_FROM_NODE = "-m addrtype --src-type LOCAL"
_NOT_FROM_NODE = "-m addrtype ! --src-type LOCAL"
_UNTRACKED = "-m conntrack --ctstate UNTRACKED"
_WHY = comment("kroute: network policies")

_HALVES = {"0.0.0.0/0": ("0.0.0.0/1", "128.0.0.0/1"), "::/0": ("::/1", "8000::/1")}
"""A set has no network of every address."""


class Group(NamedTuple):
    """A group's chain, which has the same name after a restart, and the comment of its last rule."""

    chain: str
    direction: Direction
    comment: str

    @classmethod
    def of(cls, key: GroupKey) -> "Group":
        chain = f"{POLICIES}{key.direction[0]}-{_digest(key)}"
        return cls(chain, key.direction, _UNUSUAL.sub("?", key.description)[:LONGEST_COMMENT])


class PolicySet(NamedTuple):
    """A set. Of a group's sets `ports` are those of all its networks, one of pods or of single ports has none."""

    name: str
    type: str
    family: Family
    group: Group | None = None
    ports: PortRange | None = None

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
    def stays(self) -> bool:
        """Whether the set is there without an element, too: the first one then needs no rule to be written."""
        return self.ports is None or self.ports == ANY


@lru_cache(8)
def isolated(family: Family, direction: Direction) -> PolicySet:
    """The set of all pods that are isolated in this direction."""
    return PolicySet(f"{_PREFIXES[family]}{direction.upper()}", "hash:ip", family)


@lru_cache(2)
def own(family: Family) -> PolicySet:
    """The set of each isolated pod's address, twice: a pod reaches itself."""
    return PolicySet(f"{_PREFIXES[family]}OWN", "hash:net,net", family)


def shared_sets(family: Family) -> list[PolicySet]:
    """The sets that belong to no group."""
    return [own(family), *(isolated(family, direction) for direction in Direction)]


@lru_cache(1024)
def pods_of(group: Group, family: Family) -> PolicySet:
    """The set of the group's pods."""
    return _of_group("P", "hash:ip", group, family)


@lru_cache(4096)
def networks_of(group: Group, family: Family, ports: PortRange) -> PolicySet:
    """The set of the networks that the group allows these ports."""
    return _of_group("N", "hash:net", group, family, ports)


@lru_cache(1024)
def ports_of(group: Group, family: Family) -> PolicySet:
    """The set of networks with a single port each."""
    return _of_group("S", "hash:net,port", group, family)


def standing_sets(group: Group) -> list[PolicySet]:
    """The sets that the group has whatever it allows."""
    return [
        one
        for family in Family
        for one in (pods_of(group, family), ports_of(group, family), networks_of(group, family, ANY))
    ]


def placed(group: Group, element: PortElement) -> tuple[PolicySet, list[Element]]:
    """The set and the elements for a network and its range of ports."""
    network, protocol, first, last = element
    family = family_of(network)
    networks = _HALVES.get(network, (network,))
    if protocol is None or first < last:
        return networks_of(group, family, PortRange(protocol, first, last)), [(one,) for one in networks]
    return ports_of(group, family), [(one, int(protocol), first) for one in networks]


def pod_elements(address: str, groups: PodGroups | None) -> Iterator[tuple[PolicySet, Element]]:
    """The elements for the address of a pod with these groups; none for one that is not isolated."""
    if groups is None:
        return
    family = family_of(address)
    alone = f"{address}/{128 if family is Family.IPV6 else 32}"
    yield own(family), (alone, alone)
    for direction, key in zip(Direction, groups, strict=True):
        if key is not None:
            yield pods_of(Group.of(key), family), (address,)
            yield isolated(family, direction), (address,)


def table_rules(family: Family, sets: Iterable[PolicySet], log_group: int | None = None) -> dict[str, TableRules]:
    """The rules of one family, by table, for all groups that have these sets.

    `log_group` is that of nfnetlink_log; None: nothing is logged.
    """
    groups: dict[Group, list[PolicySet]] = {}
    for one in sorted(sets):
        if one.family is family and one.group is not None:
            groups.setdefault(one.group, []).append(one)
    groups = dict(sorted(groups.items()))
    chains: dict[str, Sequence[str]] = {_PODS: _pod_rules(family)}
    for direction in Direction:
        of_direction = {group: of_group for group, of_group in groups.items() if group.direction is direction}
        chains |= _group_chains(direction, of_direction, "DROP", log_group)
    ingress, egress = (f"{_in(isolated(family, it), _POD[it])} " for it in Direction)
    to_egress = f"{_WHY} -j {_LED[Direction.EGRESS]}"
    of_neighbours = "! -p ipv6-icmp " if family is Family.IPV6 else ""
    jumps = [
        ("INPUT", f"{of_neighbours}{_UNTRACKED} {egress}{to_egress}"),
        ("FORWARD", f"{_BEGINS} {ingress}{_FROM_NODE} {_WHY} -j {_LED[Direction.INGRESS]}"),
        ("POSTROUTING", f"{_BEGINS} {_WHY} -j {_PODS}"),
    ]
    found = {MANGLE: TableRules(MANGLE, chains, jumps, prefix=POLICIES)}
    of_egress = {group: of_group for group, of_group in groups.items() if group.direction is Direction.EGRESS}
    if of_egress:
        chains = _group_chains(Direction.EGRESS, of_egress, "QUEUE", log_group)
        found[NAT] = TableRules(NAT, chains, [("INPUT", f"{_BEGINS} {egress}{to_egress}")], prefix=POLICIES)
    return found


def _pod_rules(family: Family) -> list[str]:
    """What POSTROUTING asks about packets that begin connections."""
    neighbours = f"-p ipv6-icmp {_UNTRACKED} {comment('neighbours and multicast listeners')} -j RETURN"
    ingress, egress = (_in(isolated(family, it), _POD[it]) for it in Direction)
    return [
        *([neighbours] if family is Family.IPV6 else []),
        f"{_in(own(family), End.SOURCE, End.DESTINATION)} {comment('a pod reaches itself')} -j RETURN",
        f"{egress} {comment('from an isolated pod')} -j {_LED[Direction.EGRESS]}",
        f"{ingress} {_NOT_FROM_NODE} {comment('to an isolated pod, not from its node')} -j {_LED[Direction.INGRESS]}",
    ]


def _group_chains(
    direction: Direction, groups: dict[Group, list[PolicySet]], refusal: str, log_group: int | None
) -> dict[str, Sequence[str]]:
    """The chains of all groups of a direction, and the chain that leads to them."""
    pod, peer = _POD[direction], _PEER[direction]
    led: list[str] = []
    chains: dict[str, Sequence[str]] = {_LED[direction]: led}
    for group, sets in groups.items():
        chains[group.chain] = rules = []
        for one in sets:
            if one.type == "hash:ip":
                led.append(f"{_in(one, pod)} -g {group.chain}")
            elif one.ports is None:
                rules.append(f"{_in(one, peer, End.DESTINATION)} {comment('an allowed port')} -j RETURN")
            else:
                rules.append(f"{_to_ports(one.ports)}{_in(one, peer)} {comment('allowed')} -j RETURN")
        if log_group is not None:
            log = f"-j NFLOG --nflog-prefix {group.chain} --nflog-group {log_group}"
            rules.append(f"-m limit --limit {LOGGED_A_SECOND}/sec --limit-burst {LOGGED_AT_ONCE} {log}")
        rules.append(f"{comment(group.comment)} -j {refusal}")
    return chains


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


def _of_group(letter: str, kind: str, group: Group, family: Family, ports: PortRange | None = None) -> PolicySet:
    digest = _digest((group.chain, ports)) if ports else group.chain.rpartition("-")[2]
    return PolicySet(f"{_PREFIXES[family]}{letter}-{digest}", kind, family, group, ports)


def _digest(named: object) -> str:
    """80 bits: the name of a chain may have 28 letters, that of a set 31."""
    return b32encode(blake2b(msgspec.json.encode(named), digest_size=10).digest()).decode()
