"""Find traces of another service proxy that runs, or ran, on the node."""

from collections.abc import Iterable, Sequence, Set
from contextlib import AsyncExitStack
from typing import NamedTuple, Self

from kroute.checks.known_proxies import OTHER_PROXIES, OtherProxy
from kroute.firewall.backend import clients_of
from kroute.kernel.modules import is_present
from kroute.kernel.nftables.chains import NftChain
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.addresses import Family
from kroute.settings import Settings

NAMED_CHAINS = 5
"""How many chains of one family are named."""


TABLES = ("nat", "mangle", "filter")
"""The tables in which other proxies have chains."""
LEGACY_EVERY = 12
"""Reading the legacy tables takes some milliseconds for each hundred chains."""


class Leftover(NamedTuple):
    """One object of another proxy."""

    proxy: str
    what: str


class ProxyTraces:
    """The names of the proxies that have chains, tables or sets in the kernel, for a caller that asks again and again.

    A link is no trace here: kroute's own may have the same name. Chains of nf_tables are read again only after another
    program has changed something, legacy tables only where `kernel` has them open, and at every `LEGACY_EVERY`th call.
    A context manager, which closes what it has opened.
    """

    def __init__(self, kernel: NodeKernel, settings: Settings) -> None:
        """`kernel` is open for the backend that the settings name."""
        self._kernel = kernel
        self._nftables = kernel.nftables if "nftables" in clients_of(settings) else None
        self._stack = AsyncExitStack()
        self._generation: int | None = None
        self._by_nftables: frozenset[str] = frozenset()
        self._by_legacy: frozenset[str] = frozenset()
        self._calls = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    async def read(self) -> frozenset[str]:
        """The names now. Raises KernelError."""
        if is_present("nf_tables"):
            await self._read_nftables()
        if self._calls % LEGACY_EVERY == 0:
            tables = [(it, table) for it in self._kernel.xtables.values() for table in TABLES]
            self._by_legacy = _proxies_with({name for it, table in tables for name in await it.chains(table)})
        self._calls += 1
        sets = await self._sets()
        by_sets = {proxy.name for proxy in OTHER_PROXIES.values() if proxy.sets & sets}
        return self._by_nftables | self._by_legacy | by_sets

    async def _read_nftables(self) -> None:
        if self._nftables is None:
            from kroute.kernel.nftables.client import Nftables  # noqa: PLC0415  the backend is another

            self._nftables = await self._stack.enter_async_context(Nftables())
        generation = await self._nftables.foreign_generation()
        if generation != self._generation:
            chains = await self._nftables.chains()
            tables = {it.table for it in chains}
            by_table = {proxy.name for proxy in OTHER_PROXIES.values() if proxy.nft_table in tables}
            self._by_nftables = _proxies_with({it.name for it in chains}) | by_table
            self._generation = generation

    async def _sets(self) -> set[str]:
        if not is_present("ip_set"):
            return set()
        from kroute.kernel.ipset import Ipset  # noqa: PLC0415  few nodes with nf_tables have sets

        async with Ipset() as ipset:
            return await ipset.names()


def _proxies_with(chains: Set[str]) -> frozenset[str]:
    return frozenset(proxy.name for proxy in OTHER_PROXIES.values() if any(map(proxy.is_recognised_by, chains)))


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
