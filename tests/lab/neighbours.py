"""What other programs do on a node beside IPVS: Calico's Felix, and kube-router's firewall, as their sources say.

The CNI plugin portmap is the real one (Debian's containernetworking-plugins).

Sources: projectcalico/calico felix/rules (static.go, dispatch.go, endpoints.go), felix/dataplane (driver.go,
hostip_mgr.go), felix/config/config_params.go; cloudnativelabs/kube-router pkg/controllers/netpol.
"""

import ipaddress
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass

from tests.lab.cluster import Node, Pod
from tests.lab.topology import SERVICE_RANGE, SERVICE_RANGE6

KUBE_IPVS = "kube-ipvs0"
ACCEPT, PASS, ENDPOINT, NON_CALI = "0x10000", "0x20000", "0xfff00000", "0x100000"
"""Felix's marks of its default mask 0xffff0000. The bits of ENDPOINT number the links that a packet came in by."""
_CHAINS = (
    "cali-INPUT", "cali-OUTPUT", "cali-FORWARD", "cali-wl-to-host", "cali-from-wl-dispatch", "cali-to-wl-dispatch",
)  # fmt: skip
_IPVS_CHAINS = (
    "cali-forward-check", "cali-set-endpoint-mark", "cali-forward-endpoint-mark", "cali-from-endpoint-mark",
)  # fmt: skip
PLUGINS = "/usr/lib/cni"
"""Where Debian has the CNI plugins."""
GATEWAY_MAC = "ee:ee:ee:ee:ee:ee"
GATEWAY, GATEWAY6 = "169.254.1.1", "fe80::ecee:eeff:feee:eeee"


@dataclass(frozen=True)
class Workload:
    """A pod as Calico wires it: a link `cali…` of its own, and routes to its addresses."""

    pod: Pod
    allowed: tuple[str, ...] = ("0.0.0.0/0", "::/0")
    """The sources from which its policy lets connections in."""

    @property
    def link(self) -> str:
        """The node's end of the pod's link."""
        return self.pod.interface


def wire_as_calico_does(pod: Pod, number: int) -> None:
    """Take a pod off the node's bridge, and give it a link with a gateway that is only a MAC address."""
    node, link = pod.node, f"cali{number:011x}"
    node.namespace.ip(
        f"link set {pod.interface} nomaster\nlink set {pod.interface} down\n"
        f"link set {pod.interface} address {GATEWAY_MAC}\nlink set {pod.interface} name {link}\nlink set {link} up\n"
        f"route add {pod.ip}/32 dev {link} scope link\nroute add {pod.ip6}/128 dev {link}\n"
    )
    pod.namespace.ip(
        f"address delete {pod.ip}/24 dev eth0\naddress delete {pod.ip6}/64 dev eth0\n"
        f"address add {pod.ip}/32 dev eth0\naddress add {pod.ip6}/128 dev eth0 nodad\n"
        f"neighbour add {GATEWAY} lladdr {GATEWAY_MAC} dev eth0 nud permanent\n"
        f"neighbour add {GATEWAY6} lladdr {GATEWAY_MAC} dev eth0 nud permanent\n"
        f"route add {GATEWAY} dev eth0 scope link\nroute replace default via {GATEWAY} dev eth0\n"
        f"route add default via {GATEWAY6} dev eth0 metric 1\n"
    )
    pod.interface = link


def run_felix(node: Node, workloads: Iterable[Workload]) -> bool:
    """Write Felix's rules for these workloads as it would now. Returns whether it takes the node for one with IPVS."""
    workloads = tuple(workloads)
    links = {entry["ifname"]: entry for entry in json.loads(node.run("ip", "-json", "address", "show"))}
    has_ipvs = KUBE_IPVS in links
    for is_ipv6 in (False, True):
        own = [
            entry["local"]
            for name, link in links.items()
            if name != KUBE_IPVS and not name.startswith("cali")
            for entry in link["addr_info"]
            if (":" in entry.get("local", "")) is is_ipv6 and "local" in entry
        ]
        node.run("ipset", "restore", "-exist", stdin=_felix_sets(own, workloads, is_ipv6))
        tool = "ip6tables-legacy-restore" if is_ipv6 else "iptables-legacy-restore"
        node.run(tool, "--noflush", stdin=_felix_rules(workloads, is_ipv6, has_ipvs=has_ipvs))
    return has_ipvs


