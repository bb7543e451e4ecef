"""Remove what another proxy left, once kroute serves.

The link comes first: while an IPv6 VIP is on it, this node's own processes may call with the VIP as their source, and
then they need the other proxy's rules. Rules come before the sets that they look up. Open connections survive: their
translation is in the connection tracker, and their virtual servers are kroute's by now. Pods that run stay on their
bridge, and kroute's own routes and tunnels, which stand beside, carry them from then on.
"""

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path

from kroute.checks.other_proxies import OtherProxy
from kroute.kernel.cni import CniFile
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.nft_rules import deletion_of, read_rules
from kroute.kernel.iptables.tools import VARIANTS, delete
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.objects import DeleteMarkServer
from kroute.kernel.net.links import Links
from kroute.kernel.net.policy_routing import PolicyRouting, PolicyRule, TableRoute
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import DeleteTable, Table
from kroute.kernel.pods.pod_routes import PodNetworkKernel
from kroute.migration.leftovers import NEEDS_TOOLS, Leftovers, ProxyPart, part_of
from kroute.reconcile.cleanup_report import CleanupReport

ATTEMPTS = 10
"""How often a table is read that changes before the proxy's part is deleted."""
WAITS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds, for all sets: the kernel frees deleted rules of nf_tables a little later, and only then their sets."""


async def remove(leftovers: Leftovers) -> CleanupReport:
    """Remove everything except virtual servers with an address, and sysctls. A failure does not stop the rest."""
    report = CleanupReport()
    if leftovers.link is not None:
        with report.step(f"link {leftovers.link}"):
            async with Links() as links:
                await links.delete(leftovers.link)
            report.add(f"delete link {leftovers.link} with {len(leftovers.addresses)} addresses")
    await _remove_rules(leftovers, report)
    await _remove_nft_tables(leftovers, report)
    if leftovers.sets:
        waits = iter(WAITS)
        async with Ipset() as ipset:
            for name in leftovers.sets:
                with report.step(f"set {name}"):
                    await _destroy(ipset, name, waits)
                    report.add(f"destroy set {name}")
    with report.step("direct server return and routes"):
        await _remove_routing(leftovers, report)
    if leftovers.with_routing:
        with report.step("tunnels"):
            async with Links() as links:
                for name in leftovers.tunnels:
                    await links.delete(name)
                    report.add(f"delete tunnel {name}")
            await PodNetworkKernel().make_again()
        for path in map(Path, leftovers.cni_files):
            with report.step(f"file {path}"):
                if CniFile(path).remove():
                    report.add(f"delete {path}")
    return report


async def _remove_rules(leftovers: Leftovers, report: CleanupReport) -> None:
    variants = {str(variant): variant for variant in VARIANTS}
    for table in [table for table in leftovers.tables if table.rules or table.chains]:
        variant = variants[table.variant]
        with report.step(f"{variant} table {table.table}"):
            if f"{variant} {table.table}" in leftovers.fixed:
                raise KernelError(f"this process cannot change it: {NEEDS_TOOLS}")
            rules, chains = table.rules, table.chains
            if variant.name == "legacy":
                await delete(variant, table.table, rules, chains)
            else:
                of_kernel = Table(variant.family, table.table)
                async with Nftables() as nftables:
                    part = await remove_nft_rules(nftables, of_kernel, leftovers.whose)
                rules, chains = tuple(rule.text for rule in part.rules), part.chains
            report.add(*(f"delete {variant} rule of table {table.table}: {rule}" for rule in rules))
            if chains:
                report.add(f"delete {variant} chains of table {table.table}: {' '.join(chains)}")


async def remove_nft_rules(nftables: Nftables, table: Table, proxy: OtherProxy) -> ProxyPart:
    """Delete the proxy's part of a table that iptables-nft has made, all of it at one moment; returns what it was.

    The kernel refuses the transaction if any program has changed anything since the table was read, and it is read
    again. Raises KernelError, and nothing has changed then.
    """
    for _ in range(ATTEMPTS):
        found = await read_rules(nftables, table, proxy.chains.fullmatch)
        part = part_of(proxy, found[1]) if found else None
        if found is None or part is None:
            return ProxyPart()
        try:
            refused = await nftables.transact(table, deletion_of(part.rules, part.chains), generation=found[0])
        except KernelError as error:
            if error.errno != errno.ERESTART:
                raise
            continue
        if refused:
            raise KernelError(f"{refused[0]}; run this again", errno=refused[0].errno)
        return part
    raise KernelError("it changes faster than it can be read; run this again", errno=errno.ERESTART)


async def _destroy(ipset: Ipset, name: str, waits: Iterator[float]) -> None:
    while True:
        try:
            return await ipset.destroy(name)
        except KernelError as error:
            if error.errno != errno.EBUSY or (wait := next(waits, None)) is None:
                raise
        await asyncio.sleep(wait)


async def _remove_nft_tables(leftovers: Leftovers, report: CleanupReport) -> None:
    for table in leftovers.nft_tables:
        with report.step(f"nft table {table}"):
            async with Nftables() as nftables:
                for failure in await nftables.transact(table, [DeleteTable()]):
                    raise KernelError(f"cannot delete it: {failure}; run this again", errno=failure.errno)
            report.add(f"delete nft table {table}")


async def _remove_routing(leftovers: Leftovers, report: CleanupReport) -> None:
    if leftovers.marks:
        deletions = [DeleteMarkServer(family, mark) for family, mark in leftovers.marks]
        async with Ipvs() as ipvs:
            report.batch(deletions, await ipvs.delete_marks(deletions))
    things: list[PolicyRule | TableRoute] = [*leftovers.policy_rules, *leftovers.routes]
    if things:
        async with PolicyRouting() as routing:
            failed = {str(failure.change): failure for failure in await routing.delete(things)}
        report.add(
            *(f"delete {thing}" for thing in things if str(thing) not in failed),
            failed=(f"cannot delete {failure.change}" for failure in failed.values()),
        )
