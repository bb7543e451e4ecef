"""The filter rules, in the order in which packets meet them. Their number does not depend on that of Services.

IPVS takes packets of pods and outside clients in the hook LOCAL_IN, after these rules. So the rules see such packets
with the destination that the client used. IPVS takes packets of this node's own processes in LOCAL_OUT, just after the
priority of destination NAT, and the rules for them are before that, at the priority of mangling. Packets that it does
not take there, because no virtual server exists, arrive on lo and meet the rules of the input chain.

The rules that refuse match only what belongs to no connection, of TCP only what has SYN, and the node's own addresses
are never in the set vip. So even an empty or half-filled set cuts off neither the node nor an established connection.

No rule accepts: in nf_tables what one table accepts another may still drop. Where another program's chain lets nothing
through that it does not name, `kroute check` says what to add there. So no rule looks into the set health-check.
"""

from kroute.firewall import reasons
from kroute.firewall.nftables.actions import clear_mark, drop, jump, leave, refusals, set_mark
from kroute.firewall.nftables.chains import BaseChain, ChainRules
from kroute.firewall.nftables.matches import (
    answer,
    has_mark,
    in_set,
    more_than_syn,
    not_from_local_pods,
    of_no_connection,
    of_protocol,
    on_no_link,
    ping,
    stray_error,
    syn_ack,
    without_syn,
)
from kroute.firewall.nftables.statements import Rule, rule
from kroute.firewall.packet_trace import Hook
from kroute.firewall.sets import SERVED, End
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet, Protocol, range_lengths
from kroute.settings import Settings

REFUSE, VIP_PORTS, NEW = "refuse", "vip-ports", "new-connections"  # a name may not be a word of nft's, as reject is
SOURCE_RANGES, ODD_SEGMENTS, OWN_NEW, OWN_ANSWERS = (
    "source-ranges",
    "odd-segments",
    "own-new-connections",
    "own-answers",
)
FILTER, MANGLE = 0, -150
"""NF_IP_PRI_FILTER and NF_IP_PRI_MANGLE."""
BEFORE_OTHERS = 5


def filter_chains(settings: Settings, family: Family) -> list[ChainRules]:
    """Each chain is before those that jump to it."""
    return [
        ChainRules(REFUSE, [rule(reasons.REFUSED, it) for it in refusals(family)]),
        ChainRules(VIP_PORTS, _vip_ports(family)),
        ChainRules(SOURCE_RANGES, _source_ranges(family)),
        ChainRules(ODD_SEGMENTS, [rule(reasons.SERVED, in_set(family, which), drop()) for which in SERVED]),
        ChainRules(NEW, _new_connections(settings, family)),
        ChainRules(OWN_NEW, [_not_begun(), _restricted(family), _odd_segments()]),
        ChainRules(OWN_ANSWERS, _own_answers(family)),
        *_direct_return(settings, family),
        ChainRules(
            "input",
            [*_delivered(settings, family), rule(reasons.NEW_CONNECTIONS, of_no_connection(), jump(NEW))],
            BaseChain(Hook.INPUT, "filter", "input", FILTER - BEFORE_OTHERS),
        ),
        ChainRules(
            "output",
            [
                rule(reasons.NEW_CONNECTIONS, of_no_connection(), jump(OWN_NEW)),
                rule(reasons.ANSWERS, answer(), jump(OWN_ANSWERS)),
            ],
            BaseChain(Hook.OUTPUT, "filter", "output", MANGLE),
        ),
    ]


def _direct_return(settings: Settings, family: Family) -> list[ChainRules]:
    """Mark packets to VIPs on no link before they are routed: by the mark they are delivered to this node."""
    if not settings.direct_return:
        return []
    marked = set_mark(settings.direct_return_mark)
    place = BaseChain(Hook.PREROUTING, "filter", "prerouting", MANGLE)
    return [
        ChainRules("prerouting", [rule(reasons.TO_VIP, in_set(family, AddressSet.VIP), on_no_link(), marked)], place)
    ]


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
        rule(reasons.NO_ENDPOINT, in_set(family, AddressSet.NO_ENDPOINT), refuse),
        rule(reasons.NO_LOCAL, others, in_set(family, AddressSet.NO_LOCAL), refuse),
        _odd_segments(),
        rule(reasons.VIP, in_set(family, AddressSet.VIP), jump(VIP_PORTS)),
    ]


def _vip_ports(family: Family) -> list[Rule]:
    return [
        *(rule(reasons.SERVED, in_set(family, which), leave()) for which in SERVED),
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
        rule(reasons.WITHIN_RANGES, in_set(family, AddressSet.SOURCE_RANGE, length=it), leave()) for it in lengths
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
    return [rule(reasons.BEHIND_VIP, it, from_vip, drop()) for it in answers]
