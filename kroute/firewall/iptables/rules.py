"""All rules of one family, in the order in which packets meet them. Their number does not depend on that of Services.

**nat**: a packet is marked on its way in (PREROUTING, or OUTPUT for this node's own packets), while it still has the
destination that the client used. What is for a VIP then passes no more rules of this table there: those of portmap
would lead it to a host port. An address that is not bound yet is left to others: until then IPVS may not serve it, and
another proxy's rules do. IPVS replaces the destination by a real server's address. On the way out (POSTROUTING) only
the mark tells which packets to masquerade.

**filter**: IPVS takes packets of pods and outside clients in the hook LOCAL_IN, after these rules. So the rules see
such packets with the destination that the client used. IPVS takes packets of this node's own processes in LOCAL_OUT,
where none of these rules is. Packets that it does not take there, because no virtual server exists, arrive on lo and
meet the rules.

The rules that refuse match only what belongs to no connection, of TCP only what has SYN, and the node's own addresses
are never in the set VIP. So even an empty or half-filled set cuts off neither the node nor an established connection.

For nodes where another program's rules admit only what they name (a chain's policy is DROP), two more chains accept
what a proxy needs, as kube-proxy's KUBE-FORWARD and KUBE-NODE-PORT do: real servers' answers, which are forwarded while
IPVS sends the requests by LOCAL_OUT (`KROUTE-FORWARD`), and the requests of load balancers for the node's health
(`KROUTE-HEALTH-CHECK`). The other program still decides which clients INPUT admits to the Services themselves.

A rule's text is what iptables-save prints after `-A CHAIN`.
"""

from collections.abc import Mapping

from kroute.firewall import reasons
from kroute.firewall.iptables.address_sets import set_name
from kroute.firewall.iptables.packet_trace import trace_packet
from kroute.firewall.packet_trace import Hook, Packet, Rules, TraceResult
from kroute.firewall.policy import (
    are_local_pods_known,
    exemptions_of,
    local_pods_interface,
    pods_in_tunnels,
    pods_masqueraded,
    translated_source,
    tunnels_source,
)
from kroute.firewall.sets import LOOKED_UP, SERVED, SERVED_EVERYWHERE, SHAPES, ElementPart, End, Sets
from kroute.kernel.iptables.rule import WITHOUT_SYN, comment
from kroute.kernel.iptables.xtables import TableRules
from kroute.kernel.net.links import TUNNELS
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet
from kroute.settings import Settings

OF_NO_CONNECTION = "-m conntrack --ctstate INVALID,NEW"
"""The match for the first packets of connections, and for what conntrack calls invalid.

Invalid are SYN-FIN, SYN-ACK, and packets with a wrong checksum, for example. IPVS makes a connection of every packet of
UDP and of every segment that has SYN (tcp_conn_schedule), so these are judged like the others.
"""

_REFUSALS = {
    Family.IPV4: (("-p tcp ", "tcp-reset"), ("-p sctp ", "icmp-proto-unreachable"), ("", "icmp-port-unreachable")),
    Family.IPV6: (("-p tcp ", "tcp-reset"), ("", "icmp6-port-unreachable")),
}
"""The answers that make a client give up at once, by protocol. An SCTP client ignores "port unreachable", but gives up
at "protocol unreachable" (RFC 4960, appendix C). REJECT cannot send the ICMPv6 message for that, so an SCTP client over
IPv6 tries until its timeout.
"""

_ECHO_REQUEST = {Family.IPV4: "-p icmp -m icmp --icmp-type 8", Family.IPV6: "-p ipv6-icmp -m icmp6 --icmpv6-type 128"}
_ICMP = {Family.IPV4: "icmp", Family.IPV6: "ipv6-icmp"}

_CHAINS = {
    Hook.OUTPUT: ("mangle", "OUTPUT"),
    Hook.INPUT: ("filter", "INPUT"),
    Hook.NAT_PREROUTING: ("nat", "PREROUTING"),
    Hook.NAT_OUTPUT: ("nat", "OUTPUT"),
    Hook.NAT_POSTROUTING: ("nat", "POSTROUTING"),
}
"""The table and the built-in chain of each hook."""


def without_syn() -> str:
    """The rule that lets TCP packets pass that do not open a connection, before any rule for new connections.

    After conntrack was loaded or flushed, such a packet of an established connection is NEW or INVALID
    (`nf_conntrack_tcp_loose`). Conntrack begins with the first rule that needs it: on a node that another proxy left
    without one, kroute's own.
    """
    return f"{WITHOUT_SYN} {comment(reasons.NOT_BEGUN)} -j RETURN"