def run_portmap(pod: Pod, host_port: int, port: int, tools: str = "") -> None:
    """Have the CNI plugin portmap lead a TCP port of the pod's node to one of the pod, as a container runtime does.

    `tools` is a directory with `iptables` and `ip6tables`, if not the node's own are to be called.
    """
    ips = [
        {"version": "4", "address": f"{pod.ip}/24", "interface": 0},
        {"version": "6", "address": f"{pod.ip6}/64", "interface": 0},
    ]
    sandbox = f"/run/netns/{pod.namespace.name}"
    asked = {
        "cniVersion": "0.4.0",
        "name": "lab",
        "type": "portmap",
        "capabilities": {"portMappings": True},
        "runtimeConfig": {"portMappings": [{"hostPort": host_port, "containerPort": port, "protocol": "tcp"}]},
        "prevResult": {"cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": sandbox}], "ips": ips},
    }
    environment = ("CNI_COMMAND=ADD", f"CNI_CONTAINERID={pod.name}", f"CNI_NETNS={sandbox}", "CNI_IFNAME=eth0")
    path = f"PATH={tools}:{os.environ['PATH']}"
    pod.node.run("env", path, *environment, f"CNI_PATH={PLUGINS}", f"{PLUGINS}/portmap", stdin=json.dumps(asked))


def _set(name: str, is_ipv6: bool) -> str:
    return f"cali{60 if is_ipv6 else 40}{name}"


def _felix_sets(own: Iterable[str], workloads: Iterable[Workload], is_ipv6: bool) -> str:
    family = "inet6" if is_ipv6 else "inet"
    host = _set("this-host", is_ipv6)
    lines = [f"create {host} hash:ip family {family}", *(f"add {host} {it}" for it in own)]
    for it in workloads:
        name = _set(f"s:{it.link[-4:]}", is_ipv6)
        lines += [f"create {name} hash:net family {family}", f"flush {name}"]
        for source in it.allowed:
            if (":" in source) is is_ipv6:
                halves = ipaddress.ip_network(source)
                nets = halves.subnets() if halves.prefixlen == 0 else [halves]  # a set of networks has no /0
                lines += [f"add {name} {net}" for net in nets]
    return "\n".join([*lines, ""])


