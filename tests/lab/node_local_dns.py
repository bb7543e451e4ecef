"""node-local-dns on a node: the DNS Service's ClusterIP on an interface of its own, and its rules.

Source: kubernetes/dns, cmd/node-cache. Its rules of the table raw are written with nft, since the lab's kernel has no
target NOTRACK. The cache itself is a server of the node.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.lab.cluster import Node
from tests.lab.firewall import tool

LINK_LOCAL = "169.254.20.10"
INTERFACE = "nodelocaldns"
DNS = 53
_COMMENT = ("-m", "comment", "--comment", "NodeLocal DNS Cache: allow DNS traffic")


@contextmanager
def node_local_dns(node: Node, cluster_ips: Sequence[str]) -> Iterator[None]:
    """Set the interface and the rules up for the length of a `with`."""
    addresses = [LINK_LOCAL, *cluster_ips]
    rules = [_accept(address, protocol) for address in addresses for protocol in ("tcp", "udp")]
    node.run("nft", "-f", "-", stdin="".join(untracked(address) for address in addresses))
    for command, incoming, outgoing in rules:
        node.run(command, "-A", "INPUT", *incoming)
        node.run(command, "-A", "OUTPUT", *outgoing)
    node.namespace.ip(
        f"link add {INTERFACE} type dummy\nlink set {INTERFACE} up\n"
        + "".join(f"address add {address} dev {INTERFACE}\n" for address in addresses)
    )
    try:
        yield
    finally:
        node.namespace.ip(f"link delete {INTERFACE}\n")
        for command, incoming, outgoing in rules:
            node.run(command, "-D", "INPUT", *incoming)
            node.run(command, "-D", "OUTPUT", *outgoing)
        for family in ("ip", "ip6"):
            node.run("nft", "delete", "table", family, "raw")


def _accept(address: str, protocol: str) -> tuple[str, list[str], list[str]]:
    match = ["-p", protocol, "-m", protocol]
    return (
        tool(address),
        ["-d", address, *match, "--dport", str(DNS), *_COMMENT, "-j", "ACCEPT"],
        ["-s", address, *match, "--sport", str(DNS), *_COMMENT, "-j", "ACCEPT"],
    )


def untracked(address: str) -> str:
    """Commands of nft: packets to and from the cache are not tracked."""
    family = "ip6" if ":" in address else "ip"
    lines = [f"add table {family} raw"]
    for hook in ("prerouting", "output"):
        lines.append(f"add chain {family} raw {hook} {{ type filter hook {hook} priority -300; }}")
        lines += [
            f"add rule {family} raw {hook} {family} daddr {address} {it} dport {DNS} notrack" for it in ("tcp", "udp")
        ]
    lines += [
        f"add rule {family} raw output {family} saddr {address} {it} sport {DNS} notrack" for it in ("tcp", "udp")
    ]
    return "\n".join([*lines, ""])