def in_set(family: Family, which: AddressSet) -> str:
    """The match for packets that are in a set."""
    return f"-m set --match-set {_named(family, which)}"


def not_in_set(family: Family, which: AddressSet) -> str:
    """The match for packets that are not in a set."""
    return f"-m set ! --match-set {_named(family, which)}"


def from_vip(family: Family) -> str:
    """The match for packets whose source is an address of Services."""
    return f"-m set --match-set {set_name(family, AddressSet.VIP)} src"


def not_from_local_pods(settings: Settings, family: Family) -> str:
    """The match for packets that do not come from a local pod.

    If local pods are recognised by interface, packets of this node's own processes match, because they have no input
    interface. If by networks, those match unless their source is in one; with an empty set every packet matches.
    """
    interface = local_pods_interface(settings)
    return f"! -i {interface}" if interface is not None else not_in_set(family, AddressSet.POD_NETWORK)


def _named(family: Family, which: AddressSet) -> str:
    """The set's name, and the packet's end for each part of an element."""
    ends = iter(LOOKED_UP[which])
    parts = [End.DESTINATION if part is ElementPart.PORT else next(ends) for part in SHAPES[which]]
    return f"{set_name(family, which)} {','.join(parts)}"


def masquerade_rules(settings: Settings, family: Family, node: NodeFacts) -> TableRules:
    """The nat rules of one family."""
    mark = f"{settings.masquerade_mark:#x}"
    address = translated_source(settings, family, node)
    translation = f"-j SNAT --to-source {address}" if address is not None else "-j MASQUERADE"
    tunnelled = pods_in_tunnels(settings, family)
    egress, from_pods = _pod_egress(settings, family, translation)
    return TableRules(
        "nat",
        chains={
            "KROUTE-SERVICES": [
                without_syn(),
                *_exemptions(settings, family),
                *_cluster_ip_marking(settings, family, node),
                f"{comment(reasons.TO_EXTERNAL)} {in_set(family, AddressSet.EXTERNAL)} -j KROUTE-MARK-MASQ",
            ],
            "KROUTE-MARK-MASQ": [
                f"{comment('this packet is masqueraded on its way out')} -j MARK --set-xmark {mark}/{mark}"
            ],
            "KROUTE-POSTROUTING": [
                f"{comment(reasons.HAIRPIN)} {in_set(family, AddressSet.HAIRPIN)} -j MASQUERADE --random-fully",
                *(f"-s {pods} -o {TUNNELS}+ {comment(reasons.TO_NODES)} -j KROUTE-TO-NODES" for pods in tunnelled),
                f"{comment('all else leaves as it is, unless marked')} -m mark ! --mark {mark}/{mark} -j RETURN",
                f"{comment('the mark has done its duty')} -j MARK --set-xmark {mark}/0x0",
                *_into_tunnels(settings, family, node),
                f"{comment(reasons.MARKED)} {translation} --random-fully",
            ],
            "KROUTE-KEEP": [
                f"-m addrtype --dst-type LOCAL {comment(reasons.KEPT)} {in_set(family, AddressSet.VIP)} -j ACCEPT"
            ],
            **_to_nodes(mark, tunnelled),
            **egress,
        },
        jumps=[
            ("PREROUTING", f"{comment(reasons.FROM_ELSEWHERE)} -j KROUTE-SERVICES"),
            ("PREROUTING", f"{comment(reasons.FROM_ELSEWHERE)} -j KROUTE-KEEP"),
            ("OUTPUT", f"{comment(reasons.OF_THIS_NODE)} -j KROUTE-SERVICES"),
            ("OUTPUT", f"{comment(reasons.OF_THIS_NODE)} -j KROUTE-KEEP"),
            ("POSTROUTING", f"{comment('kroute: masquerading')} -j KROUTE-POSTROUTING"),
            *from_pods,
        ],
    )


def _to_nodes(mark: str, networks: list[str]) -> dict[str, list[str]]:
    """Take the mark from what pods send to nodes through tunnels: those take no other source out of them."""
    to_pods = [f"-d {pods} {comment(reasons.TO_PODS)} -j RETURN" for pods in networks]
    kept = f"{comment(reasons.TO_NODES)} -j MARK --set-xmark 0x0/{mark}"
    return {"KROUTE-TO-NODES": [*to_pods, kept]} if networks else {}


def _into_tunnels(settings: Settings, family: Family, node: NodeFacts) -> list[str]:
    own = tunnels_source(settings, family, node)
    return [f"-o {TUNNELS}+ {comment(reasons.TO_NODES)} -j SNAT --to-source {own} --random-fully"] if own else []


