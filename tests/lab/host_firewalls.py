"""The filter rules of docker, ufw and firewalld on a node, which let in and forward only what they know.

Sources: moby's daemon/libnetwork/drivers/bridge (28), ufw's conf/before.rules and conf/after.rules (0.36), and what
firewalld 1.3.3 writes. docker and ufw write the same chains for each family. Rules that only log, or that concern
broadcasts and DHCP, are left out, and so are chains without rules.
"""

import re
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

_FIREWALLD = """\
table inet firewalld {{
    chain filter_INPUT {{
        type filter hook input priority filter + 10; policy accept;
        ct state {{ established, related }} accept
        ct status dnat accept
        iifname "lo" accept
        ct state invalid drop
        jump filter_INPUT_ZONES
        reject with icmpx admin-prohibited
    }}
    chain filter_FORWARD {{
        type filter hook forward priority filter + 10; policy accept;
        ct state {{ established, related }} accept
        ct status dnat accept
        iifname "lo" accept
        ct state invalid drop
        jump filter_FORWARD_ZONES
        reject with icmpx admin-prohibited
    }}
    chain filter_INPUT_ZONES {{
        {trusted_in}
        goto filter_IN_public
    }}
    chain filter_FORWARD_ZONES {{
        {trusted_forward}
        goto filter_FWD_public
    }}
    chain filter_IN_trusted {{ accept; }}
    chain filter_FWD_trusted {{ accept; }}
    chain filter_IN_public {{
        {allowed}
        meta l4proto {{ icmp, ipv6-icmp }} accept
        reject with icmpx admin-prohibited
    }}
    chain filter_FWD_public {{ reject with icmpx admin-prohibited; }}
}}
"""
_RICH_RULE = re.compile(r'rule family="ipv(4|6)" destination address="([^"]+)" accept')

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


@contextmanager
def firewalld(node: Node, commands: Iterable[Iterable[str]]) -> Iterator[None]:
    """The rules of firewalld after these calls of firewall-cmd, cut into words, for the length of a `with`.

    Every interface is in the zone public. An option that is not translated here raises ValueError.
    """
    trusted, allowed = [], []
    for option in (option for words in commands for option in words):
        name, _, value = option.partition("=")
        match name:
            case "--add-source":
                trusted.append(f"{'ip6' if ':' in value else 'ip'} saddr {value} goto filter_{{}}_trusted")
            case "--add-port":
                ports, _, protocol = value.partition("/")
                allowed.append(f"{protocol} dport {ports} accept")
            case "--add-rich-rule" if rule := _RICH_RULE.fullmatch(value):
                allowed.append(f"{'ip6' if rule[1] == '6' else 'ip'} daddr {rule[2]} accept")
            case "firewall-cmd" | "--permanent" | "--zone" | "--reload":
                pass
            case _:
                raise ValueError(option)
    chains = [[line.format(chain) for line in trusted] for chain in ("IN", "FWD")]
    lines = ["\n        ".join(rules) for rules in (*chains, allowed)]
    node.run("nft", "-f", "-", stdin=_FIREWALLD.format(trusted_in=lines[0], trusted_forward=lines[1], allowed=lines[2]))
    try:
        yield
    finally:
        node.run("nft", "delete", "table", "inet", "firewalld")


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
