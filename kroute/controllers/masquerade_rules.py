"""The masquerade rules, in the order in which packets meet them. However many Services there are, the rules are these.

A packet is marked on its way in (nat PREROUTING, or OUTPUT for this node's own), while it still carries the address
that the client wrote. IPVS then replaces that by a real server's, and the mark is what is left on the way out (nat
POSTROUTING). The text of a rule is that which iptables-save prints behind `-A CHAIN`.
"""

import socket
from ipaddress import ip_network
from typing import NamedTuple

from kroute.kernel.ipset import SetDefinition
from kroute.kernel.xtables import TableRules
from kroute.planning.plan import AddressSet
from kroute.settings import Settings

TABLE = "nat"
PREFIX = "KROUTE-"
"""With which the name of everything begins that kroute makes in iptables and ipset."""

MAX_ENTRIES = 262_144
"""Of each set. The kernel's own default of 65,536 is less than a large cluster's ports."""

HASH_SIZE = 1024
"""With which a set begins; it grows by itself."""


class Family(NamedTuple):
    """An address family: its number, how people and set names spell it."""

    number: int
    name: str
    set_prefix: str


IPV4 = Family(socket.AF_INET, "IPv4", PREFIX)
IPV6 = Family(socket.AF_INET6, "IPv6", f"{PREFIX}6-")
FAMILIES = (IPV4, IPV6)

CLUSTER_CIDR = "CLUSTER-CIDR"
"""The middle of the name of the set that holds `--cluster-cidr`; the others are AddressSet's."""

SET_TYPES = {
    AddressSet.CLUSTER_IP.value: "hash:ip,port",
    AddressSet.HAIRPIN.value: "hash:ip,port,ip",
    CLUSTER_CIDR: "hash:net",
}


def family_of(address: str) -> Family:
    """The family of an address or network."""
    return IPV6 if ":" in address else IPV4


def set_definitions() -> list[SetDefinition]:
    """All sets of both families."""
    return [
        SetDefinition(f"{family.set_prefix}{middle}", type_, family.number, HASH_SIZE, MAX_ENTRIES)
        for family in FAMILIES
        for middle, type_ in SET_TYPES.items()
    ]


def cluster_networks(settings: Settings) -> list[tuple[str, str]]:
    """The set and element of each cluster network. hash:net knows no /0, so that one is two halves."""
    entries = []
    for cidr in settings.cluster_cidrs:
        network = ip_network(cidr)
        halves = list(network.subnets()) if network.prefixlen == 0 else [network]
        entries += [(f"{family_of(cidr).set_prefix}{CLUSTER_CIDR}", str(half)) for half in halves]
    return entries


def masquerade_rules(settings: Settings, family: Family, *, random_fully: bool) -> TableRules:
    """The rules of one family. `random_fully`: whether MASQUERADE can choose ports at random."""
    mark = f"{settings.masquerade_mark:#x}"
    masquerade = "-j MASQUERADE --random-fully" if random_fully else "-j MASQUERADE"
    hairpin = f"--match-set {family.set_prefix}HAIRPIN dst,dst,src"
    return TableRules(
        TABLE,
        chains={
            "KROUTE-SERVICES": [*_exemptions(settings, family), *_marking(settings, family)],
            "KROUTE-MARK-MASQ": [
                f"{_comment('this packet is masqueraded on its way out')} -j MARK --set-xmark {mark}/{mark}",
            ],
            "KROUTE-POSTROUTING": [
                f"{_comment('a pod that reaches itself through a Service')} -m set {hairpin} {masquerade}",
                f"{_comment('all else leaves as it is, unless marked')} -m mark ! --mark {mark}/{mark} -j RETURN",
                f"{_comment('the mark has done its duty')} -j MARK --set-xmark {mark}/0x0",
                f"{_comment('marked packets leave with an address of this node')} {masquerade}",
            ],
        },
        jumps=[
            ("PREROUTING", f"{_comment('kroute: Services, for packets from elsewhere')} -j KROUTE-SERVICES"),
            ("OUTPUT", f"{_comment('kroute: Services, for packets of this node')} -j KROUTE-SERVICES"),
            ("POSTROUTING", f"{_comment('kroute: masquerading')} -j KROUTE-POSTROUTING"),
        ],
    )


def _exemptions(settings: Settings, family: Family) -> list[str]:
    """`--masquerade-exempt`. The destination is what the client addressed: IPVS has not replaced it yet."""
    return [
        f"-s {exemption.source} -d {exemption.destination} {_comment('exempt from masquerading')} -j RETURN"
        for exemption in settings.masquerade_exemptions
        if family_of(exemption.source) is family
    ]


def _marking(settings: Settings, family: Family) -> list[str]:
    to_cluster_ip = f"-m set --match-set {family.set_prefix}CLUSTER-IP dst,dst -j KROUTE-MARK-MASQ"
    if settings.masquerade_all:
        return [f"{_comment('everything to a ClusterIP is masqueraded')} {to_cluster_ip}"]
    if any(family_of(cidr) is family for cidr in settings.cluster_cidrs):
        outside = f"-m set ! --match-set {family.set_prefix}CLUSTER-CIDR src"
        return [f"{_comment('from outside the cluster to a ClusterIP is masqueraded')} {outside} {to_cluster_ip}"]
    return []


def _comment(text: str) -> str:
    return f'-m comment --comment "{text}"'
