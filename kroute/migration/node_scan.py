"""Read what `leftovers` needs from the kernel and from kroute's ledger. Changes nothing."""

import re
import socket
from collections.abc import Collection, Sequence, Set
from typing import NamedTuple

from kroute.checks.other_proxies import DSR_TABLE, EXTERNAL_IP_TABLE, OVERLAY_TABLE, OtherProxy
from kroute.checks.preflight import has_capability
from kroute.kernel.cni import kube_routers
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import Element, Ipset
from kroute.kernel.iptables.nft_rules import TABLES, read_rules
from kroute.kernel.iptables.tools import VARIANTS, SavedTable, Variant, legacy_tables, parse_saved, save
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.modules import is_present
from kroute.kernel.net.addresses import Addresses
from kroute.kernel.net.links import Links
from kroute.kernel.net.policy_routing import PolicyRouting
from kroute.kernel.netlink.message import unpack_address
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import FAMILY_NAMES, Table
from kroute.kernel.pods.pod_network import RT_TABLE_MAIN
from kroute.kernel.sysctl import Sysctls
from kroute.migration.leftovers import NodeScan
from kroute.reconcile.ledger import Ledger
from kroute.settings import Settings

_TUNNEL = re.compile(r"tun-[0-9a-f]{11}")
_TUNNEL_KINDS = frozenset({"ipip", "ip6tnl"})
_LEGACY_MODULES: dict[int, str] = {socket.AF_INET: "ip_tables", socket.AF_INET6: "ip6_tables"}


async def scan_node(proxy: OtherProxy, settings: Settings) -> NodeScan:
    """Read everything on this node that the proxy may have made. Raises KernelError or LedgerError."""
    ledger = Ledger.open(settings.state_dir)
    rules = {str(variant): await _read_rules(proxy, variant) for variant in VARIANTS}
    async with Ipvs() as ipvs, PolicyRouting() as routing, Links() as links:
        async with Addresses() as addresses:
            has_link = await links.index(proxy.link) is not None
            of_node = await addresses.of_node()
        return NodeScan(
            tables={variant: found.tables for variant, found in rules.items()},
            unread=tuple(f"{variant} {table}".strip() for variant, found in rules.items() for table in found.unread),
            fixed=frozenset(variant for variant, found in rules.items() if found.are_fixed),
            sets=await _read_sets(proxy),
            virtual_servers={
                key: {address for address, _ in server.real_servers} for key, server in (await ipvs.read()).items()
            },
            marks=tuple(await ipvs.marks()),
            link_addresses={each.address for each in of_node if each.interface == proxy.link} if has_link else None,
            elsewhere={each.address for each in of_node if each.interface != proxy.link},
            policy_rules=tuple(await routing.rules()),
            table_routes=tuple(await routing.routes(_tables_of(proxy))),
            sysctls={name: Sysctls().read(name) for name in proxy.sysctls},
            our_virtual_servers=frozenset(ledger.virtual_servers),
            our_links=frozenset(ledger.links),
            nft_tables=await _read_nft_tables(proxy.nft_tables),
            tunnels=tuple(await _tunnels(links) if proxy.connects_pods else ()),
            cni_files=tuple(str(path) for path, _ in kube_routers(settings.cni_file)) if proxy.connects_pods else (),
        )


def _tables_of(proxy: OtherProxy) -> set[int]:
    return {DSR_TABLE, EXTERNAL_IP_TABLE, *((OVERLAY_TABLE, RT_TABLE_MAIN) if proxy.connects_pods else ())}


async def _tunnels(links: Links) -> list[str]:
    """The links with the names of kube-router's tunnels that are tunnels."""
    named = sorted(filter(_TUNNEL.fullmatch, await links.names()))
    states = [(name, await links.read(name)) for name in named]
    return [name for name, state in states if state is not None and state.kind in _TUNNEL_KINDS]


async def translated_vips(proxy: OtherProxy) -> set[str]:
    """The VIPs that the proxy serves or refuses by rules that come before IPVS. Raises KernelError."""
    found = set()
    async with Nftables() as nftables:
        for table in await _read_nft_tables(proxy.nft_tables):
            for name in proxy.vip_maps:  # address . protocol . port, of which the last two have four bytes each
                found |= {unpack_address(key.value[:-8]) for key in await nftables.keys(table, name)}
    for variant in VARIANTS:
        for saved in (await _read_rules(proxy, variant, proxy.vip_chains)).tables:
            of_vips = [rule for rule in saved.rules if rule.chain in proxy.vip_chains]
            found |= {rule.after("-d").removesuffix("/32").removesuffix("/128") for rule in of_vips}
    return found


class _Rules(NamedTuple):
    """The tables of a variant; those that could not be read ("": not even their names); whether none can be changed."""

    tables: Sequence[SavedTable] = ()
    unread: Sequence[str] = ()
    are_fixed: bool = False


async def _read_rules(proxy: OtherProxy, variant: Variant, whole: Collection[str] = ()) -> _Rules:
    if variant.name == "legacy":
        return await _read_legacy(variant)
    async with Nftables() as nftables:
        there = await nftables.tables()
        tables = [table for name in TABLES if (table := Table(variant.family, name)).listed_as in there]
        found = [await read_rules(nftables, table, proxy.chains.fullmatch, whole) for table in tables]
    return _Rules([each[1] for each in found if each is not None])


async def _read_legacy(variant: Variant) -> _Rules:
    """By the tools, which need a raw socket; without them the kernel shows the chains, and nothing can be changed."""
    names = legacy_tables(variant.family)
    if not names and (names is not None or not is_present(_LEGACY_MODULES[variant.family])):
        return _Rules()
    if has_capability("NET_RAW"):
        saved = await save(variant)
        if saved is not None:
            return _Rules(parse_saved(saved))
    from kroute.kernel.iptables.table_digest import legacy_chains  # noqa: PLC0415 (loads ctypes)

    tables, unread = [], [] if names else [""]
    for name in names or ():
        try:
            tables.append(SavedTable(name, chains=legacy_chains(variant.family, name)))
        except KernelError:
            unread.append(name)
    return _Rules(tables, unread, are_fixed=True)


async def _read_sets(proxy: OtherProxy) -> dict[str, Set[Element]]:
    """All sets of the proxy; of those that name no ports the elements do not matter, and there may be many."""
    if not is_present("ip_set"):
        return {}
    of_ports = {*proxy.port_sets, *proxy.node_port_sets}
    async with Ipset() as ipset:
        names = sorted(filter(proxy.has_set, await ipset.names()))
        return {name: await ipset.read(name) if name in of_ports else frozenset() for name in names}


async def _read_nft_tables(names: Set[str]) -> tuple[Table, ...]:
    if not names:
        return ()
    async with Nftables() as nftables:
        found = await nftables.tables()
    possible = [Table(family, name) for family in FAMILY_NAMES for name in sorted(names)]
    return tuple(table for table in possible if table.listed_as in found)