def _pod_egress(
    settings: Settings, family: Family, translation: str
) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """The chain that masquerades what pods send to outside of their networks, and the jumps to it, if there are any."""
    networks = pods_masqueraded(settings, family)
    rules = [
        *(f"-d {pods} {comment(reasons.TO_PODS)} -j RETURN" for pods in networks),
        f"-o {TUNNELS}+ {comment(reasons.TO_NODES)} -j RETURN",
        *_exemptions(settings, family),
        f"{comment(reasons.POD_EGRESS)} {translation} --random-fully",
    ]
    jumps = [("POSTROUTING", f"-s {pods} {comment(reasons.FROM_PODS)} -j KROUTE-EGRESS") for pods in networks]
    return ({"KROUTE-EGRESS": rules} if networks else {}), jumps


def _exemptions(settings: Settings, family: Family) -> list[str]:
    """The rules of `--masquerade-exempt`. They match the client's destination: IPVS has not replaced it yet."""
    return [
        f"-s {exemption.source} -d {exemption.destination} {comment(reasons.EXEMPT)} -j RETURN"
        for exemption in exemptions_of(settings, family)
    ]


def _cluster_ip_marking(settings: Settings, family: Family, node: NodeFacts) -> list[str]:
    to_cluster_ip = f"{in_set(family, AddressSet.CLUSTER_IP)} -j KROUTE-MARK-MASQ"
    if settings.masquerade_all:
        return [f"{comment(reasons.EVERYTHING_TO_CLUSTER_IP)} {to_cluster_ip}"]
    if not are_local_pods_known(settings, family, node):
        return []
    return [f"{not_from_local_pods(settings, family)} {comment(reasons.OTHERS_TO_CLUSTER_IP)} {to_cluster_ip}"]


def filter_rules(settings: Settings, family: Family) -> TableRules:
    mark = f"{settings.masquerade_mark:#x}"
    no_local = f"{comment(reasons.NO_LOCAL)} {in_set(family, AddressSet.NO_LOCAL)}"
    return TableRules(
        "filter",
        chains={
            "KROUTE-INPUT": [
                without_syn(),
                _source_ranges(family),
                *_odd_segments(family),
                *(_served(family, which) for which in SERVED_EVERYWHERE),
                f"{comment(reasons.NO_ENDPOINT)} {in_set(family, AddressSet.NO_ENDPOINT)} -j KROUTE-REJECT",
                f"{not_from_local_pods(settings, family)} {no_local} -j KROUTE-REJECT",
                f"{comment(reasons.VIP)} {in_set(family, AddressSet.VIP)} -j KROUTE-VIPS",
            ],
            "KROUTE-VIPS": [
                _served(family, AddressSet.EXTERNAL_LOCAL),
                f"{_ECHO_REQUEST[family]} {comment(reasons.PING)} -j RETURN",
                f"-p {_ICMP[family]} -m conntrack --ctstate INVALID {comment(reasons.STRAY_ERROR)} -j RETURN",
                f"{comment(reasons.HOST_PORT)} -j KROUTE-REJECT",
            ],
            "KROUTE-REJECT": [
                f"{protocol}{comment(reasons.REFUSED)} -j REJECT --reject-with {how}"
                for protocol, how in _REFUSALS[family]
            ],
            "KROUTE-HEALTH-CHECK": [
                f"{comment('a healthCheckNodePort')} {in_set(family, AddressSet.HEALTH_CHECK)} -j ACCEPT"
            ],
            "KROUTE-FORWARD": [
                f"{comment('marked as on its way to a Service')} -m mark --mark {mark}/{mark} -j ACCEPT",
                f"{comment('of a connection that was let in')} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
                *([f"{from_vip(family)} {comment(reasons.FROM_POD)} -j ACCEPT"] if settings.direct_return else []),
            ],
        },
        jumps=[
            ("INPUT", f"{OF_NO_CONNECTION} {comment(reasons.NEW_CONNECTIONS)} -j KROUTE-INPUT"),
            ("INPUT", f"-p tcp {comment('kroute: load balancers that ask for health')} -j KROUTE-HEALTH-CHECK"),
            ("FORWARD", f"{comment('kroute: Services, for packets to and from pods')} -j KROUTE-FORWARD"),
        ],
        after_neighbours=frozenset({"FORWARD"}),
    )


