"""What tells that another service proxy is, or was, at work on the node."""

from collections.abc import Mapping
from typing import NamedTuple

from kroute.controllers.address_sets import Family
from kroute.controllers.node_rules import WITHOUT
from kroute.kernel.ipset import Ipset
from kroute.kernel.links import Links
from kroute.kernel.nftables import Nftables
from kroute.kernel.xtables import Xtables


class Leaving(NamedTuple):
    """One thing of another proxy's."""

    proxy: str
    what: str


LINKS = {"kube-ipvs0": "kube-proxy"}
SETS = {"KUBE-": "kube-proxy", "kube-router-svip": "kube-router", "inet6:kube-router-svip": "kube-router"}
"""How the names of their sets begin."""
CHAINS = {
    "KUBE-SERVICES": "kube-proxy",
    "KUBE-NODEPORTS": "kube-proxy",
    "KUBE-NODE-PORT": "kube-proxy",
    "KUBE-IPVS-FILTER": "kube-proxy",
    "KUBE-ROUTER-SERVICES": "kube-router",
    "KUBE-ROUTER-HAIRPIN": "kube-router",
}
"""Chains that only a service proxy makes: the kubelet has some of the same prefix, which are no matter of proxies."""
NFT_TABLE = "kube-proxy"
"""Of kube-proxy's mode nftables, in the families ip and ip6. Its other modes may have their chains in nf_tables too."""


async def leavings(links: Links, ipset: Ipset, xtables: Mapping[Family, Xtables], nftables: Nftables) -> list[Leaving]:
    """Everything that is found. Reads only."""
    found = [Leaving(proxy, f"link {name}") for name, proxy in LINKS.items() if await links.index(name) is not None]
    names = await ipset.names()
    for prefix, proxy in SETS.items():
        if count := sum(name.startswith(prefix) for name in names):
            found.append(Leaving(proxy, f"{count} sets {prefix}..."))
    for family, tables in xtables.items():
        chains = {name for table in WITHOUT for name in await tables.chains(table)}
        found += [Leaving(CHAINS[name], f"{family.name} chain {name}") for name in sorted(chains & CHAINS.keys())]
    there = await nftables.chains()
    found += [Leaving("kube-proxy", f"nft table {it.family} {it.table}") for it in there if it.table == NFT_TABLE]
    found += [
        Leaving(CHAINS[it.name], f"nft chain {it.family} {it.table} {it.name}") for it in there if it.name in CHAINS
    ]
    return list(dict.fromkeys(found))
