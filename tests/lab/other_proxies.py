"""What kube-proxy in IPVS mode and kube-router leave on a node when they stop, built by the usual tools.

Sources: kube-proxy's pkg/proxy/ipvs (1.36) and kube-router's pkg/controllers/proxy (2.11). Each builds on what there
is, as the proxies do at their start: a virtual server or real server that exists stays as it is. `wiped` takes away
what a test leaves.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tests.lab.cluster import Node
from tests.lab.hosts import Host
from tests.lab.kernel_state import addresses
from tests.lab.kube_proxy_rules import Served, at, ipvs_rules, ipvs_sets
from tests.lab.namespaces import CommandError
from tests.lab.other_proxy_rules import DSR_MARK, direct_server_return_rules, kube_router_rules
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


def kube_proxy_leftovers(node: Host, services: Iterable[Served], variant: str = "legacy") -> None:
    """Build kube-ipvs0, virtual servers, sets, chains (in this variant of iptables) and sysctls."""
    services = list(services)
    _set_sysctls(node, IPVS_SYSCTLS)
    _ensure_link(node, "kube-ipvs0", up=False)
    vips = {ip for it in services for ip in (it.vip, *it.external_ips)}
    _bind(node, "kube-ipvs0", vips, scope="global")
    local = [it for link in ("eth0", "cbr0", "foreign0") for it in _plain(addresses(node.namespace, link))]
    _ensure_virtual_servers(node, services, local)
    for is_ipv6 in (False, True):
        of_family = [it for it in services if it.is_ipv6 is is_ipv6]
        prefix = "KUBE-6-" if is_ipv6 else "KUBE-"
        sets = ipvs_sets(prefix, of_family, is_ipv6)
        lines = [f"create {it}" for it in sets]
        lines += [f"add {created.split()[0]} {member}" for created, members in sets.items() for member in members]
        node.run("ipset", "restore", "-exist", stdin="\n".join([*lines, ""]))
        node_ports, external_ips = any(it.node_port for it in of_family), any(it.external_ips for it in of_family)
        rules = ipvs_rules(prefix, is_ipv6, node_ports=node_ports, external_ips=external_ips)
        restore(node, rules, is_ipv6, variant)


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
        restore(node, kube_router_rules(prefix, own, pods, _hairpins(of_family), is_ipv6), is_ipv6)
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


def _set_sysctls(node: Host, values: dict[str, int]) -> None:
    for name, value in values.items():
        node.sysctl(name, value)


def _plain(with_prefix: Iterable[str]) -> list[str]:
    """Addresses without their prefix lengths, and without link-local ones."""
    return [address.partition("/")[0] for address in with_prefix if not address.startswith("fe80")]


def _ensure_link(node: Host, name: str, *, up: bool) -> None:
    with suppress(CommandError):  # it exists
        node.run("ip", "link", "add", name, "type", "dummy")
    if up:
        node.run("ip", "link", "set", name, "up")


def _bind(node: Host, link: str, vips: Iterable[str], *, scope: str) -> None:
    missing = sorted(set(vips) - set(_plain(addresses(node.namespace, link))))
    prefixes = [f"{vip}/128" if ":" in vip else f"{vip}/32 scope {scope}" for vip in missing]
    node.namespace.ip("".join(f"address add {it} dev {link}\n" for it in prefixes))


def _ensure_source_route(node: Node, vip: str) -> None:
    """Add kube-router's route, and remove the kernel's own IPv6 one, which would win."""
    route = f"local {vip} dev kube-dummy-if table local proto kernel"
    source = f"src {node.ip6}" if ":" in vip else f"scope host src {node.ip}"
    node.run("ip", "route", "replace", *route.split(), *source.split())
    if f"local {vip} dev kube-dummy-if proto kernel metric 0 " in node.run(
        "ip", "-6", "route", "show", "table", "local"
    ):
        node.run("ip", "route", "del", *route.split())


def _ensure_virtual_servers(node: Host, services: Iterable[Served], node_port_addresses: Sequence[str]) -> None:
    present, commands = node.ipvs(), []
    for served in services:
        frontends = [(ip, served.port) for ip in (served.vip, *served.external_ips)]
        frontends += [
            (it, served.node_port) for it in node_port_addresses if served.node_port and (":" in it) is served.is_ipv6
        ]
        for where in (at(*it) for it in frontends):
            found = present.get(f"TCP {where}")
            if found is None:
                commands.append(f"-A -t {where} -s rr\n")
            commands += [
                f"-a -t {where} -r {it} -m -w 1\n"
                for it in served.endpoints
                if found is None or it not in found.real_servers
            ]
    node.run("ipvsadm", "-R", stdin="".join(commands))


def restore(node: Host, rules: str, is_ipv6: bool, variant: str = "legacy", *, own: tuple[str, ...] = ()) -> None:
    """Load rules. Those that are inserted (`-I`) are added where they are missing; declared chains are filled again.

    Chains of the table nat whose names begin with one of `own` are deleted if they are not declared.
    """
    tool = f"{'ip6tables' if is_ipv6 else 'iptables'}-{variant}"
    present = set(node.run(f"{tool}-save").splitlines())
    lines = [it for it in rules.splitlines() if not it.startswith("-I ") or it.replace("-I ", "-A ", 1) not in present]
    declared = {it.split()[0] for it in lines if it.startswith(":")}
    stale = {it.split()[0][1:] for it in present if own and it.startswith(tuple(f":{name}" for name in own))}
    stale = {it for it in stale if f":{it}" not in declared}
    end = lines.index("COMMIT", lines.index("*nat")) if stale else 0
    lines[end:end] = [f":{it} - [0:0]" for it in stale] + [f"-X {it}" for it in stale]
    node.run(f"{tool}-restore", "--noflush", stdin="\n".join([*lines, ""]))


def drop_stale(node: Host, services: Iterable[Served]) -> None:
    """Remove from a node of kube-proxy's in IPVS mode what these Services do not need, as kube-proxy does.

    A virtual server that is nobody's goes at once, and a real server once it has no connections; until then its weight
    is 0. Addresses and members of sets go with their Services.
    """
    services = list(services)
    frontends = {(ip, it.port): it for it in services for ip in (it.vip, *it.external_ips)}
    ports = {(it.is_ipv6, it.node_port): it for it in services if it.node_port}
    commands = []
    for key, server in node.ipvs().items():
        where = key.partition(" ")[2]
        address, _, port = where.rpartition(":")
        wanted = frontends.get((address.strip("[]"), int(port))) or ports.get((":" in address, int(port)))
        if wanted is None:
            commands.append(f"-D -t {where}\n")
            continue
        for real_server, state in server.real_servers.items():
            if real_server not in wanted.endpoints:
                is_idle = not state.active and not state.inactive
                commands.append(
                    f"-{'d' if is_idle else 'e'} -t {where} -r {real_server}{'' if is_idle else ' -m -w 0'}\n"
                )
            elif not state.weight:
                commands.append(f"-e -t {where} -r {real_server} -m -w 1\n")
    node.run("ipvsadm", "-R", stdin="".join(commands))
    vips = {ip for ip, _ in frontends}
    bound = addresses(node.namespace, "kube-ipvs0")
    gone = [it for it in bound if not it.startswith("fe80") and it.partition("/")[0] not in vips]
    node.namespace.ip("".join(f"address del {it} dev kube-ipvs0\n" for it in gone))
    for is_ipv6, prefix in ((False, "KUBE-"), (True, "KUBE-6-")):
        wanted_members = {
            f"add {form.split()[0]} {member}"
            for form, members in ipvs_sets(prefix, [it for it in services if it.is_ipv6 is is_ipv6], is_ipv6).items()
            for member in members
        }
        names = {form.split()[0] for form in ipvs_sets(prefix, (), is_ipv6)}
        present = [it for it in node.run("ipset", "save").splitlines() if it.startswith("add ")]
        stale = [it for it in present if it.split()[1] in names and it not in wanted_members]
        node.run("ipset", "restore", stdin="".join(f"del {it[4:]}\n" for it in stale))


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
    restore(node, direct_server_return_rules(), is_ipv6=False)
    node.run("ipvsadm", "-A", "-f", str(DSR_MARK), "-s", "rr")
    node.run("ipvsadm", "-a", "-f", str(DSR_MARK), "-r", pod, "-i", "-w", "1")
    node.run("ip", "rule", "add", "prio", "32764", "fwmark", f"{DSR_MARK:#x}", "table", "78")
    node.run("ip", "rule", "add", "prio", "32765", "from", "all", "lookup", "79")
    node.run("ip", "route", "add", "local", "default", "dev", "lo", "table", "78")
