"""The tables of kube-proxy 1.36 in its three modes, for TCP ports of Services with the policy Cluster.

Each function returns the input of iptables-restore, ipset or nft for one family. `tests/scenarios/test_kube_proxy.py`
compares what the kernel then has with what the real kube-proxy made of the same Services, line by line.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.lab.topology import POD_RANGE, POD_RANGE6

_COMMENT = "-m comment --comment"
_MARK = "0x4000"
"""The mark of packets to be masqueraded."""


class Served(NamedTuple):
    """A TCP port of a Service as a proxy serves it in one family.

    `vip` is its ClusterIP, `real_servers` are its endpoints, `local` the addresses of those on the node. `node_port` is
    0 if there is none. `name` is namespace/name:port.
    """

    vip: str
    port: int
    real_servers: Sequence[tuple[str, int]]
    node_port: int = 0
    external_ips: Sequence[str] = ()
    local: Sequence[str] = ()
    name: str = "default/web:tcp"

    @property
    def is_ipv6(self) -> bool:
        """Whether this is of IPv6."""
        return ":" in self.vip

    @property
    def endpoints(self) -> list[str]:
        """The real servers as `address:port`, in kube-proxy's order."""
        return sorted(at(*real_server) for real_server in self.real_servers)


def at(address: str, port: int) -> str:
    """Return `address:port`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _digest(text: str, length: int) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode()[:length]


# ---- IPVS mode ----------------------------------------------------------------------------------------------------


def ipvs_rules(prefix: str, is_ipv6: bool, *, node_ports: bool = True, external_ips: bool = False) -> str:
    """All chains of IPVS mode. `prefix` begins the names of its sets. Rules of sets without members are left out."""
    pods, loopback = (POD_RANGE6, "::1/128") if is_ipv6 else (POD_RANGE, "127.0.0.0/8")
    reject = "icmp6-port-unreachable" if is_ipv6 else "icmp-port-unreachable"
    why = f'{_COMMENT} "Kubernetes service external ip + port for masquerade and filter purpose"'
    external = f"-A KUBE-SERVICES {why} -m set --match-set {prefix}EXTERNAL-IP dst,dst"
    from_outside = f"""\
{external} -j KUBE-MARK-MASQ
{external} -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT
{external} -m addrtype --dst-type LOCAL -j ACCEPT
"""
    node_port = (
        f'-A KUBE-NODE-PORT -p tcp {_COMMENT} "Kubernetes nodeport TCP port for masquerade purpose" '
        f"-m set --match-set {prefix}NODE-PORT-TCP dst -j KUBE-MARK-MASQ\n"
    )
    passed = "\n".join(
        f"-A KUBE-IPVS-FILTER -m set --match-set {prefix}{name} {fields} -j RETURN"
        for name, fields in {
            "LOAD-BALANCER": "dst,dst", "CLUSTER-IP": "dst,dst", "EXTERNAL-IP": "dst,dst",
            "EXTERNAL-IP-LOCAL": "dst,dst", "HEALTH-CHECK-NODE-PORT": "dst",
        }.items()
    )  # fmt: skip
    return f"""\
*nat
:KUBE-SERVICES - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-I PREROUTING {_COMMENT} "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT {_COMMENT} "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING {_COMMENT} "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -s {loopback} -j RETURN
-A KUBE-SERVICES ! -s {pods} {_COMMENT} "Kubernetes service cluster ip + port for masquerade purpose" \
-m set --match-set {prefix}CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
{from_outside if external_ips else ""}\
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set {prefix}CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
{node_port if node_ports else ""}\
-A KUBE-MARK-MASQ -j MARK --set-xmark {_MARK}/{_MARK}
-A KUBE-POSTROUTING {_COMMENT} "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose" \
-m set --match-set {prefix}LOOP-BACK dst,dst,src -j MASQUERADE
{_masquerade()}\
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-I FORWARD {_COMMENT} "kubernetes forwarding rules" -j KUBE-FORWARD
-I FORWARD {_COMMENT} "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-I INPUT {_COMMENT} "kubernetes health check rules" -j KUBE-NODE-PORT
-I INPUT {_COMMENT} "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-I INPUT {_COMMENT} "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-I OUTPUT {_COMMENT} "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-FORWARD {_COMMENT} "kubernetes forwarding rules" -m mark --mark {_MARK}/{_MARK} -j ACCEPT
-A KUBE-FORWARD {_COMMENT} "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODE-PORT {_COMMENT} "Kubernetes health check node port" \
-m set --match-set {prefix}HEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
{passed}
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set {prefix}IPVS-IPS dst -j REJECT --reject-with {reject}
COMMIT
"""


def _masquerade() -> str:
    return f"""\
