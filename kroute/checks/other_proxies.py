"""Other service proxies: what each leaves on a node, as a table, and which traces of them are there.

kroute touches no foreign object that the table does not name. Sources: kube-proxy's `pkg/proxy/ipvs` (ipset.go,
proxier.go), `pkg/proxy/iptables` and `pkg/proxy/nftables`, kube-router's `pkg/controllers/proxy`. Similar names of
other programs are left out on purpose: the kubelet's KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-KUBELET-CANARY and
KUBE-IPTABLES-HINT, and kube-router's bridge, on which pods are. What kube-router has of network policies and of routing
is its own too once kroute enforces policies (`with_firewall`), and connects pods (`with_routing`; kube-router's
`pkg/controllers/routing`, `pkg/routes` and `pkg/tunnels`).
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple, Self

from kroute.firewall.backend import clients_of
from kroute.kernel.iptables.tools import legacy_tables
from kroute.kernel.modules import is_present
from kroute.kernel.nftables.objects import NftChain
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.addresses import Family
from kroute.settings import Settings

if TYPE_CHECKING:
    from kroute.checks.policy_enforcers import Presence

KUBE_PROXY = "kube-proxy"
KUBE_ROUTER = "kube-router"

SET_NAME_LIMIT = 31
"""IPSET_MAXNAMELEN less the closing NUL. kube-proxy cuts its IPv6 names to this length."""

KUBELETS_TOO = frozenset({"KUBE-MARK-MASQ", "KUBE-POSTROUTING"})
"""Chains of kube-proxy that kubelets before 1.28 make as well. Alone, they are no trace of a proxy."""

DSR_TABLE, DSR_PRIORITY = 78, 32764
EXTERNAL_IP_TABLE, EXTERNAL_IP_PRIORITY = 79, 32765
"""kube-router's routing tables for direct server return and external IPs, and the priorities of their rules."""
OVERLAY_TABLE = 77
"""The routing table by which kube-router's pods reach nodes behind tunnels."""
ROUTE_PROTOCOL = 17
"""What kube-router's routes to pods name as their origin."""
_ROUTING_SETS = re.compile(r"(?:inet6:)?kube-router-(?:pod-subnets|node-ips)")


class OtherProxy(NamedTuple):
    """One of the proxies that kroute takes over from.

    `link` carries its VIPs. `port_sets` hold its virtual servers as (address, protocol, port); if
    `lists_every_virtual_server`, they hold those of other programs, too. `node_port_sets` hold its node ports; the
    values are the protocol number and whether the set is of IPv6. `sysctls` are those that it sets, with their values.
    `has_source_routes`: its VIPs have routes with the node's address as the source, as kroute's have. `nft_tables` are
    the names of its own tables in nf_tables, of the families ip and ip6. `translating` are the chains in the table nat
    of iptables that translate packets to endpoints, before IPVS sees them; None without any. There the rules of
    `vip_chains` name its VIPs (`-d`), as do the keys of `vip_maps` in its nft_tables. `further_sets` are the
    names of sets that cannot be listed. `has_firewall`: it may enforce network policies, too. `connects_pods`: what it
    has of routing is meant, too.
    """

    name: str
    link: str
    chains: re.Pattern[str]
    sets: frozenset[str]
    port_sets: tuple[str, ...]
    node_port_sets: dict[str, tuple[int, bool]]
    sysctls: dict[str, str]
    lists_every_virtual_server: bool = False
    has_dsr: bool = False
    has_source_routes: bool = False
    nft_tables: frozenset[str] = frozenset()
    translating: re.Pattern[str] | None = None
    vip_chains: frozenset[str] = frozenset()
    vip_maps: tuple[str, ...] = ()
    further_sets: re.Pattern[str] | None = None
    has_firewall: bool = False
    connects_pods: bool = False

    def with_firewall(self) -> Self:
        """The same proxy, to which what it has of network policies belongs, too."""
        if not self.has_firewall:
            return self
        from kroute.checks.policy_enforcers import KUBE_ROUTERS_FIREWALL as FIREWALL  # noqa: PLC0415  few nodes have it

        chains = re.compile(f"(?:{self.chains.pattern})|(?:{FIREWALL.chains.pattern})")
        tables = self.nft_tables | FIREWALL.tables
        return self._replace(chains=chains, further_sets=_either(self.further_sets, FIREWALL.sets), nft_tables=tables)

    def with_routing(self) -> Self:
        """The same proxy, to which what it has of the pods' network belongs, too."""
        if self.name != KUBE_ROUTER:
            return self
        return self._replace(further_sets=_either(self.further_sets, _ROUTING_SETS), connects_pods=True)

    def with_parts(self, *, firewall: bool, routing: bool) -> Self:
        """The same proxy with those of its further parts that are meant."""
        whole = self.with_firewall() if firewall else self
        return whole.with_routing() if routing else whole

    def is_recognised_by(self, chain: str) -> bool:
        """Whether a chain of this name is a trace of the proxy."""
        return self.chains.fullmatch(chain) is not None and chain not in KUBELETS_TOO

    def has_set(self, name: str) -> bool:
        """Whether a set of this name is the proxy's."""
        return name in self.sets or (self.further_sets is not None and self.further_sets.fullmatch(name) is not None)