def accepting_rules(settings: Settings, family: Family) -> TableRules:
    """Those of the filter rules that accept what another program's rules would drop."""
    rules = filter_rules(settings, family)
    chains = {name: rules.chains[name] for name in ("KROUTE-HEALTH-CHECK", "KROUTE-FORWARD")}
    jumps = [(chain, jump) for chain, jump in rules.jumps if any(jump.endswith(f"-j {name}") for name in chains)]
    return rules._replace(chains=chains, jumps=jumps)


def mangle_rules(settings: Settings, family: Family) -> TableRules:
    """The mangle rules of one family: `output_rules`, and with direct return a mark for packets to VIPs on no link.

    By the mark they are delivered to this node. It is taken off again before IPVS and other programs' rules in INPUT
    and POSTROUTING meet the packet: they may use the same bit.
    """
    rules = output_rules(family)
    if not settings.direct_return:
        return rules
    mark = f"{settings.direct_return_mark:#x}"
    on_no_link = f"{in_set(family, AddressSet.VIP)} -m addrtype ! --dst-type LOCAL"
    marking = f"{on_no_link} {comment(reasons.TO_VIP)} -j MARK --set-xmark {mark}/{mark}"
    clearing = f"-m mark --mark {mark}/{mark} {on_no_link} {comment(reasons.DELIVERED)} -j MARK --set-xmark 0x0/{mark}"
    why = comment("kroute: direct return")
    return rules._replace(
        chains={**rules.chains, "KROUTE-DIRECT": [marking], "KROUTE-DELIVERED": [clearing]},
        jumps=[*rules.jumps, ("PREROUTING", f"{why} -j KROUTE-DIRECT"), ("INPUT", f"{why} -j KROUTE-DELIVERED")],
    )


def output_rules(family: Family) -> TableRules:
    """The mangle rules of one family, which drop packets that this node's own processes may not send.

    The OUTPUT chain of table mangle is before IPVS in LOCAL_OUT. Its rules cannot refuse packets, only drop them.

    A process of the node never answers from a VIP. Where the endpoint of a Service is a VIP, IPVS hands the packet to
    the process that listens on that port: in LOCAL_IN, behind every rule that could refuse it. So the answer is
    dropped; of TCP the first one only, to cut no connection that is open when its address becomes a VIP.
    """
    from_own_port = f"{from_vip(family)} {comment(reasons.BEHIND_VIP)}"
    replies = "-m conntrack --ctstate ESTABLISHED --ctdir REPLY"
    return TableRules(
        "mangle",
        chains={
            "KROUTE-OUTPUT": [without_syn(), _source_ranges(family), *_odd_segments(family)],
            "KROUTE-ANSWERS": [
                f"{protocol} {from_own_port} -j DROP"
                for protocol in ("-p tcp -m tcp --tcp-flags SYN,ACK SYN,ACK", "-p udp", "-p sctp")
            ],
        },
        jumps=[
            ("OUTPUT", f"{OF_NO_CONNECTION} {comment(reasons.NEW_CONNECTIONS)} -j KROUTE-OUTPUT"),
            ("OUTPUT", f"{replies} {comment(reasons.ANSWERS)} -j KROUTE-ANSWERS"),
        ],
    )


def _served(family: Family, which: AddressSet) -> str:
    return f"{comment(reasons.SERVED)} {in_set(family, which)} -j RETURN"


def _odd_segments(family: Family) -> list[str]:
    """IPVS would make a connection of these, and nothing masquerades what conntrack calls invalid."""
    odd = f"-p tcp -m tcp ! --tcp-flags FIN,RST,ACK NONE {comment(reasons.ODD_SEGMENT)}"
    return [f"{odd} {in_set(family, which)} -j DROP" for which in SERVED]


def _source_ranges(family: Family) -> str:
    """The rule of `loadBalancerSourceRanges`. It drops packets, as a firewall does, and as kube-proxy does too."""
    restricted = in_set(family, AddressSet.RESTRICTED)
    others = not_in_set(family, AddressSet.SOURCE_RANGE)
    return f"{restricted} {others} {comment(reasons.OUTSIDE_RANGES)} -j DROP"


class IptablesRules(Rules, frozen=True):
    """The rules of one family, by table."""

    tables: Mapping[str, TableRules]

    def trace(self, hook: Hook, packet: Packet, sets: Sets) -> TraceResult:
        table, chain = _CHAINS[hook]
        return trace_packet(self.tables[table], chain, packet, sets)


def family_rules(settings: Settings, family: Family, node: NodeFacts) -> IptablesRules:
    """The rules for a node with these facts."""
    tables = masquerade_rules(settings, family, node), mangle_rules(settings, family), filter_rules(settings, family)
    return IptablesRules({rules.table: rules for rules in tables})
