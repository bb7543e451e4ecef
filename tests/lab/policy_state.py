"""What kroute has of network policies in the kernel of a node, read with the tools that an operator has.

Each function does so for the backend in use: with ipset and iptables-legacy, or with nft.
"""

import re

from tests.lab.cluster import Node
from tests.lab.firewall import NFTABLES, backend
from tests.lab.namespaces import CommandError

_NFT_FAMILIES = {"IPv4": "ip", "IPv6": "ip6"}
_NFT_TABLE = re.compile(r"(?ms)^table ip6? kroute-policies \{.*?^\}\n")
_COUNTERS = re.compile(r"(?m) *packets \d+ bytes \d+|^\[\d+:\d+\] ")
_DROPPED = re.compile(r"packets (\d+) bytes \d+ drop|\[(\d+):\d+\] -A KROUTENP-\S* .*-j (?:DROP|QUEUE)")


def written(node: Node) -> str:
    """The rules and sets, where there are handles with these; "" if there is nothing."""
    listed = "".join(_listed(node, family) for family in _NFT_FAMILIES)
    if backend() != NFTABLES:
        lines = node.run("ipset", "save").splitlines()
        listed += "\n".join(sorted(line for line in lines if " KROUTENP-" in line))
    return _COUNTERS.sub("", listed)


def dropped(node: Node, family: str) -> int:
    """How many packets the groups have dropped; `family` is "IPv4" or "IPv6"."""
    return sum(int(nft or legacy) for nft, legacy in _DROPPED.findall(_listed(node, family)))


def _listed(node: Node, family: str) -> str:
    """The rules of one family, with counters."""
    if backend() == NFTABLES:
        found = _NFT_TABLE.search(node.run("nft", "-a", "list", "ruleset", _NFT_FAMILIES[family]))
        return found[0] if found else ""
    tool = "iptables" if family == "IPv4" else "ip6tables"
    lines = saved(node, f"{tool}-legacy-save", "-c").splitlines(keepends=True)
    return "".join(line for line in lines if "KROUTENP-" in line)


def saved(node: Node, tool: str, *options: str) -> str:
    """What a tool prints that asks for the name of each set, and fails if one has gone since it read the rules."""
    while True:
        try:
            return node.run(tool, *options)
        except CommandError as error:
            if "in kernel doesn't exist" not in str(error):
                raise
