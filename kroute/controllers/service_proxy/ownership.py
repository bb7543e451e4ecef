"""Which virtual servers and links of an earlier run are ours: what the ledger names, and what it must have lost."""

from errno import EADDRNOTAVAIL, ESRCH

from kroute.controllers.dummy_interface import DummyInterface
from kroute.kernel.clients import AddressClient, IpvsClient
from kroute.kernel.ipvs.objects import DeleteVirtualServer
from kroute.kernel.net.addresses import UnbindAddress
from kroute.model.plan import VirtualServerKey
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.comparison.virtual_servers import planned_key
from kroute.reconcile.ledger import Exclusion, Ledger


async def adopt_what_is_ours(
    ledger: Ledger, interface: DummyInterface, addresses: AddressClient, ipvs: IpvsClient, exclusion: Exclusion
) -> None:
    """Record in the ledger what is ours. Without a whole ledger, virtual servers on the interface's addresses are too.

    A virtual server in the networks of `exclusion` is ours only if the ledger names it. Raises KernelError and
    LedgerError.
    """
    links = {interface.name} if await interface.exists() else set()
    ours = list(ledger.virtual_servers)
    if ledger.is_whole:
        links &= ledger.links
    else:
        bound = {address for address in await addresses.read(interface.name) if not exclusion.covers(address)}
        ours += [planned_key(key) for key in await ipvs.read() if key[1] in bound]
    if ledger.exists or ours or links:
        ledger.adopt(ours, links)


async def delete_what_is_ours(
    ledger: Ledger, interface: DummyInterface, addresses: AddressClient, ipvs: IpvsClient, report: CleanupReport
) -> list[VirtualServerKey]:
    """Unbind our addresses, then delete our virtual servers; returns those of the ledger that are gone.

    The last that was made is deleted first. IPVS keeps deleted real servers for two minutes in a list, the newest on
    top, and searches it for each one that is added (net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_trash_get_dest). So an agent
    that is installed again, and makes everything in the same order, finds each on top.
    """
    bound = await addresses.read(interface.name)
    servers = list(ledger.virtual_servers)[::-1]
    if not interface.is_ours:
        bound &= {address for _, address, _ in servers}
    unbindings = [UnbindAddress(it) for it in sorted(bound)]
    report.batch(unbindings, await addresses.write(interface.name, unbindings), {EADDRNOTAVAIL})
    deletions = [DeleteVirtualServer(key) for key in servers]
    failures = await ipvs.write(deletions)
    report.batch(deletions, failures, {ESRCH})
    left = {failure.change.key for failure in failures}
    return [key for key in servers if key not in left]
