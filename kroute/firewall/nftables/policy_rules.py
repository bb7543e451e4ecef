"""The tables `ip kroute-policies` and `ip6 kroute-policies`: their chains, rules and sets.

Packets meet these base chains. `postrouting` has what goes to pods and leaves them, after IPVS has replaced the
destination of packets to Services, and before anything is masqueraded: it sees the addresses of client and pod. `input`
has what pods send to their own node; what IPVS took does not arrive there, unless its real server is on the node. A
packet that arrives with an address of this node as its source was forged by a pod of the same bridge, or by a neighbour
of the node: `prerouting` asks the groups about it, since `postrouting` lets the node reach its pods. An accepted packet
only leaves the chain: others may still drop it.

Each group of NetworkPolicies has three sets and a chain, which returns what the group allows and drops all else.
Verdict maps lead from the address of an isolated pod to the chains of its groups: a packet meets the same number of
rules, however many policies and pods there are.

A group of ClusterNetworkPolicies has three sets for each of its parts. The maps lead to the group of the tier Admin,
whose chain goes to `ingress-next` or `egress-next` with what it does not decide. Maps of these names lead on to the
group of NetworkPolicies or of the tier Baseline. Since ClusterNetworkPolicies judge also what comes back to the pod
itself, addresses that have such a group are not in `own`, but in a set for each direction that only the next chains
ask, if a group of NetworkPolicies is next.

Where pods that are not known are closed, more rules drop packets from and to addresses of the node's pod networks that
are not in `known`. An address of the node itself may be among these. Where connections are cut, another rule drops what
their answering ends go on sending: conntrack would take it for a new connection.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from kroute.firewall.nftables.statements import ADDRESSES, AT, without_syn
from kroute.firewall.protocol import LOGGED_A_SECOND, LOGGED_AT_ONCE
from kroute.firewall.sets import End
from kroute.kernel.nftables.expressions import (
    Ct,
    CtState,
    Header,
    Meta,
    RouteType,
    VerdictCode,
    between,
    bitwise,
    compare,
    counter,
    ct,
    fib_type_of_destination,
    fib_type_of_source,
    limit,
    log,
    lookup,
    lookup_verdict,
    meta,
    number,
    payload,
    register,
    verdict,
)
from kroute.kernel.nftables.messages import LONGEST_COMMENT
from kroute.kernel.nftables.objects import Chain, Element, NftRule, NftSet
from kroute.model.addresses import Family, family_of
from kroute.model.plan import Protocol
from kroute.model.policy_plan import NO_EXTRA, Action, Direction, Extra, GroupKey, Part, PodGroups, Tier

PREROUTING = Chain("prerouting", "filter", "prerouting", 0)
POSTROUTING, INPUT = Chain("postrouting", "filter", "postrouting", 90), Chain("input", "filter", "input", 110)
"""IPVS is in the hook input at 98 and 99. Source NAT is at 100, and kroute's at 95 (`firewall.nftables.rules`)."""
BASE_CHAINS = PREROUTING, POSTROUTING, INPUT
NEXT = {direction: Chain(f"{direction.lower()}-next") for direction in Direction}
MAPS = {direction: NftSet(direction.lower(), ("ip", "jump")) for direction in Direction}
"""From the address of a pod to the chain of its first group."""
NEXT_MAPS = {direction: NftSet(chain.name, ("ip", "jump")) for direction, chain in NEXT.items()}
"""From the address of a pod that has a group of ClusterNetworkPolicies to the chain of what comes after Admin."""
GOES_ON = "a connection that was allowed goes on"
LOGGED = "logged before it is dropped"
OF_CUT = "the answer of a connection that was cut"
FROM_UNKNOWN, TO_UNKNOWN = "from a pod that is not known yet", "to a pod that is not known yet"
OWN = NftSet("own", ("ip", "ip"))
"""The address of each pod that only NetworkPolicies isolate, twice: a pod reaches itself."""
NEXT_OWN = {direction: NftSet(f"{direction.lower()}-own", ("ip", "ip")) for direction in Direction}
"""The same of those that ClusterNetworkPolicies select too, if NetworkPolicies isolate them in the direction."""
BASE_SETS = *MAPS.values(), OWN
NEXT_SETS = *NEXT_MAPS.values(), *NEXT_OWN.values()
CLOSED, KNOWN = NftSet("pod-networks", ("net",)), NftSet("known", ("ip",))
"""The networks of which only the known addresses are open, and these."""
CUT = NftSet("cut", ("ip", "port", "ip"))
"""The answers of connections that were cut: where they come from, and the client."""

