"""Remove what another proxy left, once kroute serves.

The link comes first: while an IPv6 VIP is on it, this node's own processes may call with the VIP as their source, and
then they need the other proxy's rules. Rules come before the sets that they look up. Open connections survive: their
translation is in the connection tracker, and their virtual servers are kroute's by now.
"""

from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.tools import VARIANTS, XtablesTools
from kroute.kernel.ipvs.marks import DeleteMarkServer, IpvsMarks
from kroute.kernel.net.links import Links
from kroute.kernel.net.policy_routing import PolicyRouting, PolicyRule, TableRoute
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import DeleteTable
from kroute.migration.leftovers import Leftovers
from kroute.reconcile.cleanup_report import CleanupReport


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
        async with Ipset() as ipset:
            for name in leftovers.sets:
                with report.step(f"set {name}"):
                    await ipset.destroy(name)
                    report.add(f"destroy set {name}")
    with report.step("direct server return"):
        await _remove_direct_server_return(leftovers, report)
    return report


async def _remove_rules(leftovers: Leftovers, report: CleanupReport) -> None:
    variants = {str(variant): variant for variant in VARIANTS}
    for table in leftovers.tables:
        if not (table.rules or table.chains):
            continue
        with report.step(f"{table.variant} table {table.table}"):
            await XtablesTools().delete(variants[table.variant], table.table, list(table.rules), list(table.chains))
            report.undone += [f"delete {table.variant} rule of table {table.table}: {rule}" for rule in table.rules]
            if table.chains:
                report.add(f"delete {table.variant} chains of table {table.table}: {' '.join(table.chains)}")


async def _remove_nft_tables(leftovers: Leftovers, report: CleanupReport) -> None:
    for table in leftovers.nft_tables:
        with report.step(f"nft table {table}"):
            async with Nftables() as nftables:
                for failure in await nftables.transact(table, [DeleteTable()]):
                    raise KernelError(f"cannot delete it: {failure}; run this again", errno=failure.errno)
            report.add(f"delete nft table {table}")


async def _remove_direct_server_return(leftovers: Leftovers, report: CleanupReport) -> None:
    if leftovers.marks:
        deletions = [DeleteMarkServer(family, mark) for family, mark in leftovers.marks]
        async with IpvsMarks() as marks:
            report.batch(deletions, await marks.delete(deletions))
    things: list[PolicyRule | TableRoute] = [*leftovers.policy_rules, *leftovers.routes]
    if things:
        async with PolicyRouting() as routing:
            failed = {str(failure.change): failure for failure in await routing.delete(things)}
        report.undone += [f"delete {thing}" for thing in things if str(thing) not in failed]
        report.failed += [f"cannot delete {failure.change}" for failure in failed.values()]