def _either(first: re.Pattern[str] | None, second: re.Pattern[str]) -> re.Pattern[str]:
    return second if first is None else re.compile(f"(?:{first.pattern})|(?:{second.pattern})")


def _ipv6_name(name: str) -> str:
    return f"KUBE-6-{name.removeprefix('KUBE-')}"[:SET_NAME_LIMIT]


def _both(*names: str) -> tuple[str, ...]:
    return tuple(name for each in names for name in (each, _ipv6_name(each)))


def _inet6(*names: str) -> tuple[str, ...]:
    return tuple(name for each in names for name in (each, f"inet6:{each}"))


_KUBE_PROXY_PORTS = _both(
    "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT-SCTP-HASH"
)
_KUBE_PROXY_NODE_PORTS = {
    name: (protocol, is_ipv6)
    for each, protocol in (("TCP", 6), ("UDP", 17))
    for name, is_ipv6 in zip(_both(f"KUBE-NODE-PORT-{each}"), (False, True), strict=True)
}
_KUBE_PROXY_SETS = (
    *_both(
        "KUBE-LOOP-BACK",
        "KUBE-LOAD-BALANCER-FW",
        "KUBE-LOAD-BALANCER-LOCAL",
        "KUBE-LOAD-BALANCER-SOURCE-IP",
        "KUBE-LOAD-BALANCER-SOURCE-CIDR",
        "KUBE-NODE-PORT-LOCAL-TCP",
        "KUBE-NODE-PORT-LOCAL-UDP",
        "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
        "KUBE-HEALTH-CHECK-NODE-PORT",
        "KUBE-IPVS-IPS",
    ),
    *_KUBE_PROXY_PORTS,
    *_KUBE_PROXY_NODE_PORTS,
)
_IPVS_SYSCTLS = {
    f"net.ipv4.vs.{name}": "1" for name in ("conntrack", "expire_nodest_conn", "expire_quiescent_template")
}