_PEER = {Direction.INGRESS: End.SOURCE, Direction.EGRESS: End.DESTINATION}
_ICMPV6 = b"\x3a"
_NEIGHBOURS = b"\x82", b"\x89"
"""The types of ICMPv6 from 130 to 137: MLD, routers and neighbours. MLD's 143 never has the address of a pod."""
_ACCEPT, _RETURN, _DROP = map(verdict, (VerdictCode.ACCEPT, VerdictCode.RETURN, VerdictCode.DROP))
_LOCAL, _NOT_LOCAL = (compare(AT, number(RouteType.LOCAL), equal=equal) for equal in (True, False))
_Rule = tuple[tuple[bytes, ...], str]
"""Its expressions, and its comment."""


class Group(NamedTuple):
    """The name of a group's chain, which is the same after a restart, the comment of its rules that drop packets, and
    what its rules depend on.
    """

    chain: str
    direction: Direction
    comment: str
    tier: Tier
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, key: GroupKey) -> "Group":
        """The group of which this is a part."""
        digest = blake2b(msgspec.json.encode(key.identity), digest_size=16).hexdigest()
        chain, comment = f"{key.direction.lower()}-{digest}", key.description[:LONGEST_COMMENT]
        return cls(chain, key.direction, comment, key.tier, key.parts)

    @property
    def sets(self) -> list["GroupSets"]:
        """Those of its parts."""
        if self.tier is Tier.NETWORK_POLICY:
            return [GroupSets(self.chain)]
        return [GroupSets(f"{self.chain}-{number}") for number in range(len(self.parts))]


class GroupSets(NamedTuple):
    """The sets of a part of a group.

    `networks` are peers with all ports, `ports` addresses with one port, `ranges` all others. The last is a
    concatenation of intervals, which takes the kernel time by its size with each change; few peers need it.
    """

    prefix: str

    @classmethod
    def of(cls, key: GroupKey) -> "GroupSets":
        return Group.of(key).sets[key.part]

    @property
    def networks(self) -> NftSet:
        return NftSet(f"{self.prefix}-networks", ("net",))

    @property
    def ports(self) -> NftSet:
        return NftSet(f"{self.prefix}-ports", ("ip", "port"))

    @property
    def ranges(self) -> NftSet:
        return NftSet(f"{self.prefix}-ranges", ("net", "ports"))

    @property
    def all(self) -> tuple[NftSet, ...]:
        return self.networks, self.ports, self.ranges

    def place(self, network: str, protocol: Protocol | None, first: int, last: int) -> tuple[NftSet, Element]:
        """The set and the element for a network and its range of ports."""
        address, _, length = network.partition("/")
        if protocol is None:
            return self.networks, (network,)
        if first == last and length == ("128" if ":" in address else "32"):
            return self.ports, (address, int(protocol), first)
        return self.ranges, (network, int(protocol), first, last)


def base_sets(extra: Extra) -> list[NftSet]:
    """The sets that belong to no group."""
    return [*BASE_SETS, *([CLOSED, KNOWN] if extra.closed else []), *([CUT] if extra.cut is not None else [])]


