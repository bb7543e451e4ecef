"""The masquerade rules, in the order in which packets meet them. Their number does not depend on that of Services.

A packet is marked on its way in, while it still has the destination that the client used. IPVS then replaces that by a
real server's address. On the way out only the mark tells which packets to masquerade.

The kernel shows the first packet of a connection to all chains of type nat in the order of their priorities, and stops
at the first that translates it. kroute's are a little before the standard ones, where most programs have theirs. So no
program can keep a packet from being marked, and none translates what kroute masquerades.
"""

from kroute.firewall import reasons
from kroute.firewall.nftables.actions import clear_mark, jump, leave, masqueraded, set_mark, translated
from kroute.firewall.nftables.chains import BaseChain, ChainRules
from kroute.firewall.nftables.matches import has_mark, in_set, not_from_local_pods, with_address, without_syn
from kroute.firewall.nftables.statements import Rule, rule
from kroute.firewall.packet_trace import Hook
from kroute.firewall.policy import Marked, exemptions_of, masqueraded_to_cluster_ips, translated_source
from kroute.firewall.sets import End
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet
from kroute.settings import Settings

MARK = "mark-masquerade"
DESTINATION_NAT, SOURCE_NAT = -100, 100
"""NF_IP_PRI_NAT_DST and NF_IP_PRI_NAT_SRC; in nft, `dstnat` and `srcnat`."""
BEFORE_OTHERS = 5


def nat_chains(settings: Settings, family: Family, node: NodeFacts) -> list[ChainRules]:
    """Each chain is before those that jump to it."""
    before_ipvs, behind_ipvs = DESTINATION_NAT - BEFORE_OTHERS, SOURCE_NAT - BEFORE_OTHERS
    return [
        ChainRules(MARK, _marking(settings, family, node)),
        ChainRules(
            "nat-prerouting",
            [rule(reasons.FROM_ELSEWHERE, jump(MARK))],
            BaseChain(Hook.NAT_PREROUTING, "nat", "prerouting", before_ipvs),
        ),
        ChainRules(
            "nat-output",
            [rule(reasons.OF_THIS_NODE, jump(MARK))],
            BaseChain(Hook.NAT_OUTPUT, "nat", "output", before_ipvs),
        ),
        ChainRules(
            "nat-postrouting",
            _masquerading(settings, family, node),
            BaseChain(Hook.NAT_POSTROUTING, "nat", "postrouting", behind_ipvs),
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
    address = translated_source(settings, family, node)
    translation = translated(family, address) if address is not None else masqueraded()
    return [
        rule(reasons.HAIRPIN, in_set(family, AddressSet.HAIRPIN), masqueraded()),
        rule(reasons.MARKED, has_mark(mark), clear_mark(mark), translation),
    ]


def _exemptions(settings: Settings, family: Family) -> list[Rule]:
    """The rules of `--masquerade-exempt`. They match the client's destination: IPVS has not replaced it yet."""
    return [
        rule(
            reasons.EXEMPT,
            with_address(family, End.SOURCE, it.source),
            with_address(family, End.DESTINATION, it.destination),
            leave(),
        )
        for it in exemptions_of(settings, family)
    ]


def _cluster_ip_marking(settings: Settings, family: Family, node: NodeFacts) -> list[Rule]:
    to_cluster_ip, marked = in_set(family, AddressSet.CLUSTER_IP), set_mark(settings.masquerade_mark)
    match masqueraded_to_cluster_ips(settings, family, node):
        case Marked.EVERYBODY:
            return [rule(reasons.EVERYTHING_TO_CLUSTER_IP, to_cluster_ip, marked)]
        case Marked.NOT_LOCAL_PODS:
            others = not_from_local_pods(settings, family)
            return [rule(reasons.OTHERS_TO_CLUSTER_IP, others, to_cluster_ip, marked)]
        case Marked.NOBODY:
            return []