OTHER_PROXIES = {
    proxy.name: proxy
    for proxy in (
        OtherProxy(
            KUBE_PROXY,
            link="kube-ipvs0",
            chains=re.compile(
                r"KUBE-(?:SERVICES|EXTERNAL-SERVICES|NODEPORTS|NODE-PORT|LOAD-BALANCER|FIRE-WALL|MARK-MASQ|POSTROUTING"
                r"|FORWARD|PROXY-FIREWALL|SOURCE-RANGES-FIREWALL|IPVS-FILTER|IPVS-OUT-FILTER|PROXY-CANARY"
                r"|(?:SVC|SVL|SEP|EXT|FW|XLB)-[A-Z2-7]{16})"
            ),
            sets=frozenset(_KUBE_PROXY_SETS),
            port_sets=_KUBE_PROXY_PORTS,
            node_port_sets=_KUBE_PROXY_NODE_PORTS,
            sysctls={**_IPVS_SYSCTLS, "net.ipv4.ip_forward": "1"},
            nft_tables=frozenset({"kube-proxy"}),
            translating=re.compile(r"KUBE-SEP-[A-Z2-7]{16}"),
            vip_chains=frozenset({"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"}),
            vip_maps=("service-ips", "no-endpoint-services"),
        ),
        OtherProxy(
            KUBE_ROUTER,
            link="kube-dummy-if",
            chains=re.compile(r"KUBE-ROUTER-(?:SERVICES|HAIRPIN)"),
            sets=frozenset(_inet6("kube-router-local-ips", "kube-router-svip", "kube-router-svip-prt")),
            port_sets=_inet6("kube-router-svip-prt"),
            node_port_sets={},
            sysctls={
                **_IPVS_SYSCTLS,
                "net.ipv4.vs.conn_reuse_mode": "0",
                "net.ipv4.conf.all.arp_ignore": "1",
                "net.ipv4.conf.all.arp_announce": "2",
                "net.ipv4.conf.all.rp_filter": "2",
            },
            lists_every_virtual_server=True,
            has_dsr=True,
            has_source_routes=True,
            has_firewall=True,
        ),
    )
}
"""By name. A sysctl with another value has been changed by somebody else since, and is not a leftover."""


NAMED_CHAINS = 5
"""How many chains of one family are named."""
TABLES = ("nat", "mangle", "filter")
"""The tables in which other proxies have chains."""


class Trace(NamedTuple):
    """One object of another proxy."""

    proxy: str
    what: str


class _Recognised(NamedTuple):
    """Whose these chains and tables are: the names of proxies, and with network policies enforcers, with an example."""

    proxies: frozenset[str] = frozenset()
    enforcers: Mapping[str, str] = {}


