"""The filter rules of docker and of ufw on a node, which let in and forward only what they know.

Sources: moby's daemon/libnetwork/drivers/bridge (28), ufw's conf/before.rules and conf/after.rules (0.36). Both write
the same chains for each family. Rules that only log, or that concern broadcasts and DHCP, are left out.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tests.lab.cluster import Node
from tests.lab.firewall import has_legacy

DOCKER_JUMPS = ("DOCKER-FORWARD", "DOCKER-USER")
"""The chains to which docker puts jumps at the head of FORWARD, one after the other, whenever it starts."""

_DOCKER = """\
*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-INTERNAL - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-INTERNAL
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
COMMIT
"""

_UFW = """\
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:ufw-after-forward - [0:0]
:ufw-after-input - [0:0]
:ufw-before-forward - [0:0]
:ufw-before-input - [0:0]
:ufw-not-local - [0:0]
:ufw-reject-forward - [0:0]
:ufw-reject-input - [0:0]
:ufw-user-forward - [0:0]
:ufw-user-input - [0:0]
-A INPUT -j ufw-before-input
-A INPUT -j ufw-after-input
-A INPUT -j ufw-reject-input
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-after-forward
-A FORWARD -j ufw-reject-forward
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
{icmp}
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -j ufw-user-input
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN
-A ufw-not-local -j DROP
COMMIT
"""
_UFW_ICMP = {
    "iptables": "-A ufw-before-input -p icmp --icmp-type echo-request -j ACCEPT",
    "ip6tables": "-A ufw-before-input -p ipv6-icmp -j ACCEPT",
}

_NEIGHBOUR_DISCOVERY = """\
*filter
-A DOCKER-USER -p ipv6-icmp -m icmp6 --icmpv6-type neighbour-solicitation -j ACCEPT
-A DOCKER-USER -p ipv6-icmp -m icmp6 --icmpv6-type neighbour-advertisement -j ACCEPT
COMMIT
"""
"""What an administrator adds: with br_netfilter, FORWARD sees the neighbour discovery of pods on one bridge, which
belongs to no connection."""

TOOLS = ("iptables", "ip6tables")


@contextmanager
def docker(node: Node, variant: str = "legacy") -> Iterator[None]:
    """docker's rules on a node that runs no container, in this variant of iptables, for the length of a `with`."""
    with _restored(node):
        for tool in TOOLS:
            node.run(f"{tool}-{variant}-restore", "--noflush", stdin=_DOCKER)
        node.run(f"ip6tables-{variant}-restore", "--noflush", stdin=_NEIGHBOUR_DISCOVERY)
        yield


@contextmanager
def ufw(node: Node) -> Iterator[None]:
    """The rules of `ufw enable`, for the length of a `with`."""
    with _restored(node):
        for tool in TOOLS:
            node.run(f"{tool}-legacy-restore", "--noflush", stdin=_UFW.format(icmp=_UFW_ICMP[tool]))
        yield


def restart_docker(node: Node, variant: str = "legacy") -> None:
    """Put docker's jumps at the head of FORWARD again, as docker does at each start."""
    for tool in TOOLS:
        for chain in DOCKER_JUMPS:
            node.run(f"{tool}-{variant}", "-D", "FORWARD", "-j", chain)
            node.run(f"{tool}-{variant}", "-I", "FORWARD", "-j", chain)


def ufw_allow(node: Node, rules: Iterable[str]) -> None:
    """Let packets in; `rules` match packets of both families or have an address, which decides the family."""
    for rule in rules:
        tools = TOOLS if not any(it in rule for it in ("-s ", "-d ")) else TOOLS[":" in rule :][:1]
        for tool in tools:
            node.run(f"{tool}-legacy", "-A", "ufw-user-input", *rule.split(), "-j", "ACCEPT")


@contextmanager
def _restored(node: Node) -> Iterator[None]:
    before = {it: node.run(f"{it}-legacy-save", "-t", "filter") for it in TOOLS if has_legacy()}
    try:
        yield
    finally:
        for tool, rules in before.items():
            node.run(f"{tool}-legacy-restore", stdin=rules)
        node.run("nft", "flush ruleset")
