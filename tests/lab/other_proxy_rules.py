"""The rules of kube-proxy in IPVS mode, of kube-router, and of similar programs, for iptables-restore."""

from collections.abc import Iterable

from tests.lab.topology import POD_RANGE, POD_RANGE6

DSR_ADDRESS, DSR_PORT, DSR_MARK = "203.0.113.9", 80, 0x2BA7

NEIGHBOUR_CHAINS = """\
*mangle
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT
COMMIT
"""
"""Rules with similar names: the kubelet's, and those of kube-router's network policies."""


def kube_proxy_rules(prefix: str, is_ipv6: bool) -> str:
    """All of kube-proxy's chains in one family. `prefix` begins the names of its sets."""
    pods, loopback = (POD_RANGE6, "::1/128") if is_ipv6 else (POD_RANGE, "127.0.0.0/8")
    reject = "icmp6-port-unreachable" if is_ipv6 else "icmp-port-unreachable"
    return f"""\
*nat
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -s {loopback} -j RETURN
-A KUBE-SERVICES -m set --match-set {prefix}CLUSTER-IP src,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES ! -s {pods} -m set --match-set {prefix}CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set {prefix}LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES -m set --match-set {prefix}CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-NODE-PORT -p tcp -m set --match-set {prefix}NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m set --match-set {prefix}LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
:KUBE-PROXY-CANARY - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-I INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-I INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-I INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-I OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODE-PORT -m set --match-set {prefix}HEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-PROXY-FIREWALL -m set --match-set {prefix}LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-IPVS-FILTER -m set --match-set {prefix}CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set {prefix}IPVS-IPS dst -j REJECT --reject-with {reject}
COMMIT
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
"""


def kube_router_rules(prefix: str, own: str, pods: str, hairpins: Iterable[tuple[str, str, int]], is_ipv6: bool) -> str:
    """All of kube-router's rules for Services in one family; `own` and `pods` are the node's address and pod network.

    `hairpins` are pods with a VIP and port through which they may call themselves.
    """
    icmp, echo = ("ipv6-icmp", "-m icmp6 --icmpv6-type 128") if is_ipv6 else ("icmp", "-m icmp --icmp-type 8")
    reject = "icmp6-port-unreachable" if is_ipv6 else "icmp-port-unreachable"
    hairpin = "\n".join(
        f"-A KUBE-ROUTER-HAIRPIN -s {pod} -d {pod} -m ipvs --vaddr {vip} --vport {port} -j SNAT --to-source {vip}"
        for pod, vip, port in hairpins
    )
    return f"""\
*filter
:KUBE-ROUTER-SERVICES - [0:0]
-I INPUT -m comment --comment "handle traffic to IPVS service IPs in custom chain" \
-m set --match-set {prefix}kube-router-svip dst -j KUBE-ROUTER-SERVICES
-A KUBE-ROUTER-SERVICES -p {icmp} {echo} -j ACCEPT
-A KUBE-ROUTER-SERVICES -m set --match-set {prefix}kube-router-svip-prt dst,dst -j ACCEPT
-A KUBE-ROUTER-SERVICES -m set ! --match-set {prefix}kube-router-local-ips dst -j REJECT --reject-with {reject}
COMMIT
*nat
:KUBE-ROUTER-HAIRPIN - [0:0]
-A POSTROUTING -m ipvs --vdir ORIGINAL -j KUBE-ROUTER-HAIRPIN
-A POSTROUTING ! -s {pods} ! -d {pods} -m ipvs --vdir ORIGINAL --vmethod MASQ -m comment --comment "" \
-j SNAT --to-source {own} --random-fully
{hairpin}
COMMIT
"""


def direct_server_return_rules() -> str:
    """kube-router's marks of packets to an external IP whose real servers answer the client directly."""
    to, mark = f"-d {DSR_ADDRESS} -p tcp -m tcp --dport {DSR_PORT}", f"-j MARK --set-mark {DSR_MARK:#x}"
    clamped = f"-s {DSR_ADDRESS} -i cbr0 -p tcp -m tcp --sport {DSR_PORT} --tcp-flags SYN,RST SYN"
    return f"""\
*mangle
-A PREROUTING {to} {mark}
-A OUTPUT {to} {mark}
-A PREROUTING {clamped} -j TCPMSS --set-mss 1440
COMMIT
"""
