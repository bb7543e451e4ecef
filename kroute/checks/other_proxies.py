"""Find traces of another service proxy that runs, or ran, on the node."""

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from kroute.checks.known_proxies import OTHER_PROXIES, OtherProxy
from kroute.kernel.nftables.chains import NftChain
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.addresses import Family

NAMED_CHAINS = 5
"""How many chains of one family are named."""


TABLES = ("nat", "mangle", "filter")
"""The tables in which other proxies have chains."""


class Leftover(NamedTuple):
    """One object of another proxy."""

    proxy: str
    what: str


async def leftovers(kernel: NodeKernel, nft_chains: Sequence[NftChain], our_links: Set[str]) -> list[Leftover]:
    """Every trace on the node. Reads only. A link in `our_links` is kroute's, whatever its name.

    `nft_chains` are all chains of nf_tables.
    """
    found: list[Leftover] = []
    set_names = await kernel.ipset.names()
    chains = {
        family.value: {name for table in TABLES for name in await kernel.xtables[family.number].chains(table)}
        for family in Family
        if family.number in kernel.xtables
    }
    for proxy in OTHER_PROXIES.values():
        what = []
        if proxy.link not in our_links and await kernel.links.index(proxy.link) is not None:
            what.append(f"link {proxy.link}")
        if sets := sorted(proxy.sets & set_names):
            what.append(f"set {sets[0]}" + (f" and {len(sets) - 1} more" if len(sets) > 1 else ""))
        what += [f"{family} chain {name}" for family, names in chains.items() for name in _recognised(proxy, names)]
        what += [f"nft chain {it.family} {it.table} {it.name}" for it in nft_chains if proxy.is_recognised_by(it.name)]
        what += [f"nft table {it.family} {it.table}" for it in nft_chains if it.table == proxy.nft_table]
        found += [Leftover(proxy.name, it) for it in what]
    return list(dict.fromkeys(found))


def _recognised(proxy: OtherProxy, names: Iterable[str]) -> list[str]:
    """The proxy's chains. There may be thousands, some for each Service, so the list is cut."""
    telling = sorted(filter(proxy.is_recognised_by, names))
    return telling if len(telling) <= NAMED_CHAINS else [*telling[:NAMED_CHAINS], f"... ({len(telling)} in all)"]
