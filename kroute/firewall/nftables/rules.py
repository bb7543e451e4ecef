"""All rules of one family, in the order in which packets meet them. Their number does not depend on that of Services.

**nat**: a packet is marked on its way in, while it still has the destination that the client used. IPVS then replaces
that by a real server's address. On the way out only the mark tells which packets to masquerade. The kernel shows the
first packet of a connection to all chains of type nat in the order of their priorities, and stops at the first that
translates it. kroute's are a little before the standard ones, where most programs have theirs. So no program can keep a
packet from being marked, and none translates what kroute masquerades. What is for a VIP is translated to the VIP
itself, so that none leads it elsewhere, as portmap leads its host ports on every local address. An address that is not
bound yet is left to others: until then IPVS may not serve it, and another proxy's rules do.

**filter**: IPVS takes packets of pods and outside clients in the hook LOCAL_IN, after these rules. So the rules see
such packets with the destination that the client used. IPVS takes packets of this node's own processes in LOCAL_OUT,
just after the priority of destination NAT, and the rules for them are before that, at the priority of mangling. Packets
that it does not take there, because no virtual server exists, arrive on lo and meet the rules of the input chain.

The rules that refuse match only what belongs to no connection, of TCP only what has SYN, and the node's own addresses
are never in the set vip. So even an empty or half-filled set cuts off neither the node nor an established connection.

No rule accepts: in nf_tables what one table accepts another may still drop. Where another program's chain lets nothing
through that it does not name, `kroute check` says what to add there. So no rule looks into the set health-check.
"""

from collections.abc import Sequence

import msgspec

from kroute.firewall import reasons
from kroute.firewall.nftables.statements import (
    Action,
    Rule,
    Statement,
    answer,
    by_interface,
    clear_mark,
    drop,
    has_mark,
    in_set,
    jump,
    keep_destination,
    leave,
    masqueraded,
    more_than_syn,
    not_from_local_pods,
    of_no_connection,
    of_protocol,
    on_link,
    on_no_link,
    ping,
    refusals,
    rule,
    set_mark,
    stray_error,
    syn_ack,
    translated,
    with_address,
    without_syn,
)
from kroute.firewall.packet_trace import Hook, Packet, Rules, TraceResult
from kroute.firewall.policy import (
    are_local_pods_known,
    exemptions_of,
    pods_in_tunnels,
    pods_masqueraded,
    translated_source,
    tunnels_source,
)
from kroute.firewall.sets import SERVED, SERVED_EVERYWHERE, End, Sets
from kroute.kernel.net.links import TUNNELS
from kroute.kernel.nftables.objects import Chain, NftRule
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, Protocol, range_lengths
from kroute.settings import Settings

MARK, EGRESS, TO_NODES = "mark-masquerade", "pod-egress", "to-nodes"
DESTINATION_NAT, SOURCE_NAT = -100, 100
"""NF_IP_PRI_NAT_DST and NF_IP_PRI_NAT_SRC; in nft, `dstnat` and `srcnat`."""

REFUSE, VIP_PORTS, NEW = "refuse", "vip-ports", "new-connections"  # a name may not be a word of nft's, as reject is
SOURCE_RANGES, ODD_SEGMENTS = "source-ranges", "odd-segments"
OWN_NEW, OWN_ANSWERS = "own-new-connections", "own-answers"
FILTER, MANGLE = 0, -150
"""NF_IP_PRI_FILTER and NF_IP_PRI_MANGLE."""
BEFORE_OTHERS = 5


class ChainRules(msgspec.Struct, frozen=True):
    """A chain with all its rules. `hook`: where the kernel sends packets into it; None if other chains do."""

    chain: Chain
    rules: Sequence[Rule]
    hook: Hook | None = None

    @property
    def name(self) -> str:
        return self.chain.name

    @property
    def kernel_rules(self) -> list[NftRule]:
        """The rules as the kernel has them."""
        return [NftRule(self.name, each.expressions, each.comment) for each in self.rules]


