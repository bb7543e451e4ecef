"""The filter rules, in the order in which packets meet them. Their number does not depend on the number of Services.

IPVS takes packets of pods and outside clients in the hook LOCAL_IN, after these rules. So the rules see such packets
with the destination that the client used. IPVS takes packets of this node's own processes in LOCAL_OUT, where none of
these rules is. Packets that it does not take there, because no virtual server exists, arrive on lo and meet the rules.

The rules match only the first packet of a connection, and the node's own addresses are never in the set VIP. So even an
empty or half-filled set cuts off neither the node nor an established connection.
"""

from kroute.firewall.iptables.matches import in_set, not_from_local_pods, not_in_set
from kroute.firewall.sets import SERVED
from kroute.kernel.iptables.rule import comment
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet
from kroute.settings import Settings

_REFUSALS = {
    Family.IPV4: (("-p tcp ", "tcp-reset"), ("-p sctp ", "icmp-proto-unreachable"), ("", "icmp-port-unreachable")),
    Family.IPV6: (("-p tcp ", "tcp-reset"), ("", "icmp6-port-unreachable")),
}
"""The answers that make a client give up at once, by protocol. An SCTP client ignores "port unreachable", but gives up
at "protocol unreachable" (RFC 4960, appendix C). REJECT cannot send the ICMPv6 message for that, so an SCTP client over
IPv6 tries until its timeout.
"""

_NOT_A_FIRST_PACKET = "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN"
"""TCP packets that do not open a connection. After conntrack was loaded or flushed, such a packet of an established
connection is NEW too (`nf_conntrack_tcp_loose`)."""
_ECHO_REQUEST = {Family.IPV4: "-p icmp -m icmp --icmp-type 8", Family.IPV6: "-p ipv6-icmp -m icmp6 --icmpv6-type 128"}


def filter_rules(settings: Settings, family: Family) -> TableRules:
    no_endpoint = in_set(family, AddressSet.NO_ENDPOINT)
    no_local = in_set(family, AddressSet.NO_LOCAL)
    vip = in_set(family, AddressSet.VIP)
    others = not_from_local_pods(settings, family)
    return TableRules(
        "filter",
        chains={
            "KROUTE-INPUT": [
                f"{_NOT_A_FIRST_PACKET} {comment('of a connection that conntrack did not see begin')} -j RETURN",
                _source_ranges(family),
                f"{comment('nothing serves this port')} {no_endpoint} -j KROUTE-REJECT",
                f"{others} {comment('policy Local, and nothing on this node serves it')} {no_local} -j KROUTE-REJECT",
                f"{comment('an address of Services')} {vip} -j KROUTE-VIPS",
            ],
            "KROUTE-VIPS": [
                *_served_ports(family),
                f"{_ECHO_REQUEST[family]} {comment('a ping')} -j RETURN",
                f"{comment('a port of the node itself, which is not for this address')} -j KROUTE-REJECT",
            ],
            "KROUTE-REJECT": [
                f"{protocol}{comment('refused at once')} -j REJECT --reject-with {how}"
                for protocol, how in _REFUSALS[family]
            ],
        },
        jumps=[
            (
                "INPUT",
                f"-m conntrack --ctstate NEW {comment('kroute: Services, for new connections')} -j KROUTE-INPUT",
            ),
        ],
    )


def output_rules(family: Family) -> TableRules:
    """The mangle rules of one family, which drop packets that this node's own processes may not send.

    The OUTPUT chain of table mangle is before IPVS in LOCAL_OUT. Its rules cannot refuse packets, only drop them.
    """
    return TableRules(
        "mangle",
        chains={"KROUTE-OUTPUT": [_source_ranges(family)]},
        jumps=[
            (
                "OUTPUT",
                f"-m conntrack --ctstate NEW {comment('kroute: Services, for new connections')} -j KROUTE-OUTPUT",
            ),
        ],
    )


def _source_ranges(family: Family) -> str:
    """The rule of `loadBalancerSourceRanges`. It drops packets, as a firewall does, and as kube-proxy does too."""
    restricted = in_set(family, AddressSet.RESTRICTED)
    others = not_in_set(family, AddressSet.SOURCE_RANGE)
    return f"{restricted} {others} {comment('a load balancer that is not for this client')} -j DROP"


def _served_ports(family: Family) -> list[str]:
    return [f"{comment('a port that a Service serves')} {in_set(family, which)} -j RETURN" for which in SERVED]
