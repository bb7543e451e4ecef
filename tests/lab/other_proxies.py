"""What kube-proxy in IPVS mode and kube-router leave on a node when they stop, built by the usual tools.

Sources: kube-proxy's pkg/proxy/ipvs (1.36) and kube-router's pkg/controllers/proxy (2.11). Each builds on what there
is, as the proxies do at their start: a virtual server or real server that exists stays as it is. `wiped` takes away
what a test leaves.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tests.lab.cluster import Node
from tests.lab.kernel_state import addresses
from tests.lab.namespaces import CommandError
from tests.lab.other_proxy_rules import DSR_MARK, direct_server_return_rules, kube_proxy_rules, kube_router_rules
from tests.lab.topology import NODES

IPVS_SYSCTLS = {f"net.ipv4.vs.{name}": 1 for name in ("conntrack", "expire_nodest_conn", "expire_quiescent_template")}
KUBE_ROUTER_SYSCTLS = {
    **IPVS_SYSCTLS,
    "net.ipv4.vs.conn_reuse_mode": 0,
    "net.ipv4.conf.all.arp_ignore": 1,
    "net.ipv4.conf.all.arp_announce": 2,
    "net.ipv4.conf.all.rp_filter": 2,
}

_SYSCTLS_OF_PROXIES = (*KUBE_ROUTER_SYSCTLS, "net.ipv4.vs.conn_lfactor")
"""Those that another proxy sets, and those that kroute sets besides."""


class Served(NamedTuple):
    """A TCP port of a Service as a proxy serves it in one family: its VIP, node port (0: none) and real servers."""

    vip: str
    port: int
    real_servers: Sequence[tuple[str, int]]
    node_port: int = 0

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.vip


def kube_proxy_leftovers(node: Node, services: Iterable[Served], variant: str = "legacy") -> None:
    """Build kube-ipvs0, virtual servers, sets, chains (in this variant of iptables) and sysctls."""
    services = list(services)
    _set_sysctls(node, IPVS_SYSCTLS)
    _ensure_link(node, "kube-ipvs0", up=False)
    vips = {it.vip for it in services}
    _bind(node, "kube-ipvs0", vips, scope="global")
    local = [it for link in ("eth0", "cbr0", "foreign0") for it in _plain(addresses(node.namespace, link))]
    _ensure_virtual_servers(node, services, local)
    for is_ipv6 in (False, True):
        of_family = [it for it in services if it.is_ipv6 is is_ipv6]
        prefix = "KUBE-6-" if is_ipv6 else "KUBE-"
        node.run("ipset", "restore", "-exist", stdin=_kube_proxy_sets(prefix, of_family, is_ipv6))
        _restore(node, kube_proxy_rules(prefix, is_ipv6), is_ipv6, variant)


def kube_router_leftovers(node: Node, services: Iterable[Served], *, dsr: bool = False) -> None:
    """Build kube-dummy-if with its source routes, virtual servers, sets, rules and sysctls.

    With `dsr`, one Service has direct server return.
    """
    services = list(services)
    _set_sysctls(node, KUBE_ROUTER_SYSCTLS)
    _ensure_link(node, "kube-dummy-if", up=True)
    _bind(node, "kube-dummy-if", {it.vip for it in services}, scope="link")
    for vip in {it.vip for it in services}:
        _ensure_source_route(node, vip)
    _ensure_virtual_servers(node, services, [node.ip, node.ip6])
    for is_ipv6 in (False, True):
        of_family = [it for it in services if it.is_ipv6 is is_ipv6]
        prefix, own = ("inet6:", node.ip6) if is_ipv6 else ("", node.ip)
        node.run("ipset", "restore", "-exist", stdin=_kube_router_sets(prefix, of_family, own, is_ipv6))
        pods = NODES[node.name].pod_networks[is_ipv6]
        _restore(node, kube_router_rules(prefix, own, pods, _hairpins(of_family), is_ipv6), is_ipv6)
    if dsr:
        _build_direct_server_return(node, services[0].real_servers[0][0])


@contextmanager
def wiped(node: Node) -> Iterator[None]:
    """Wipe a node at the end of a `with`, and put its sysctls back: proxies leave theirs, and a hand-over kroute's."""
    before = {}
    for name in _SYSCTLS_OF_PROXIES:
        with suppress(FileNotFoundError):  # older kernels do not have all
            before[name] = node.sysctl(name)
    try:
        yield
    finally:
        _wipe(node)
        for name, value in before.items():
            node.sysctl(name, value)
        (node.state_dir / "ledger").unlink(missing_ok=True)


def _wipe(node: Node) -> None:
    """Remove every rule, set, virtual server and routing rule, and the links that proxies and tests create."""
    for tool in ("iptables-legacy", "ip6tables-legacy"):
        for table in ("mangle", "nat", "filter"):
            node.run(tool, "-t", table, "-F")
            node.run(tool, "-t", table, "-X")
    node.run("ipset", "destroy")
    node.run("ipvsadm", "-C")
    for command in (
        "ip link del kube-ipvs0", "ip link del kube-dummy-if", "ip link del foreign0", "ip rule del table 77",
        "ip rule del table 78", "ip rule del table 79", "ip route flush table 78",
        "nft delete table ip foreign",
    ):  # fmt: skip
        with suppress(CommandError):
            node.run(*command.split())


def _set_sysctls(node: Node, values: dict[str, int]) -> None:
    for name, value in values.items():
        node.sysctl(name, value)


def _plain(with_prefix: Iterable[str]) -> list[str]:
    """Addresses without their prefix lengths, and without link-local ones."""
    return [address.partition("/")[0] for address in with_prefix if not address.startswith("fe80")]


