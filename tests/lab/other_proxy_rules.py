"""The rules of kube-router, and of programs with similar names, for iptables-restore."""

from collections.abc import Iterable

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