def trace_packet(chains: Sequence[ChainRules], hook: Hook, packet: Packet, sets: Sets) -> TraceResult:
    """Send a packet through the base chain of a hook.

    The comments of a base chain's jumps are left out: they say which packets are looked at, and not why.
    """
    base = next(chain for chain in chains if chain.hook is hook)
    by_name = {chain.name: chain for chain in chains}
    met: list[str] = []
    action, packet = _trace(by_name, base, packet, sets, met)
    return TraceResult(action.ending, action.detail, tuple(met), packet.mark)


def _trace(
    chains: dict[str, ChainRules], chain: ChainRules, packet: Packet, sets: Sets, met: list[str]
) -> tuple[Action, Packet]:
    """The action that ended the packet's way, or one that has no ending, and the packet behind the chain."""
    for each in chain.rules:
        after = each.meet(packet, sets)
        if after is None:
            continue
        packet, action = after, each.action
        if chain.hook is None or action is None or not action.chain:
            met.append(each.comment)
        if action is not None and action.chain:
            action, packet = _trace(chains, chains[action.chain], packet, sets, met)
            action = action if action.ending else None
        if action is not None:
            return action, packet
    return Action(), packet


def filter_chains(settings: Settings, family: Family) -> list[ChainRules]:
    """Each chain is before those that jump to it."""
    return [
        ChainRules(Chain(REFUSE), [rule(reasons.REFUSED, refusal) for refusal in refusals(family)]),
        ChainRules(Chain(VIP_PORTS), _vip_ports(family)),
        ChainRules(Chain(SOURCE_RANGES), _source_ranges(family)),
        ChainRules(Chain(ODD_SEGMENTS), [rule(reasons.SERVED, in_set(family, which), drop()) for which in SERVED]),
        ChainRules(Chain(NEW), _new_connections(settings, family)),
        ChainRules(Chain(OWN_NEW), [_not_begun(), _restricted(family), _odd_segments()]),
        ChainRules(Chain(OWN_ANSWERS), _own_answers(family)),
        *_direct_return(settings, family),
        ChainRules(
            Chain("input", "filter", "input", FILTER - BEFORE_OTHERS),
            [*_delivered(settings, family), rule(reasons.NEW_CONNECTIONS, of_no_connection(), jump(NEW))],
            Hook.INPUT,
        ),
        ChainRules(
            Chain("output", "filter", "output", MANGLE),
            [
                rule(reasons.NEW_CONNECTIONS, of_no_connection(), jump(OWN_NEW)),
                rule(reasons.ANSWERS, answer(), jump(OWN_ANSWERS)),
            ],
            Hook.OUTPUT,
        ),
    ]


def _direct_return(settings: Settings, family: Family) -> list[ChainRules]:
    """Mark packets to VIPs on no link before they are routed: by the mark they are delivered to this node."""
    if not settings.direct_return:
        return []
    chain = Chain("prerouting", "filter", "prerouting", MANGLE)
    marked = set_mark(settings.direct_return_mark)
    to_vip = rule(reasons.TO_VIP, in_set(family, AddressSet.VIP), on_no_link(), marked)
    return [ChainRules(chain, [to_vip], Hook.PREROUTING)]


def _delivered(settings: Settings, family: Family) -> list[Rule]:
    """Take the mark off again before IPVS and other programs' rules meet the packet: they may use the same bit."""
    if not settings.direct_return:
        return []
    mark, to_vip = settings.direct_return_mark, in_set(family, AddressSet.VIP)
    return [rule(reasons.DELIVERED, has_mark(mark), to_vip, on_no_link(), clear_mark(mark))]


def _new_connections(settings: Settings, family: Family) -> list[Rule]:
    others = not_from_local_pods(settings, family)
    refuse = jump(REFUSE)
    return [
        _not_begun(),
        _restricted(family),
        _odd_segments(),
        *(rule(reasons.SERVED, in_set(family, which), leave()) for which in SERVED_EVERYWHERE),
        rule(reasons.NO_ENDPOINT, in_set(family, AddressSet.NO_ENDPOINT), refuse),
        rule(reasons.NO_LOCAL, others, in_set(family, AddressSet.NO_LOCAL), refuse),
        rule(reasons.VIP, in_set(family, AddressSet.VIP), jump(VIP_PORTS)),
    ]