-A KUBE-POSTROUTING -m mark ! --mark {_MARK}/{_MARK} -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark {_MARK}/0x0
-A KUBE-POSTROUTING {_COMMENT} "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
"""


def ipvs_sets(prefix: str, services: Iterable[Served], is_ipv6: bool) -> dict[str, list[str]]:
    """The members of each set of IPVS mode; the key is what `ipset create` is told."""
    services, family = list(services), "inet6" if is_ipv6 else "inet"
    kinds = {
        "LOOP-BACK": "hash:ip,port,ip", "CLUSTER-IP": "hash:ip,port", "EXTERNAL-IP": "hash:ip,port",
        "EXTERNAL-IP-LOCAL": "hash:ip,port", "LOAD-BALANCER": "hash:ip,port", "LOAD-BALANCER-FW": "hash:ip,port",
        "LOAD-BALANCER-LOCAL": "hash:ip,port", "LOAD-BALANCER-SOURCE-IP": "hash:ip,port,ip",
        "LOAD-BALANCER-SOURCE-CIDR": "hash:ip,port,net", "NODE-PORT-SCTP-HASH": "hash:ip,port",
        "NODE-PORT-LOCAL-SCTP-HASH": "hash:ip,port", "IPVS-IPS": "hash:ip",
    }  # fmt: skip
    members: dict[str, list[str]] = {
        "CLUSTER-IP": [f"{it.vip},tcp:{it.port}" for it in services],
        "EXTERNAL-IP": [f"{ip},tcp:{it.port}" for it in services for ip in it.external_ips],
        "IPVS-IPS": [ip for it in services for ip in (it.vip, *it.external_ips)],
        "NODE-PORT-TCP": [str(it.node_port) for it in services if it.node_port],
        "LOOP-BACK": [
            f"{ip},tcp:{port},{ip}" for it in services for ip, port in it.real_servers if ip in it.local
        ],
    }  # fmt: skip
    bitmaps = ("NODE-PORT-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-LOCAL-UDP", "HEALTH-CHECK-NODE-PORT")
    forms = {name: f"{kind} family {family}" for name, kind in kinds.items()}
    forms |= dict.fromkeys(bitmaps, "bitmap:port range 0-65535")
    return {f"{f'{prefix}{name}'[:31]} {form}": members.get(name, []) for name, form in forms.items()}


# ---- iptables mode ------------------------------------------------------------------------------------------------


def iptables_rules(services: Iterable[Served], is_ipv6: bool) -> str:
    """All chains of iptables mode."""
    services = list(services)
    serving = [it for it in services if it.real_servers]
    idle = [it for it in services if not it.real_servers]
    reject = "icmp6-port-unreachable" if is_ipv6 else "icmp-port-unreachable"
    refusals = "".join(
        f'-A KUBE-SERVICES -d {_host(it.vip)} -p tcp {_COMMENT} "{it.name} has no endpoints" '
        f"-m tcp --dport {it.port} -j REJECT --reject-with {reject}\n"
        for it in idle
    )
    localnet = (
        f"-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 {_COMMENT} "
        '"block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n'
    )
    new, chains = "-m conntrack --ctstate NEW", list(_service_chains(serving, is_ipv6))
    own = sorted({line.split()[1] for line in chains if not line.startswith(_SHARED)})
    declared = "".join(f":{chain} - [0:0]\n" for chain in own)
    return f"""\
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
{declared}\
-I PREROUTING {_COMMENT} "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT {_COMMENT} "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING {_COMMENT} "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark {_MARK}/{_MARK}
{_masquerade()}\
{"".join(chains)}\
-A KUBE-SERVICES {"! -d ::1/128 " if is_ipv6 else ""}{_COMMENT} \
"kubernetes service nodeports; NOTE: this must be the last rule in this chain" \
-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-I INPUT {new} {_COMMENT} "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-I INPUT {_COMMENT} "kubernetes health check service ports" -j KUBE-NODEPORTS
-I INPUT {new} {_COMMENT} "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-I INPUT -j KUBE-FIREWALL
-I FORWARD {new} {_COMMENT} "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-I FORWARD {new} {_COMMENT} "kubernetes service portals" -j KUBE-SERVICES
-I FORWARD {_COMMENT} "kubernetes forwarding rules" -j KUBE-FORWARD
-I FORWARD {new} {_COMMENT} "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-I OUTPUT {new} {_COMMENT} "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT {new} {_COMMENT} "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-I OUTPUT -j KUBE-FIREWALL
{"" if is_ipv6 else localnet}\
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD {_COMMENT} "kubernetes forwarding rules" -m mark --mark {_MARK}/{_MARK} -j ACCEPT
-A KUBE-FORWARD {_COMMENT} "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
{refusals}\
COMMIT
"""


_SHARED = ("-A KUBE-SERVICES ", "-A KUBE-NODEPORTS ")


def _service_chains(services: Iterable[Served], is_ipv6: bool) -> Iterator[str]:
    """The rules of each Service, and those that lead to them."""
    pods = POD_RANGE6 if is_ipv6 else POD_RANGE
    for it in services:
        number = _digest(f"{it.name}tcp", 16)
        comment, to_port = f'-p tcp {_COMMENT} "{it.name}', f"-m tcp --dport {it.port}"
        cluster_ip = f'-d {_host(it.vip)} {comment} cluster IP" {to_port}'
        yield f"-A KUBE-SERVICES {cluster_ip} -j KUBE-SVC-{number}\n"
        for ip in it.external_ips:
            yield f'-A KUBE-SERVICES -d {_host(ip)} {comment} external IP" {to_port} -j KUBE-EXT-{number}\n'
        if it.node_port:
            yield f'-A KUBE-NODEPORTS {comment}" -m tcp --dport {it.node_port} -j KUBE-EXT-{number}\n'
        if it.node_port or it.external_ips:
            why = f"masquerade traffic for {it.name} external destinations"
            yield f'-A KUBE-EXT-{number} {_COMMENT} "{why}" -j KUBE-MARK-MASQ\n'
            yield f"-A KUBE-EXT-{number} -j KUBE-SVC-{number}\n"
        yield f"-A KUBE-SVC-{number} ! -s {pods} {cluster_ip} -j KUBE-MARK-MASQ\n"
        for left, (endpoint, address) in zip(
            range(len(it.real_servers), 0, -1), zip(it.endpoints, _addresses(it), strict=True), strict=True
        ):
            chain = f"KUBE-SEP-{_digest(f'{it.name}tcp{endpoint}', 16)}"
            share = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
            yield f'-A KUBE-SVC-{number} {_COMMENT} "{it.name} -> {endpoint}" {share}-j {chain}\n'
            yield f'-A {chain} -s {_host(address)} {_COMMENT} "{it.name}" -j KUBE-MARK-MASQ\n'
            yield f'-A {chain} {comment}" -m tcp -j DNAT --to-destination {endpoint}\n'


def _addresses(served: Served) -> list[str]:
    """The addresses of `served.endpoints`, in that order."""
    return [address for _, address in sorted((at(*it), it[0]) for it in served.real_servers)]


def _host(address: str) -> str:
    return f"{address}/{128 if ':' in address else 32}"


# ---- nftables mode ------------------------------------------------------------------------------------------------

_PORT = " . inet_proto . inet_service"
_REFUSALS = "vmap to drop or reject packets"


def nftables_ruleset(services: Iterable[Served], is_ipv6: bool, node_address: str) -> str:
    """The table of nftables mode, which takes node ports on the node's address alone."""
    services = list(services)
    serving = [it for it in services if it.real_servers]
    idle = {
        f'{it.vip} . tcp . {it.port} comment "{it.name}"': "goto reject-chain" for it in services if it not in serving
    }
    family, address, pods = ("ip6", "ipv6_addr", POD_RANGE6) if is_ipv6 else ("ip", "ipv4_addr", POD_RANGE)
    hairpins = [f"{ip} . {ip} . tcp . {port}" for it in serving for ip, port in it.real_servers if ip in it.local]
    by_ip: dict[str, str] = {}
    by_node_port: dict[str, str] = {}
    chains = ""
    for it in serving:
        name = _nft_name(it)
        by_ip[f"{it.vip} . tcp . {it.port}"] = f"goto service-{name}"
        by_ip |= {f"{ip} . tcp . {it.port}": f"goto external-{name}" for ip in it.external_ips}
        if it.node_port:
            by_node_port[f"tcp . {it.node_port}"] = f"goto external-{name}"
        choice = ", ".join(f"{n} : {ip} . {port}" for n, (ip, port) in enumerate(sorted(it.real_servers)))
        chains += (
            f"chain service-{name} {{\nmeta l4proto tcp dnat {family} to "
            f"numgen random mod {len(it.real_servers)} map {{ {choice} }}\n}}\n"
        )
        if it.node_port or it.external_ips:
            chains += (
                f'chain external-{name} {{\nmeta mark set meta mark | {_MARK} comment "masquerade"\n'
                f"goto service-{name}\n}}\n"
            )
    mark = f"meta mark set meta mark | {_MARK}"
    return f"""\
table {family} kube-proxy {{
comment "rules for kube-proxy"
{_nft_set("hairpin-connections", f"{address} . {address}{_PORT}", "service hairpin connections", hairpins)}
{_nft_set("cluster-ips", address, "Active ClusterIPs", [it.vip for it in services])}
{_nft_set("nodeport-ips", address, "IPs that accept NodePort traffic", [node_address])}
{_nft_map("no-endpoint-services", f"{address} . ", f"{_REFUSALS} to services with no endpoints", idle)}
{_nft_map("no-endpoint-nodeports", "", f"{_REFUSALS} to service nodeports with no endpoints", {})}
{_nft_map("firewall-ips", f"{address} . ", "destinations that are subject to LoadBalancerSourceRanges", {})}
{_nft_map("service-ips", f"{address} . ", "ClusterIP, ExternalIP and LoadBalancer IP traffic", by_ip)}
{_nft_map("service-nodeports", "", "NodePort traffic", by_node_port)}
chain reject-chain {{
comment "helper for @no-endpoint-services / @no-endpoint-nodeports"
reject
}}
{chains}
chain nodeport-endpoints-check {{
{family} daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
}}
chain service-endpoints-check {{
{family} daddr . meta l4proto . th dport vmap @no-endpoint-services
}}
chain firewall-check {{
{family} daddr . meta l4proto . th dport vmap @firewall-ips
}}
chain services {{
{family} daddr @cluster-ips {family} saddr != {pods} {mark} comment "masquerade clusterIP traffic from outside cluster"
{family} daddr . meta l4proto . th dport vmap @service-ips
{family} daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
}}
chain masquerading {{
meta mark & {_MARK} != 0 meta mark set meta mark ^ {_MARK} masquerade fully-random
ct status dnat {family} saddr . {family} daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
}}
chain cluster-ips-check {{
{family} daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
}}
chain filter-prerouting-pre-dnat {{
type filter hook prerouting priority dstnat - 10; policy accept;
ct state new jump firewall-check
}}
chain filter-output-pre-dnat {{
type filter hook output priority -110; policy accept;
ct state new jump firewall-check
}}
chain filter-input {{
type filter hook input priority filter; policy accept;
ct state new jump nodeport-endpoints-check
ct state new jump service-endpoints-check
}}
chain filter-forward {{
type filter hook forward priority filter; policy accept;
ct state new jump service-endpoints-check
ct state new jump cluster-ips-check
}}
chain filter-output {{
type filter hook output priority filter; policy accept;
ct state new jump service-endpoints-check
ct state new jump cluster-ips-check
}}
chain nat-prerouting {{
type nat hook prerouting priority dstnat; policy accept;
jump services
}}
chain nat-output {{
type nat hook output priority -100; policy accept;
jump services
}}
chain nat-postrouting {{
type nat hook postrouting priority srcnat; policy accept;
jump masquerading
}}
}}
"""


def _nft_name(served: Served) -> str:
    service, _, port = served.name.partition(":")
    name = f"{service}/tcp/{port}"
    return f"{_digest(name, 8)}-{name}"


def _nft_set(name: str, kind: str, comment: str, elements: Iterable[str], what: str = "set") -> str:
    listed = ", ".join(elements)
    members = f"elements = {{ {listed} }}\n" if listed else ""
    return f'{what} {name} {{\ntype {kind}\ncomment "{comment}"\n{members}}}'


def _nft_map(name: str, address: str, comment: str, elements: dict[str, str]) -> str:
    listed = (f"{key} : {verdict}" for key, verdict in elements.items())
    return _nft_set(name, f"{address}inet_proto . inet_service : verdict", comment, listed, "map")