def base_chains(family: Family, extra: Extra = NO_EXTRA) -> dict[Chain, list[NftRule]]:
    """The base chains with their rules."""
    addresses = ADDRESSES[family]
    source, destination = addresses.load(AT, End.SOURCE), addresses.load(AT, End.DESTINATION)
    states = number(CtState.ESTABLISHED | CtState.RELATED)
    known = ct(AT, Ct.STATE), bitwise(AT, states, bytes(4)), compare(AT, bytes(4), equal=False), _ACCEPT
    both = source, addresses.load(register(addresses.length), End.DESTINATION), lookup(OWN.name, AT), _ACCEPT
    of_node = fib_type_of_source(AT), _LOCAL
    egress = source, lookup_verdict(MAPS[Direction.EGRESS].name, AT)
    ingress = destination, lookup_verdict(MAPS[Direction.INGRESS].name, AT)
    begin = [(known, GOES_ON), *_neighbours(family)]
    forged = *of_node, *ingress
    closing = _closing(family) if extra.closed else {chain: [] for chain in BASE_CHAINS}
    cut = [(_answer(family), OF_CUT)] if extra.cut is not None else []
    return {
        PREROUTING: _rules(
            PREROUTING, (known, GOES_ON), *closing[PREROUTING], (forged, "arrived with an address of this node")
        ),
        POSTROUTING: _rules(
            POSTROUTING,
            *begin,
            *cut,
            (both, "a pod reaches itself"),
            (egress, "from an isolated pod"),
            ((*of_node, _ACCEPT), "the node reaches its pods"),
            *closing[POSTROUTING],
            (ingress, "to an isolated pod"),
        ),
        INPUT: _rules(INPUT, *begin, *closing[INPUT], (egress, "from an isolated pod")),
    }


def _closing(family: Family) -> dict[Chain, list[_Rule]]:
    """What drops packets from and to addresses of CLOSED that are not in KNOWN, unless they are the node's own."""
    source, destination = (
        (ADDRESSES[family].load(AT, end), lookup(CLOSED.name, AT), lookup(KNOWN.name, AT, inverted=True))
        for end in (End.SOURCE, End.DESTINATION)
    )
    to_others = fib_type_of_source(AT), _LOCAL, fib_type_of_destination(AT), _NOT_LOCAL, *destination
    return {
        PREROUTING: [((*to_others, counter(), _DROP), TO_UNKNOWN)],
        POSTROUTING: [
            ((*source, counter(), _DROP), FROM_UNKNOWN),
            ((*destination, counter(), _DROP), TO_UNKNOWN),
        ],
        INPUT: [((fib_type_of_source(AT), _NOT_LOCAL, *source, counter(), _DROP), FROM_UNKNOWN)],
    }


def _answer(family: Family) -> tuple[bytes, ...]:
    """What drops a TCP packet that is in CUT, and no SYN."""
    addresses = ADDRESSES[family]
    protocol, port, client = (register(addresses.length + offset) for offset in (0, 4, 8))
    source = addresses.load(AT, End.SOURCE), meta(protocol, Meta.L4PROTO), payload(port, Header.TRANSPORT, 0, 2)
    key = *source, addresses.load(client, End.DESTINATION)
    return *without_syn().expressions, *key, lookup(CUT.name, AT), counter(), _DROP


def next_chains(family: Family) -> dict[Chain, list[NftRule]]:
    """The chains after the tier Admin with their rules. They and `NEXT_SETS` exist while a pod `is_of_cluster`."""
    addresses = ADDRESSES[family]
    source, destination = addresses.load(AT, End.SOURCE), addresses.load(AT, End.DESTINATION)
    both = source, addresses.load(register(addresses.length), End.DESTINATION)
    pods = {Direction.INGRESS: destination, Direction.EGRESS: source}
    return {
        chain: _rules(
            chain,
            ((*both, lookup(NEXT_OWN[direction].name, AT), _RETURN), "a pod reaches itself"),
            ((pods[direction], lookup_verdict(NEXT_MAPS[direction].name, AT)), "what the tier Admin has left"),
        )
        for direction, chain in NEXT.items()
    }


def group_rules(family: Family, group: Group, log_group: int | None = None) -> list[NftRule]:
    """The rules of a group's chain. `log_group` is that of nfnetlink_log; None: nothing is logged."""
    addresses = ADDRESSES[family]
    load = addresses.load(AT, _PEER[group.direction])
    protocol, port = register(addresses.length), register(addresses.length + 4)
    with_port = load, meta(protocol, Meta.L4PROTO), payload(port, Header.TRANSPORT, 2, 2)
    if group.tier is not Tier.NETWORK_POLICY:
        return _rules(Chain(group.chain), *_rules_of_parts(group, log_group, load, with_port))
    [sets] = group.sets
    return _rules(
        Chain(group.chain),
        ((load, lookup(sets.networks.name, AT), _RETURN), "allowed with all ports"),
        ((*with_port, lookup(sets.ports.name, AT), _RETURN), "an allowed port"),
        ((*with_port, lookup(sets.ranges.name, AT), _RETURN), "an allowed port of a network"),
        *_dropping(group, log_group),
    )