def _vip_ports(family: Family) -> list[Rule]:
    return [
        rule(reasons.SERVED, in_set(family, AddressSet.EXTERNAL_LOCAL), leave()),
        rule(reasons.PING, ping(family), leave()),
        rule(reasons.STRAY_ERROR, stray_error(family), leave()),
        rule(reasons.HOST_PORT, jump(REFUSE)),
    ]


def _not_begun() -> Rule:
    return rule(reasons.NOT_BEGUN, without_syn(), leave())


def _odd_segments() -> Rule:
    """IPVS would make a connection of these, and nothing masquerades what conntrack calls invalid."""
    return rule(reasons.ODD_SEGMENT, more_than_syn(), jump(ODD_SEGMENTS))


def _restricted(family: Family) -> Rule:
    return rule(reasons.RESTRICTED, in_set(family, AddressSet.RESTRICTED), jump(SOURCE_RANGES))


def _source_ranges(family: Family) -> list[Rule]:
    """The rules of `loadBalancerSourceRanges`: one for each prefix length that a range may have.

    The last one drops the packet, as a firewall does, and as kube-proxy does too.
    """
    lengths = range_lengths(family)
    within = [
        rule(reasons.WITHIN_RANGES, in_set(family, AddressSet.SOURCE_RANGE, length=length), leave())
        for length in lengths
    ]
    return [*within, rule(reasons.OUTSIDE_RANGES, drop())]


def _own_answers(family: Family) -> list[Rule]:
    """A process of the node never answers from a VIP.

    Where the endpoint of a Service is a VIP, IPVS hands the packet to the process that listens on that port: in
    LOCAL_IN, behind every rule that could refuse it. So the answer is dropped; of TCP the first one only, to cut no
    connection that is open when its address becomes a VIP.
    """
    from_vip = in_set(family, AddressSet.VIP, by=(End.SOURCE,))
    answers = [syn_ack(), of_protocol(Protocol.UDP), of_protocol(Protocol.SCTP)]
    return [rule(reasons.BEHIND_VIP, answered, from_vip, drop()) for answered in answers]


def nat_chains(settings: Settings, family: Family, node: NodeFacts) -> list[ChainRules]:
    """Each chain is before those that jump to it."""
    before_ipvs, behind_ipvs = DESTINATION_NAT - BEFORE_OTHERS, SOURCE_NAT - BEFORE_OTHERS
    kept = rule(reasons.KEPT, in_set(family, AddressSet.VIP), on_link(), keep_destination(family))
    return [
        ChainRules(Chain(MARK), _marking(settings, family, node)),
        ChainRules(
            Chain("nat-prerouting", "nat", "prerouting", before_ipvs),
            [rule(reasons.FROM_ELSEWHERE, jump(MARK)), kept],
            Hook.NAT_PREROUTING,
        ),
        ChainRules(
            Chain("nat-output", "nat", "output", before_ipvs),
            [rule(reasons.OF_THIS_NODE, jump(MARK)), kept],
            Hook.NAT_OUTPUT,
        ),
        *_to_nodes(settings, family),
        *_pod_egress(settings, family, node),
        ChainRules(
            Chain("nat-postrouting", "nat", "postrouting", behind_ipvs),
            _masquerading(settings, family, node),
            Hook.NAT_POSTROUTING,
        ),
    ]


def _marking(settings: Settings, family: Family, node: NodeFacts) -> list[Rule]:
    marked = set_mark(settings.masquerade_mark)
    return [
        rule(reasons.NOT_BEGUN, without_syn(), leave()),
        *_exemptions(settings, family),
        *_cluster_ip_marking(settings, family, node),
        rule(reasons.TO_EXTERNAL, in_set(family, AddressSet.EXTERNAL), marked),
    ]


