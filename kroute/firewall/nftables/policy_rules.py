"""The tables `ip kroute-policies` and `ip6 kroute-policies`: their chains, rules and sets.

Packets meet these base chains. `postrouting` has what goes to pods and leaves them, after IPVS has replaced the
destination of packets to Services, and before anything is masqueraded: it sees the addresses of client and pod. `input`
has what pods send to their own node; what IPVS took does not arrive there, unless its real server is on the node. A
packet that arrives with an address of this node as its source was forged by a pod of the same bridge, or by a neighbour
of the node: `prerouting` asks the groups about it, since `postrouting` lets the node reach its pods. An accepted packet
only leaves the chain: others may still drop it.

Each group of pods has three sets and a chain, which returns what the group allows and drops all else. Verdict maps lead
from the address of an isolated pod to the chains of its groups: a packet meets the same number of rules, however many
policies and pods there are.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from kroute.firewall.nftables.statements import ADDRESSES, AT
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
from kroute.model.addresses import Family
from kroute.model.plan import Protocol
from kroute.model.policy_plan import Direction, GroupKey, PodGroups

PREROUTING = Chain("prerouting", "filter", "prerouting", 0)
POSTROUTING, INPUT = Chain("postrouting", "filter", "postrouting", 90), Chain("input", "filter", "input", 110)
"""IPVS is in the hook input at 98 and 99. Source NAT is at 100, and kroute's at 95 (`firewall.nftables.rules`)."""
BASE_CHAINS = PREROUTING, POSTROUTING, INPUT
MAPS = {direction: NftSet(direction.lower(), ("ip", "jump")) for direction in Direction}
"""From the address of an isolated pod to the chain of its group."""
GOES_ON = "a connection that was allowed goes on"
LOGGED = "logged before it is dropped"
OWN = NftSet("own", ("ip", "ip"))
"""The address of each isolated pod, twice: a pod reaches itself."""

_PEER = {Direction.INGRESS: End.SOURCE, Direction.EGRESS: End.DESTINATION}
_ICMPV6 = b"\x3a"
_NEIGHBOURS = b"\x82", b"\x89"
"""The types of ICMPv6 from 130 to 137: MLD, routers and neighbours. MLD's 143 never has the address of a pod."""
_ACCEPT, _RETURN = verdict(VerdictCode.ACCEPT), verdict(VerdictCode.RETURN)


class Group(NamedTuple):
    """The names of a group's chain and sets, which are the same after a restart, and the chain's comment.

    `networks` are peers with all ports, `ports` addresses with one port, `ranges` all others. The last is a
    concatenation of intervals, which takes the kernel time by its size with each change; few peers need it.
    """

    chain: str
    peer: End
    comment: str

    @classmethod
    def of(cls, key: GroupKey) -> "Group":
        digest = blake2b(msgspec.json.encode(key), digest_size=16).hexdigest()
        return cls(f"{key.direction.lower()}-{digest}", _PEER[key.direction], key.description[:LONGEST_COMMENT])

    @property
    def networks(self) -> NftSet:
        return NftSet(f"{self.chain}-networks", ("net",))

    @property
    def ports(self) -> NftSet:
        return NftSet(f"{self.chain}-ports", ("ip", "port"))

    @property
    def ranges(self) -> NftSet:
        return NftSet(f"{self.chain}-ranges", ("net", "ports"))

    @property
    def sets(self) -> tuple[NftSet, ...]:
        return self.networks, self.ports, self.ranges

    def place(self, network: str, protocol: Protocol | None, first: int, last: int) -> tuple[NftSet, Element]:
        """The set and the element for a network and its range of ports."""
        address, _, length = network.partition("/")
        if protocol is None:
            return self.networks, (network,)
        if first == last and length == ("128" if ":" in address else "32"):
            return self.ports, (address, int(protocol), first)
        return self.ranges, (network, int(protocol), first, last)


def base_chains(family: Family) -> dict[Chain, list[NftRule]]:
    """The base chains with their rules."""
    addresses = ADDRESSES[family]
    source, destination = addresses.load(AT, End.SOURCE), addresses.load(AT, End.DESTINATION)
    states = number(CtState.ESTABLISHED | CtState.RELATED)
    known = ct(AT, Ct.STATE), bitwise(AT, states, bytes(4)), compare(AT, bytes(4), equal=False), _ACCEPT
    both = source, addresses.load(register(addresses.length), End.DESTINATION), lookup(OWN.name, AT), _ACCEPT
    of_node = fib_type_of_source(AT), compare(AT, number(RouteType.LOCAL))
    egress = source, lookup_verdict(MAPS[Direction.EGRESS].name, AT)
    ingress = destination, lookup_verdict(MAPS[Direction.INGRESS].name, AT)
    begin = [(known, GOES_ON), *_neighbours(family)]
    forged = *of_node, *ingress
    return {
        PREROUTING: _rules(PREROUTING, (known, GOES_ON), (forged, "arrived with an address of this node")),
        POSTROUTING: _rules(
            POSTROUTING,
            *begin,
            (both, "a pod reaches itself"),
            (egress, "from an isolated pod"),
            ((*of_node, _ACCEPT), "the node reaches its pods"),
            (ingress, "to an isolated pod"),
        ),
        INPUT: _rules(INPUT, *begin, (egress, "from an isolated pod")),
    }


def group_rules(family: Family, group: Group, log_group: int | None = None) -> list[NftRule]:
    """The rules of a group's chain. `log_group` is that of nfnetlink_log; None: nothing is logged."""
    addresses = ADDRESSES[family]
    load = addresses.load(AT, group.peer)
    protocol, port = register(addresses.length), register(addresses.length + 4)
    ports = meta(protocol, Meta.L4PROTO), payload(port, Header.TRANSPORT, 2, 2)
    return _rules(
        Chain(group.chain),
        ((load, lookup(group.networks.name, AT), _RETURN), "allowed with all ports"),
        ((load, *ports, lookup(group.ports.name, AT), _RETURN), "an allowed port"),
        ((load, *ports, lookup(group.ranges.name, AT), _RETURN), "an allowed port of a network"),
        *([] if log_group is None else [(_logged(group, log_group), LOGGED)]),
        ((counter(), verdict(VerdictCode.DROP)), group.comment),
    )


def pod_elements(address: str, groups: PodGroups | None) -> Iterator[tuple[NftSet, Element]]:
    """The elements for the address of a pod with these groups; none for one that is not isolated."""
    if groups is None:
        return
    yield OWN, (address, address)
    for direction, key in zip(Direction, groups, strict=True):
        if key is not None:
            yield MAPS[direction], (address, Group.of(key).chain)


def _logged(group: Group, log_group: int) -> tuple[bytes, ...]:
    return limit(LOGGED_A_SECOND, LOGGED_AT_ONCE), log(log_group, group.chain)


def _neighbours(family: Family) -> list[tuple[tuple[bytes, ...], str]]:
    """What a bridge shows of neighbours in IPv6. In IPv4 that is ARP, which these tables never see."""
    if family is Family.IPV4:
        return []
    is_icmp = meta(AT, Meta.L4PROTO), compare(AT, _ICMPV6)
    of_type = payload(AT, Header.TRANSPORT, 0, 1), between(AT, *_NEIGHBOURS)
    return [((*is_icmp, *of_type, _ACCEPT), "neighbours and multicast listeners")]


def _rules(chain: Chain, *described: tuple[Sequence[bytes], str]) -> list[NftRule]:
    return [NftRule(chain.name, tuple(expressions), comment) for expressions, comment in described]