def _ensure_link(node: Node, name: str, *, up: bool) -> None:
    with suppress(CommandError):  # it exists
        node.run("ip", "link", "add", name, "type", "dummy")
    if up:
        node.run("ip", "link", "set", name, "up")


def _bind(node: Node, link: str, vips: Iterable[str], *, scope: str) -> None:
    present = _plain(addresses(node.namespace, link))
    for vip in sorted(set(vips) - set(present)):
        arguments = [f"{vip}/128"] if ":" in vip else [f"{vip}/32", "scope", scope]
        node.run("ip", "address", "add", *arguments, "dev", link)


def _ensure_source_route(node: Node, vip: str) -> None:
    """Add kube-router's route, and remove the kernel's own IPv6 one, which would win."""
    route = f"local {vip} dev kube-dummy-if table local proto kernel"
    source = f"src {node.ip6}" if ":" in vip else f"scope host src {node.ip}"
    node.run("ip", "route", "replace", *route.split(), *source.split())
    if f"local {vip} dev kube-dummy-if proto kernel metric 0 " in node.run(
        "ip", "-6", "route", "show", "table", "local"
    ):
        node.run("ip", "route", "del", *route.split())


def _ensure_virtual_servers(node: Node, services: Iterable[Served], node_port_addresses: Sequence[str]) -> None:
    present = node.ipvs()
    for served in services:
        at = [(served.vip, served.port)]
        at += [
            (it, served.node_port) for it in node_port_addresses if served.node_port and (":" in it) is served.is_ipv6
        ]
        for address, port in at:
            where = _at(address, port)
            found = present.get(f"TCP {where}")
            if found is None:
                node.run("ipvsadm", "-A", "-t", where, "-s", "rr")
            for real_server in served.real_servers:
                if found is None or _at(*real_server) not in found.real_servers:
                    node.run("ipvsadm", "-a", "-t", where, "-r", _at(*real_server), "-m", "-w", "1")


def _at(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _restore(node: Node, rules: str, is_ipv6: bool, variant: str = "legacy") -> None:
    node.run(f"{'ip6tables' if is_ipv6 else 'iptables'}-{variant}-restore", "--noflush", stdin=rules)


def _kube_proxy_sets(prefix: str, services: Iterable[Served], is_ipv6: bool) -> str:
    family = "inet6" if is_ipv6 else "inet"
    kinds = {
        "LOOP-BACK": "hash:ip,port,ip", "CLUSTER-IP": "hash:ip,port", "EXTERNAL-IP": "hash:ip,port",
        "EXTERNAL-IP-LOCAL": "hash:ip,port", "LOAD-BALANCER": "hash:ip,port", "LOAD-BALANCER-FW": "hash:ip,port",
        "LOAD-BALANCER-LOCAL": "hash:ip,port", "LOAD-BALANCER-SOURCE-IP": "hash:ip,port,ip",
        "LOAD-BALANCER-SOURCE-CIDR": "hash:ip,port,net", "NODE-PORT-SCTP-HASH": "hash:ip,port",
        "NODE-PORT-LOCAL-SCTP-HASH": "hash:ip,port", "IPVS-IPS": "hash:ip",
    }  # fmt: skip
    lines = [f"create {f'{prefix}{name}'[:31]} {kind} family {family}" for name, kind in kinds.items()]
    bitmaps = ("NODE-PORT-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-LOCAL-UDP", "HEALTH-CHECK-NODE-PORT")
    lines += [f"create {prefix}{name} bitmap:port range 0-65535" for name in bitmaps]
    for served in services:
        lines += [f"add {prefix}CLUSTER-IP {served.vip},tcp:{served.port}", f"add {prefix}IPVS-IPS {served.vip}"]
        if served.node_port:
            lines.append(f"add {prefix}NODE-PORT-TCP {served.node_port}")
        lines += [f"add {prefix}LOOP-BACK {address},tcp:{port},{address}" for address, port in served.real_servers]
    return "\n".join([*lines, ""])


def _kube_router_sets(prefix: str, services: Iterable[Served], own: str, is_ipv6: bool) -> str:
    family = "inet6" if is_ipv6 else "inet"
    kinds = {"local-ips": "hash:ip", "svip": "hash:ip", "svip-prt": "hash:ip,port"}
    lines = [f"create {prefix}kube-router-{name} {kind} family {family} timeout 0" for name, kind in kinds.items()]
    lines.append(f"add {prefix}kube-router-local-ips {own}")
    for served in services:
        lines.append(f"add {prefix}kube-router-svip {served.vip}")
        lines.append(f"add {prefix}kube-router-svip-prt {served.vip},tcp:{served.port}")
        if served.node_port and not is_ipv6:  # kube-router names node ports at the node's primary address only
            lines.append(f"add {prefix}kube-router-svip {own}")
            lines.append(f"add {prefix}kube-router-svip-prt {own},tcp:{served.node_port}")
    return "\n".join([*lines, ""])


def _hairpins(services: Iterable[Served]) -> list[tuple[str, str, int]]:
    """Pods that may call themselves through a VIP and port."""
    return [(address, it.vip, it.port) for it in services for address, _ in it.real_servers]


def _build_direct_server_return(node: Node, pod: str) -> None:
    _restore(node, direct_server_return_rules(), is_ipv6=False)
    node.run("ipvsadm", "-A", "-f", str(DSR_MARK), "-s", "rr")
    node.run("ipvsadm", "-a", "-f", str(DSR_MARK), "-r", pod, "-i", "-w", "1")
    node.run("ip", "rule", "add", "prio", "32764", "fwmark", f"{DSR_MARK:#x}", "table", "78")
    node.run("ip", "rule", "add", "prio", "32765", "from", "all", "lookup", "79")
    node.run("ip", "route", "add", "local", "default", "dev", "lo", "table", "78")
