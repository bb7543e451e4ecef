"""Read what `leftovers` needs from the kernel and from kroute's ledger. Changes nothing."""

from collections.abc import Set
from pathlib import Path

from kroute.checks.known_proxies import DSR_TABLE, EXTERNAL_IP_TABLE, OtherProxy
from kroute.kernel.ipset import Element, Ipset
from kroute.kernel.iptables.tools import VARIANTS, XtablesTools
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.marks import IpvsMarks
from kroute.kernel.modules import is_present
from kroute.kernel.net.addresses import Addresses
from kroute.kernel.net.links import Links
from kroute.kernel.net.policy_routing import PolicyRouting
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import FAMILY_NAMES, Table
from kroute.kernel.sysctl import Sysctls
from kroute.migration.leftovers import NodeScan
from kroute.reconcile.ledger import Ledger


async def scan_node(proxy: OtherProxy, state_dir: Path) -> NodeScan:
    """Read everything on this node that the proxy may have made. Raises KernelError or LedgerError."""
    ledger = Ledger.open(state_dir)
    tools = XtablesTools()
    async with Ipvs() as ipvs, IpvsMarks() as marks, PolicyRouting() as routing, Links() as links:
        async with Addresses() as addresses:
            has_link = await links.index(proxy.link) is not None
            of_node = await addresses.of_node()
        return NodeScan(
            saved={str(variant): await tools.save(variant) for variant in VARIANTS},
            sets=await _read_sets(proxy.sets),
            virtual_servers={
                key: {address for address, _ in it.real_servers} for key, it in (await ipvs.read()).items()
            },
            marks=tuple(await marks.read()),
            link_addresses={it.address for it in of_node if it.interface == proxy.link} if has_link else None,
            elsewhere={it.address for it in of_node if it.interface != proxy.link},
            policy_rules=tuple(await routing.rules()),
            table_routes=tuple(await routing.routes({DSR_TABLE, EXTERNAL_IP_TABLE})),
            sysctls={name: Sysctls().read(name) for name in proxy.sysctls},
            our_virtual_servers=frozenset(ledger.virtual_servers),
            our_links=frozenset(ledger.links),
            nft_tables=await _read_nft_tables(proxy.nft_table),
        )


async def _read_sets(names: Set[str]) -> dict[str, Set[Element]]:
    if not names or not is_present("ip_set"):
        return {}
    async with Ipset() as ipset:
        return {name: await ipset.read(name) for name in sorted(names & await ipset.names())}


async def _read_nft_tables(name: str) -> tuple[Table, ...]:
    if not name:
        return ()
    async with Nftables() as nftables:
        found = await nftables.tables()
    return tuple(table for table in (Table(family, name) for family in FAMILY_NAMES) if table.listed_as in found)