def _rules_of_parts(group: Group, log_group: int | None, load: bytes, with_port: tuple[bytes, ...]) -> Iterator[_Rule]:
    """The rules of a group of ClusterNetworkPolicies: for pods, then for networks, single ports before all ports."""
    leave = verdict(VerdictCode.GOTO, NEXT[group.direction].name)
    ends = {Action.ACCEPT: _RETURN, Action.PASS: leave}
    of_parts = list(zip(group.sets, group.parts, strict=True))
    for of_pods, peers in ((True, "pods"), (False, "networks")):
        some = [(sets, part.action) for sets, part in of_parts if part.of_pods == of_pods]
        asked = [(with_port, one, action) for sets, action in some for one in (sets.ports, sets.ranges)]
        asked += [((load,), sets.networks, action) for sets, action in some]
        for loads, one, action in asked:
            matches = *loads, lookup(one.name, AT)
            if action is Action.DENY:
                yield from _dropping(group, log_group, *matches)
            else:
                yield (*matches, ends[action]), f"{action}: {peers}"
    if group.tier is Tier.ADMIN:
        yield (leave,), "not decided by this tier"


def _dropping(group: Group, log_group: int | None, *matches: bytes) -> Iterator[_Rule]:
    """The rules that drop what matches, after they have logged some of it."""
    if log_group is not None:
        yield (*matches, limit(LOGGED_A_SECOND, LOGGED_AT_ONCE), log(log_group, group.chain)), LOGGED
    yield (*matches, counter(), _DROP), group.comment


def extra_elements(family: Family, extra: Extra) -> Iterator[tuple[NftSet, Element]]:
    """The elements of CLOSED and CUT."""
    yield from ((CLOSED, (network,)) for network in extra.closed if family_of(network) is family)
    for address, port, client in extra.cut or ():
        if family_of(address) is family:
            yield CUT, (address, int(Protocol.TCP), port, client)


def pod_elements(address: str, groups: PodGroups | None, extra: Extra = NO_EXTRA) -> Iterator[tuple[NftSet, Element]]:
    """The elements for the address of a pod with these groups, one of a set; none for one that is not in the plan."""
    if groups is None:
        return
    if extra.closed:
        yield KNOWN, (address,)
    own, with_next = (address, address), groups.is_of_cluster
    if any(groups) and not with_next:
        yield OWN, own
    for direction in Direction:
        keys = groups.of(direction)
        if not keys:
            continue
        first, last = keys[0], keys[-1]
        to_next = with_next and first.tier is not Tier.ADMIN
        yield MAPS[direction], (address, NEXT[direction].name if to_next else Group.of(first).chain)
        if with_next and last.tier is not Tier.ADMIN:
            yield NEXT_MAPS[direction], (address, Group.of(last).chain)
            if last.tier is Tier.NETWORK_POLICY:
                yield NEXT_OWN[direction], own


def _neighbours(family: Family) -> list[tuple[tuple[bytes, ...], str]]:
    """What a bridge shows of neighbours in IPv6. In IPv4 that is ARP, which these tables never see."""
    if family is Family.IPV4:
        return []
    is_icmp = meta(AT, Meta.L4PROTO), compare(AT, _ICMPV6)
    of_type = payload(AT, Header.TRANSPORT, 0, 1), between(AT, *_NEIGHBOURS)
    return [((*is_icmp, *of_type, _ACCEPT), "neighbours and multicast listeners")]


def _rules(chain: Chain, *described: tuple[Sequence[bytes], str]) -> list[NftRule]:
    return [NftRule(chain.name, tuple(expressions), comment) for expressions, comment in described]