def _masquerading(settings: Settings, family: Family, node: NodeFacts) -> list[Rule]:
    mark = settings.masquerade_mark
    into_tunnels: list[Rule] = []
    if (own := tunnels_source(settings, family, node)) is not None:
        through = by_interface(TUNNELS), has_mark(mark), clear_mark(mark)
        into_tunnels = [rule(reasons.TO_NODES, *through, translated(family, own))]
    return [
        rule(reasons.HAIRPIN, in_set(family, AddressSet.HAIRPIN), masqueraded()),
        *(
            rule(reasons.TO_NODES, with_address(family, End.SOURCE, pods), by_interface(TUNNELS), jump(TO_NODES))
            for pods in pods_in_tunnels(settings, family)
        ),
        *into_tunnels,
        rule(reasons.MARKED, has_mark(mark), clear_mark(mark), _translation(settings, family, node)),
        *(
            rule(reasons.FROM_PODS, with_address(family, End.SOURCE, pods), jump(EGRESS))
            for pods in pods_masqueraded(settings, family)
        ),
    ]


def _to_nodes(settings: Settings, family: Family) -> list[ChainRules]:
    """Take the mark from what pods send to nodes through tunnels: those take no other source out of them."""
    if not (networks := pods_in_tunnels(settings, family)):
        return []
    to_pods = [rule(reasons.TO_PODS, with_address(family, End.DESTINATION, pods), leave()) for pods in networks]
    return [ChainRules(Chain(TO_NODES), [*to_pods, rule(reasons.TO_NODES, clear_mark(settings.masquerade_mark))])]


def _pod_egress(settings: Settings, family: Family, node: NodeFacts) -> list[ChainRules]:
    """Masquerade what pods send to outside of their networks. Here IPVS has replaced the destination already."""
    if not (networks := pods_masqueraded(settings, family)):
        return []
    to_pods = [rule(reasons.TO_PODS, with_address(family, End.DESTINATION, pods), leave()) for pods in networks]
    to_nodes = rule(reasons.TO_NODES, by_interface(TUNNELS), leave())
    others = rule(reasons.POD_EGRESS, _translation(settings, family, node))
    return [ChainRules(Chain(EGRESS), [*to_pods, to_nodes, *_exemptions(settings, family), others])]


def _translation(settings: Settings, family: Family, node: NodeFacts) -> Statement:
    address = translated_source(settings, family, node)
    return translated(family, address) if address is not None else masqueraded()


def _exemptions(settings: Settings, family: Family) -> list[Rule]:
    """The rules of `--masquerade-exempt`. They match the client's destination: IPVS has not replaced it yet."""
    return [
        rule(
            reasons.EXEMPT,
            with_address(family, End.SOURCE, exemption.source),
            with_address(family, End.DESTINATION, exemption.destination),
            leave(),
        )
        for exemption in exemptions_of(settings, family)
    ]


def _cluster_ip_marking(settings: Settings, family: Family, node: NodeFacts) -> list[Rule]:
    to_cluster_ip, marked = in_set(family, AddressSet.CLUSTER_IP), set_mark(settings.masquerade_mark)
    if settings.masquerade_all:
        return [rule(reasons.EVERYTHING_TO_CLUSTER_IP, to_cluster_ip, marked)]
    if not are_local_pods_known(settings, family, node):
        return []
    return [rule(reasons.OTHERS_TO_CLUSTER_IP, not_from_local_pods(settings, family), to_cluster_ip, marked)]


class NftablesRules(Rules, frozen=True):
    """The chains of one family; each is before those that jump to it."""

    family: Family
    chains: Sequence[ChainRules]

    @property
    def kernel_chains(self) -> dict[str, Chain]:
        """The chains as the kernel has them, by name."""
        return {chain.name: chain.chain for chain in self.chains}

    @property
    def kernel_rules(self) -> list[NftRule]:
        """The rules of all chains as the kernel has them."""
        return [kernel_rule for chain in self.chains for kernel_rule in chain.kernel_rules]

    def trace(self, hook: Hook, packet: Packet, sets: Sets) -> TraceResult:
        return trace_packet(self.chains, hook, packet, sets)


def family_rules(settings: Settings, family: Family, node: NodeFacts) -> NftablesRules:
    """The rules for a node with these facts."""
    return NftablesRules(family, [*filter_chains(settings, family), *nat_chains(settings, family, node)])
