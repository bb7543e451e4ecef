"""What kube-proxy and kube-router leave on a node, as a table. kroute touches no foreign object that it does not name.

Sources: kube-proxy's `pkg/proxy/ipvs` (ipset.go, proxier.go), `pkg/proxy/iptables` and `pkg/proxy/nftables`,
kube-router's `pkg/controllers/proxy`. Similar names of other programs are left out on purpose: the kubelet's
KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-KUBELET-CANARY and KUBE-IPTABLES-HINT, and the chains, sets and bridge of
kube-router's network policies and routing.
"""

import re
from typing import NamedTuple

KUBE_PROXY = "kube-proxy"
KUBE_ROUTER = "kube-router"

SET_NAME_LIMIT = 31
"""IPSET_MAXNAMELEN less the closing NUL. kube-proxy cuts its IPv6 names to this length."""

KUBELETS_TOO = frozenset({"KUBE-MARK-MASQ", "KUBE-POSTROUTING"})
"""Chains of kube-proxy that kubelets before 1.28 make as well. Alone, they are no trace of a proxy."""

DSR_TABLE, DSR_PRIORITY = 78, 32764
EXTERNAL_IP_TABLE, EXTERNAL_IP_PRIORITY = 79, 32765
"""kube-router's routing tables for direct server return and external IPs, and the priorities of their rules."""


class OtherProxy(NamedTuple):
    """One of the proxies that kroute takes over from.

    `link` carries its VIPs. `port_sets` hold its virtual servers as (address, protocol, port); if
    `lists_every_virtual_server`, they hold those of other programs, too. `node_port_sets` hold its node ports; the
    values are the protocol number and whether the set is of IPv6. `sysctls` are those that it sets, with their values.
    `has_source_routes`: its VIPs have routes with the node's address as the source, as kroute's have. `nft_table` is
    the name of its own tables in nf_tables, of the families ip and ip6; "" without any. `translating` are the chains in
    the table nat of iptables that translate packets to endpoints, before IPVS sees them; None without any. There the
    rules of `vip_chains` name its VIPs (`-d`), as do the keys of `vip_maps` in its nft_table.
    """

    name: str
    link: str
    chains: re.Pattern[str]
    sets: frozenset[str]
    port_sets: tuple[str, ...]
    node_port_sets: dict[str, tuple[int, bool]]
    sysctls: dict[str, str]
    lists_every_virtual_server: bool = False
    has_dsr: bool = False
    has_source_routes: bool = False
    nft_table: str = ""
    translating: re.Pattern[str] | None = None
    vip_chains: frozenset[str] = frozenset()
    vip_maps: tuple[str, ...] = ()

    def is_recognised_by(self, chain: str) -> bool:
        """Whether a chain of this name is a trace of the proxy."""
        return self.chains.fullmatch(chain) is not None and chain not in KUBELETS_TOO


def _ipv6_name(name: str) -> str:
    return f"KUBE-6-{name.removeprefix('KUBE-')}"[:SET_NAME_LIMIT]


def _both(*names: str) -> tuple[str, ...]:
    return tuple(name for each in names for name in (each, _ipv6_name(each)))


def _inet6(*names: str) -> tuple[str, ...]:
    return tuple(name for each in names for name in (each, f"inet6:{each}"))


_KUBE_PROXY_PORTS = _both(
    "KUBE-CLUSTER-IP",
    "KUBE-EXTERNAL-IP",
    "KUBE-EXTERNAL-IP-LOCAL",
    "KUBE-LOAD-BALANCER",
    "KUBE-NODE-PORT-SCTP-HASH",
)
_KUBE_PROXY_NODE_PORTS = {
    name: (protocol, is_ipv6)
    for each, protocol in (("TCP", 6), ("UDP", 17))
    for name, is_ipv6 in zip(_both(f"KUBE-NODE-PORT-{each}"), (False, True), strict=True)
}
_KUBE_PROXY_SETS = (
    *_both(
        "KUBE-LOOP-BACK",
        "KUBE-LOAD-BALANCER-FW",
        "KUBE-LOAD-BALANCER-LOCAL",
        "KUBE-LOAD-BALANCER-SOURCE-IP",
        "KUBE-LOAD-BALANCER-SOURCE-CIDR",
        "KUBE-NODE-PORT-LOCAL-TCP",
        "KUBE-NODE-PORT-LOCAL-UDP",
        "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
        "KUBE-HEALTH-CHECK-NODE-PORT",
        "KUBE-IPVS-IPS",
    ),
    *_KUBE_PROXY_PORTS,
    *_KUBE_PROXY_NODE_PORTS,
)
_IPVS_SYSCTLS = {
    f"net.ipv4.vs.{name}": "1" for name in ("conntrack", "expire_nodest_conn", "expire_quiescent_template")
}

OTHER_PROXIES = {
    proxy.name: proxy
    for proxy in (
        OtherProxy(
            KUBE_PROXY,
            link="kube-ipvs0",
            chains=re.compile(
                r"KUBE-(?:SERVICES|EXTERNAL-SERVICES|NODEPORTS|NODE-PORT|LOAD-BALANCER|FIRE-WALL|MARK-MASQ|POSTROUTING"
                r"|FORWARD|PROXY-FIREWALL|SOURCE-RANGES-FIREWALL|IPVS-FILTER|IPVS-OUT-FILTER|PROXY-CANARY"
                r"|(?:SVC|SVL|SEP|EXT|FW|XLB)-[A-Z2-7]{16})"
            ),
            sets=frozenset(_KUBE_PROXY_SETS),
            port_sets=_KUBE_PROXY_PORTS,
            node_port_sets=_KUBE_PROXY_NODE_PORTS,
            sysctls={**_IPVS_SYSCTLS, "net.ipv4.ip_forward": "1"},
            nft_table="kube-proxy",
            translating=re.compile(r"KUBE-SEP-[A-Z2-7]{16}"),
            vip_chains=frozenset({"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"}),
            vip_maps=("service-ips", "no-endpoint-services"),
        ),
        OtherProxy(
            KUBE_ROUTER,
            link="kube-dummy-if",
            chains=re.compile(r"KUBE-ROUTER-(?:SERVICES|HAIRPIN)"),
            sets=frozenset(_inet6("kube-router-local-ips", "kube-router-svip", "kube-router-svip-prt")),
            port_sets=_inet6("kube-router-svip-prt"),
            node_port_sets={},
            sysctls={
                **_IPVS_SYSCTLS,
                "net.ipv4.vs.conn_reuse_mode": "0",
                "net.ipv4.conf.all.arp_ignore": "1",
                "net.ipv4.conf.all.arp_announce": "2",
                "net.ipv4.conf.all.rp_filter": "2",
            },
            lists_every_virtual_server=True,
            has_dsr=True,
            has_source_routes=True,
        ),
    )
}
"""By name. A sysctl with another value has been changed by somebody else since, and is not a leftover."""
