"""The filter rules, in the order in which packets meet them. However many Services there are, the rules are these.

IPVS takes a packet in the hook LOCAL_IN behind these rules, so they see what pods and clients outside send, with the
address that the client wrote. What this node's own processes send IPVS takes in LOCAL_OUT, where no rule of these
stands; what it does not take, because nothing serves it, comes in by lo and meets them too.

They look at the first packet of a connection only, and the node's own addresses are never in the set VIP: no set, be it
empty or half filled, cuts off a node or a connection that stands.
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
"""What makes a client give up at once. An SCTP client does so for no unreachable port, but for an unreachable protocol
(RFC 4960, appendix C), which ICMPv6 spells in a way that REJECT cannot send: there it tries until its time is out.
"""

_NOT_A_FIRST_PACKET = "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN"
"""To conntrack that is as new as the rules, or has been flushed, a connection is NEW in its middle as well
(`nf_conntrack_tcp_loose`)."""
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
    """The mangle rules of one family: what this node's own processes may not send.

    The table's OUTPUT chain is the last that they pass before IPVS takes them, and it cannot refuse, only drop.
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
    """`loadBalancerSourceRanges`: dropped, as a firewall does, and as the API's users know it from kube-proxy."""
    restricted = in_set(family, AddressSet.RESTRICTED)
    others = not_in_set(family, AddressSet.SOURCE_RANGE)
    return f"{restricted} {others} {comment('a load balancer that is not for this client')} -j DROP"


def _served_ports(family: Family) -> list[str]:
    return [f"{comment('a port that a Service serves')} {in_set(family, which)} -j RETURN" for which in SERVED]
