"""What a node's kernel has that a proxy could have made."""

import re

from tests.cluster.machines import Cluster, Host

COMMANDS = {
    "virtual servers": "ipvsadm -Sn",
    "addresses": "ip -brief address",
    "rules of nftables": "nft -s list ruleset",
    "routes": "ip route show table all; ip -6 route show table all",
    "policy rules": "ip rule; ip -6 rule",
    "sets": "ipset list -n",
    "sysctls": "sysctl -a -r '^net[.](ipv4|ipv6|bridge|netfilter)[.]'",
    "state": "ls -A /run/kroute 2>/dev/null",
}
OF_PODS = re.compile(
    r"(?m)^table ip6? nat \{\n(?:.*\n)*?\}\n|"
    r"^.*(?:veth|cni0|# Warning|net\.ipv[46]\.(?:neigh|route)|(?:tcp|udp)_mem|nf_conntrack_count).*\n"
)
"""The table of the plugin portmap, in which kroute has nothing, and lines that come and go with pods and time."""

DRAINS = "-w 0"
"""What the line of a real server has that drains."""

Footprint = dict[str, list[str]]


def of_nodes(cluster: Cluster) -> dict[str, Footprint]:
    """The footprint of each node, without what pods come with."""
    return {
        name: {
            what: OF_PODS.sub("", cluster.on(node, command, check=False)).splitlines()
            for what, command in COMMANDS.items()
        }
        for name, node in cluster.nodes.items()
    }


def at_rest(cluster: Cluster) -> dict[str, Footprint]:
    """The same once no real server drains: what earlier tests have left does until its last connection is forgotten."""

    def drains(node: Host) -> bool:
        return DRAINS in cluster.on(node, COMMANDS["virtual servers"])

    cluster.wait_until("nothing drains", lambda: not any(map(drains, cluster.nodes.values())))
    return of_nodes(cluster)


def in_order(found: dict[str, Footprint]) -> dict[str, dict[str, list[list[str]]]]:
    """The same for every order in which it was made: of lines, and of addresses in a line."""
    return {
        node: {what: sorted(sorted(line.split()) for line in lines) for what, lines in of_node.items()}
        for node, of_node in found.items()
    }


def bound(cluster: Cluster, node: str) -> set[str]:
    """The addresses on kroute's link of a node."""
    words = cluster.on(cluster.nodes[node], "ip -brief address show kube-ipvs0", check=False).split()
    return {word.partition("/")[0] for word in words}


def real_servers(cluster: Cluster, node: str, address: str, protocol: str = "tcp") -> dict[str, int]:
    """The real servers of a virtual server on a node, and their weights; `address` is `IP:PORT` or `[IP]:PORT`."""
    of_server = re.compile(rf"(?m)^-a -{protocol[0]} {re.escape(address)} -r (\S+) .*-w (\d+)")
    table = cluster.on(cluster.nodes[node], "ipvsadm -Sn")
    return {server: int(weight) for server, weight in of_server.findall(table)}