class ProxyTraces:
    """The names of the proxies that have chains, tables or sets in the kernel, for a caller that asks again and again.

    With network policies, the same reading shows who else enforces them.

    A link is no trace here: kroute's own may have the same name. Chains of nf_tables are read again only after another
    program has changed something, those of a legacy table only after any change of the table. Legacy tables are read
    whatever kroute's own backend is: with kube-proxy's rules in them, packets never reach IPVS.

    A context manager, which closes what it has opened.
    """

    def __init__(self, kernel: NodeKernel, settings: Settings) -> None:
        """`kernel` is open for the backend that the settings name."""
        self._nftables = kernel.nftables if "nftables" in clients_of(settings) else None
        self._has_policies = settings.network_policies
        self._stack = AsyncExitStack()
        self._generation: int | None = None
        self._by_nftables = _Recognised()
        self._by_legacy: dict[tuple[int, str], tuple[bytes, _Recognised]] = {}
        """The outline of each legacy table, and whose chains are there."""
        self._enforcer: Presence | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    async def read(self) -> frozenset[str]:
        """The names now. Raises KernelError."""
        if is_present("nf_tables"):
            await self._read_nftables()
        await self._read_legacy()
        if self._has_policies:
            from kroute.checks.policy_enforcers import present  # noqa: PLC0415  few nodes have policies

            by_rules = {name: example for found in self._recognised for name, example in found.enforcers.items()}
            self._enforcer = next(present(by_rules), None)
        sets = await self._sets()
        by_sets = {proxy.name for proxy in OTHER_PROXIES.values() if any(map(proxy.has_set, sets))}
        return frozenset(by_sets).union(*[found.proxies for found in self._recognised])

    def enforcer(self) -> "Presence | None":
        """Another program that enforces network policies, by the last reading; None without network policies."""
        return self._enforcer

    @property
    def _recognised(self) -> list[_Recognised]:
        return [self._by_nftables, *(found for _, found in self._by_legacy.values())]

    def _recognise(self, chains: Set[str], tables: Set[str] = frozenset()) -> _Recognised:
        proxies = [
            proxy.name
            for proxy in OTHER_PROXIES.values()
            if proxy.nft_tables & tables or any(map(proxy.is_recognised_by, chains))
        ]
        if not self._has_policies:
            return _Recognised(frozenset(proxies))
        from kroute.checks.policy_enforcers import examples  # noqa: PLC0415  as above

        return _Recognised(frozenset(proxies), examples(chains, tables))

    async def _read_nftables(self) -> None:
        if self._nftables is None:
            from kroute.kernel.nftables.client import Nftables  # noqa: PLC0415  the backend is another

            self._nftables = await self._stack.enter_async_context(Nftables())
        generation = await self._nftables.foreign_generation()
        if generation != self._generation:
            chains = await self._nftables.chains()
            self._by_nftables = self._recognise({chain.name for chain in chains}, {chain.table for chain in chains})
            self._generation = generation

    async def _read_legacy(self) -> None:
        tables = [
            (family.number, name) for family in Family for name in legacy_tables(family.number) or () if name in TABLES
        ]
        if not tables:
            return
        from kroute.kernel.iptables.table_digest import legacy_chains, legacy_outline  # noqa: PLC0415 (loads ctypes)

        for table in tables:
            known, outline = self._by_legacy.get(table), legacy_outline(*table)
            if known is None or known[0] != outline:
                chains = await asyncio.to_thread(legacy_chains, *table)  # kube-proxy's may be thousands
                self._by_legacy[table] = outline, self._recognise(set(chains))

    async def _sets(self) -> set[str]:
        if not is_present("ip_set"):
            return set()
        from kroute.kernel.ipset import Ipset  # noqa: PLC0415  few nodes with nf_tables have sets

        async with Ipset() as ipset:
            return await ipset.names()


async def leftovers(kernel: NodeKernel, nft_chains: Sequence[NftChain], our_links: Set[str]) -> list[Trace]:
    """Every trace on the node. Reads only. A link in `our_links` is kroute's, whatever its name.

    `nft_chains` are all chains of nf_tables.
    """
    found: list[Trace] = []
    set_names = await kernel.ipset.names()
    chains = {
        variant.label: {name for table in TABLES for name in await client.chains(table)}
        for variant, client in kernel.xtables.items()  # none if the caller has opened none
        if variant.name == "legacy"
    }
    for proxy in OTHER_PROXIES.values():
        what = []
        if proxy.link not in our_links and await kernel.links.index(proxy.link) is not None:
            what.append(f"link {proxy.link}")
        if sets := sorted(filter(proxy.has_set, set_names)):
            what.append(f"set {sets[0]}" + (f" and {len(sets) - 1} more" if len(sets) > 1 else ""))
        what += [f"{family} chain {name}" for family, names in chains.items() for name in _recognised(proxy, names)]
        theirs = [chain for chain in nft_chains if proxy.is_recognised_by(chain.name)]
        what += [f"nft chain {chain.family} {chain.table} {chain.name}" for chain in theirs]
        what += [f"nft table {chain.family} {chain.table}" for chain in nft_chains if chain.table in proxy.nft_tables]
        found += [Trace(proxy.name, trace) for trace in what]
    return list(dict.fromkeys(found))


def _recognised(proxy: OtherProxy, names: Iterable[str]) -> list[str]:
    """The proxy's chains. There may be thousands, some for each Service, so the list is cut."""
    telling = sorted(filter(proxy.is_recognised_by, names))
    return telling if len(telling) <= NAMED_CHAINS else [*telling[:NAMED_CHAINS], f"... ({len(telling)} in all)"]