def _felix_rules(workloads: tuple[Workload, ...], is_ipv6: bool, *, has_ipvs: bool) -> str:
    host = _set("this-host", is_ipv6)
    marks = {it.link: f"{(number + 2) << 20:#x}" for number, it in enumerate(workloads)}
    of_workloads = ("tw", "fw", "pi", "sm") if has_ipvs else ("tw", "fw", "pi")
    chains = [
        *_CHAINS,
        *(_IPVS_CHAINS if has_ipvs else ()),
        *(f"cali-{kind}-{it.link}" for it in workloads for kind in of_workloads),
    ]
    rules = [
        *(f"-I {chain} -m comment --comment cali:first -j cali-{chain}" for chain in ("INPUT", "OUTPUT", "FORWARD")),
        f"-A FORWARD -m comment --comment cali:policy -m mark --mark {ACCEPT}/{ACCEPT} -j ACCEPT",
        "-A cali-FORWARD -j MARK --set-xmark 0x0/0xfffe0000",
        "-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch",
        "-A cali-FORWARD -o cali+ -j cali-to-wl-dispatch",
    ]
    if has_ipvs:
        rules += [
            f"-A cali-INPUT -j MARK --set-xmark 0x0/{ENDPOINT}",
            "-A cali-INPUT -j cali-forward-check",
            f"-A cali-INPUT -m mark ! --mark 0x0/{ENDPOINT} -j RETURN",
            "-A cali-forward-check -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN",
            *(
                f"-A cali-forward-check -p {protocol} -m set --match-set {host} dst -m multiport --dports 30000:32767 "
                "-g cali-set-endpoint-mark"
                for protocol in ("tcp", "udp")
            ),
            f"-A cali-forward-check -m set ! --match-set {host} dst -j cali-set-endpoint-mark",
            *(f"-A cali-set-endpoint-mark -i {it.link} -g cali-sm-{it.link}" for it in workloads),
            "-A cali-set-endpoint-mark -i cali+ -j DROP",
            f"-A cali-set-endpoint-mark -j MARK --set-xmark {NON_CALI}/{ENDPOINT}",
            *(f"-A cali-sm-{it.link} -j MARK --set-xmark {marks[it.link]}/{ENDPOINT}" for it in workloads),
        ]
    rules += [
        "-A cali-INPUT -i cali+ -g cali-wl-to-host",
        "-A cali-wl-to-host -j cali-from-wl-dispatch",
        "-A cali-wl-to-host -j ACCEPT",  # DefaultEndpointToHostAction, as Calico's manifests set it
    ]
    if has_ipvs:
        rules += [
            f"-A cali-OUTPUT -m mark ! --mark 0x0/{ENDPOINT} -g cali-forward-endpoint-mark",
            f"-A cali-forward-endpoint-mark -m mark ! --mark {NON_CALI}/{ENDPOINT} -j cali-from-endpoint-mark",
            "-A cali-forward-endpoint-mark -o cali+ -j cali-to-wl-dispatch",
            f"-A cali-forward-endpoint-mark -j MARK --set-xmark 0x0/{ENDPOINT}",
            f"-A cali-forward-endpoint-mark -m mark --mark {ACCEPT}/{ACCEPT} -j ACCEPT",
            *(
                f"-A cali-from-endpoint-mark -m mark --mark {marks[it.link]}/{ENDPOINT} -g cali-fw-{it.link}"
                for it in workloads
            ),
            "-A cali-from-endpoint-mark -j DROP",
        ]
    rules.append("-A cali-OUTPUT -o cali+ -j RETURN")
    for it in workloads:
        allowed = _set(f"s:{it.link[-4:]}", is_ipv6)
        rules += [
            f"-A cali-from-wl-dispatch -i {it.link} -g cali-fw-{it.link}",
            f"-A cali-to-wl-dispatch -o {it.link} -g cali-tw-{it.link}",
            f"-A cali-fw-{it.link} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            f"-A cali-fw-{it.link} -m conntrack --ctstate INVALID -j DROP",
            f"-A cali-fw-{it.link} -j MARK --set-xmark {ACCEPT}/{ACCEPT}",
            f"-A cali-tw-{it.link} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            f"-A cali-tw-{it.link} -m conntrack --ctstate INVALID -j DROP",
            f"-A cali-tw-{it.link} -j MARK --set-xmark 0x0/0x30000",
            f"-A cali-tw-{it.link} -j cali-pi-{it.link}",
            f"-A cali-tw-{it.link} -m mark --mark {ACCEPT}/{ACCEPT} -j RETURN",
            f"-A cali-tw-{it.link} -m mark --mark 0x0/{PASS} -j DROP",
            f"-A cali-pi-{it.link} -m set --match-set {allowed} src -j MARK --set-xmark {ACCEPT}/{ACCEPT}",
        ]
    rules += ["-A cali-from-wl-dispatch -j DROP", "-A cali-to-wl-dispatch -j DROP"]
    return "\n".join(["*filter", *(f":{chain} - [0:0]" for chain in chains), *rules, "COMMIT", ""])


