"""The masquerade rules, in the order in which packets meet them. Their number does not depend on that of Services.

A packet is marked on its way in (nat PREROUTING, or OUTPUT for this node's own packets), while it still has the
destination that the client used. IPVS then replaces that by a real server's address. On the way out (nat POSTROUTING)
only the mark tells which packets to masquerade. A rule's text is what iptables-save prints after `-A CHAIN`.
"""

from kroute.firewall import reasons
from kroute.firewall.iptables.matches import in_set, not_from_local_pods, without_syn
from kroute.firewall.policy import Marked, exemptions_of, masqueraded_to_cluster_ips, translated_source
from kroute.kernel.iptables.rule import comment
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet
from kroute.settings import Settings


def masquerade_rules(settings: Settings, family: Family, node: NodeFacts, *, random_fully: bool) -> TableRules:
    """The nat rules of one family. `random_fully`: whether the kernel can choose source ports at random."""
    mark = f"{settings.masquerade_mark:#x}"
    random = " --random-fully" if random_fully else ""
    external = in_set(family, AddressSet.EXTERNAL)
    hairpin = in_set(family, AddressSet.HAIRPIN)
    source = _source_translation(settings, family, node)
    return TableRules(
        "nat",
        chains={
            "KROUTE-SERVICES": [
                without_syn(),
                *_exemptions(settings, family),
                *_cluster_ip_marking(settings, family, node),
                f"{comment(reasons.TO_EXTERNAL)} {external} -j KROUTE-MARK-MASQ",
            ],
            "KROUTE-MARK-MASQ": [
                f"{comment('this packet is masqueraded on its way out')} -j MARK --set-xmark {mark}/{mark}",
            ],
            "KROUTE-POSTROUTING": [
                f"{comment(reasons.HAIRPIN)} {hairpin} -j MASQUERADE{random}",
                f"{comment('all else leaves as it is, unless marked')} -m mark ! --mark {mark}/{mark} -j RETURN",
                f"{comment('the mark has done its duty')} -j MARK --set-xmark {mark}/0x0",
                f"{comment(reasons.MARKED)} {source}{random}",
            ],
        },
        jumps=[
            ("PREROUTING", f"{comment(reasons.FROM_ELSEWHERE)} -j KROUTE-SERVICES"),
            ("OUTPUT", f"{comment(reasons.OF_THIS_NODE)} -j KROUTE-SERVICES"),
            ("POSTROUTING", f"{comment('kroute: masquerading')} -j KROUTE-POSTROUTING"),
        ],
    )


def _exemptions(settings: Settings, family: Family) -> list[str]:
    """The rules of `--masquerade-exempt`. They match the client's destination: IPVS has not replaced it yet."""
    return [
        f"-s {exemption.source} -d {exemption.destination} {comment(reasons.EXEMPT)} -j RETURN"
        for exemption in exemptions_of(settings, family)
    ]


def _cluster_ip_marking(settings: Settings, family: Family, node: NodeFacts) -> list[str]:
    to_cluster_ip = f"{in_set(family, AddressSet.CLUSTER_IP)} -j KROUTE-MARK-MASQ"
    match masqueraded_to_cluster_ips(settings, family, node):
        case Marked.EVERYBODY:
            return [f"{comment(reasons.EVERYTHING_TO_CLUSTER_IP)} {to_cluster_ip}"]
        case Marked.NOT_LOCAL_PODS:
            others = not_from_local_pods(settings, family)
            return [f"{others} {comment(reasons.OTHERS_TO_CLUSTER_IP)} {to_cluster_ip}"]
        case Marked.NOBODY:
            return []


def _source_translation(settings: Settings, family: Family, node: NodeFacts) -> str:
    address = translated_source(settings, family, node)
    return f"-j SNAT --to-source {address}" if address is not None else "-j MASQUERADE"
