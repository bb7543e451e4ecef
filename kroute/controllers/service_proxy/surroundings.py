"""What must be right before anything is served: the link of the VIPs, the ledger, the sysctls and the IPVS timeouts.

All of them are repaired as soon as a difference is found. They wait for no plan and for no stage.
"""

from errno import EADDRNOTAVAIL, ESRCH

from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.ipvs.sysctls import Circumstances, NodeSysctls, node_rows
from kroute.controllers.ipvs.timeouts import Timeouts
from kroute.kernel.ipvs.objects import DeleteVirtualServer
from kroute.kernel.net.addresses import UnbindAddress
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.plan import VirtualServerKey
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.comparison.virtual_servers import planned_key
from kroute.reconcile.ledger import Exclusion, Ledger
from kroute.settings import Settings


class Surroundings:
    """Keeps the link, the ledger, the sysctls and the timeouts of a node right."""

    def __init__(self, settings: Settings, kernel: NodeKernel, interface: DummyInterface, ledger: Ledger) -> None:
        self._interface = interface
        self._settings = settings
        self._kernel = kernel
        self._ledger = ledger
        self._sysctls = NodeSysctls(kernel.sysctls, ledger, node_rows(settings))
        self._timeouts = Timeouts(kernel.ipvs, ledger, settings)
        self._serves_ipv6 = False
        self.are_sysctls_due = False
        self._has_decided = False

    def serve_ipv6(self) -> None:
        """Let the next `ensure` set the sysctls of IPv6, unless they are set already."""
        if not self._serves_ipv6:
            self._serves_ipv6 = self.are_sysctls_due = True

    async def ensure(self) -> list[str]:
        """Repair all of them; returns what was wrong, one sentence each."""
        await self._decide_what_is_ours()
        wrong = await self._interface.ensure()
        if not wrong and self._ledger.restore():
            wrong = [f"the ledger {self._ledger.path} was missing"]
        self.are_sysctls_due = False
        circumstances = Circumstances(self._kernel.version, self._serves_ipv6, self._settings.strict_arp)
        return wrong + self._sysctls.ensure(circumstances) + await self._timeouts.ensure()

    async def cleanup(self, report: CleanupReport) -> list[VirtualServerKey]:
        """Unbind our addresses, then delete our virtual servers; returns the virtual servers that are gone.

        The last that was made is deleted first. IPVS keeps deleted real servers for two minutes in a list, the newest
        on top, and searches it for each one that is added (net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_trash_get_dest). So an
        agent that is installed again, and makes everything in the same order, finds each on top.
        """
        await self._decide_what_is_ours()
        bound = await self._kernel.addresses.read(self._interface.name)
        servers = list(self._ledger.virtual_servers)[::-1]
        if not self._interface.is_ours:
            bound &= {address for _, address, _ in servers}
        unbindings = [UnbindAddress(address) for address in sorted(bound)]
        failures = await self._kernel.addresses.write(self._interface.name, unbindings)
        report.batch(unbindings, failures, {EADDRNOTAVAIL})
        deletions = [DeleteVirtualServer(key) for key in servers]
        refused = await self._kernel.ipvs.write(deletions)
        report.batch(deletions, refused, {ESRCH})
        left = {failure.change.key for failure in refused}
        return [key for key in servers if key not in left]

    async def restore(self, report: CleanupReport) -> None:
        """Set the timeouts and sysctls to the values that they had before kroute."""
        with report.step("IPVS timeouts"):
            await self._timeouts.restore(report)
        self._sysctls.restore(report)

    async def _decide_what_is_ours(self) -> None:
        """Decide once which virtual servers and links of an earlier run are ours, and record that in the ledger.

        What the ledger names is ours. Without a whole ledger, so are the link and the virtual servers on its addresses.
        In networks that are excluded from a clean-up, a virtual server is ours only if the ledger names it.
        """
        if self._has_decided:
            return
        ledger, name = self._ledger, self._interface.name
        links = {name} if await self._interface.exists() else set()
        ours = list(ledger.virtual_servers)
        if ledger.is_whole:
            links &= ledger.links
        else:
            exclusion = Exclusion(self._settings.exclude_cidrs)
            bound = await self._kernel.addresses.read(name)
            found = await self._kernel.ipvs.read()
            ours += [planned_key(key) for key in found if key[1] in bound and not exclusion.covers(key[1])]
        if ledger.exists or ours or links:
            ledger.adopt(ours, links)
        self._has_decided = True