def run_kube_router_firewall(node: Node, pod: Pod, allowed: Iterable[str]) -> None:
    """Write the rules of kube-router's firewall for a pod whose policy lets connections in from `allowed` only."""
    allowed = tuple(allowed)
    for is_ipv6 in (False, True):
        family, name = ("inet6", "inet6:KUBE-SRC-LAB") if is_ipv6 else ("inet", "KUBE-SRC-LAB")
        sources = [it for it in allowed if (":" in it) is is_ipv6]
        sets = [f"create {name} hash:ip family {family} timeout 0", *(f"add {name} {it} timeout 0" for it in sources)]
        node.run("ipset", "restore", "-exist", stdin="\n".join([*sets, ""]))
        tool = "ip6tables-legacy-restore" if is_ipv6 else "iptables-legacy-restore"
        own, services = (pod.ip6, SERVICE_RANGE6) if is_ipv6 else (pod.ip, SERVICE_RANGE)
        node.run(tool, "--noflush", stdin=_firewall_rules(own, services, name, is_ipv6))


def _firewall_rules(pod: str, services: str, sources: str, is_ipv6: bool) -> str:
    reject = "icmp6-port-unreachable" if is_ipv6 else "icmp-port-unreachable"
    return f"""\
*filter
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-ROUTER-OUTPUT - [0:0]
:KUBE-NWPLCY-COMMON - [0:0]
:KUBE-NWPLCY-LAB - [0:0]
:KUBE-POD-FW-LAB - [0:0]
-I INPUT -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT
-I FORWARD -m comment --comment "kube-router netpol" -j KUBE-ROUTER-FORWARD
-I OUTPUT -m comment --comment "kube-router netpol" -j KUBE-ROUTER-OUTPUT
-A KUBE-ROUTER-INPUT -d {services} -m comment --comment "allow traffic to cluster IP range" -j RETURN
-A KUBE-ROUTER-INPUT -p tcp -m addrtype --dst-type LOCAL -m multiport --dports 30000:32767 -j RETURN
-A KUBE-ROUTER-INPUT -p udp -m addrtype --dst-type LOCAL -m multiport --dports 30000:32767 -j RETURN
-A KUBE-ROUTER-INPUT -s {pod} -j KUBE-POD-FW-LAB
-A KUBE-ROUTER-INPUT -m mark --mark 0x20000/0x20000 -j ACCEPT
-A KUBE-ROUTER-FORWARD -d {pod} -j KUBE-POD-FW-LAB
-A KUBE-ROUTER-FORWARD -s {pod} -j KUBE-POD-FW-LAB
-A KUBE-ROUTER-FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT
-A KUBE-ROUTER-OUTPUT -d {pod} -j KUBE-POD-FW-LAB
-A KUBE-ROUTER-OUTPUT -s {pod} -j KUBE-POD-FW-LAB
-A KUBE-ROUTER-OUTPUT -m mark --mark 0x20000/0x20000 -j ACCEPT
-A KUBE-NWPLCY-COMMON -m conntrack --ctstate INVALID -j DROP
-A KUBE-NWPLCY-COMMON -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NWPLCY-LAB -d {pod} -m set --match-set {sources} src -j MARK --set-xmark 0x10000/0x10000
-A KUBE-NWPLCY-LAB -m mark --mark 0x10000/0x10000 -j RETURN
-A KUBE-NWPLCY-LAB -s {pod} -j MARK --set-xmark 0x10000/0x10000
-A KUBE-POD-FW-LAB -j KUBE-NWPLCY-COMMON
-A KUBE-POD-FW-LAB -d {pod} -m addrtype --src-type LOCAL -j ACCEPT
-A KUBE-POD-FW-LAB -j KUBE-NWPLCY-LAB
-A KUBE-POD-FW-LAB -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with {reject}
-A KUBE-POD-FW-LAB -j MARK --set-xmark 0x0/0x10000
-A KUBE-POD-FW-LAB -j MARK --set-xmark 0x20000/0x20000
COMMIT
"""
