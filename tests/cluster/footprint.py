"""What a node's kernel has that a proxy could have made."""

import re

from tests.cluster.machines import Cluster

COMMANDS = {
    "virtual servers": "ipvsadm -Sn",
    "addresses": "ip -o address",
    "rules of nftables": "nft -s list ruleset",
    "routes": "ip route show table all; ip -6 route show table all",
    "policy rules": "ip rule; ip -6 rule",
    "sets": "ipset list -n",
    "sysctls": "sysctl -a -r '^net[.](ipv4|ipv6|bridge|netfilter)[.]'",
    "state": "ls -A /run/kroute",
}
OF_PODS = re.compile(
    r"veth|cni0|CNI-|lft |^net\.(ipv4|ipv6)\.(neigh|route|tcp_mem|udp_mem)|(nf_conntrack|dentry|inode)_count|fe80"
)
"""Lines that come and go with pods and time."""

Footprint = dict[str, list[str]]


def of_nodes(cluster: Cluster) -> dict[str, Footprint]:
    """The footprint of each node, without what pods come with."""
    return {
        name: {
            what: [line for line in cluster.on(node, command, check=False).splitlines() if not OF_PODS.search(line)]
            for what, command in COMMANDS.items()
        }
        for name, node in cluster.nodes.items()
    }
