"""The IPVS connection timeouts of the settings."""

import structlog

from kroute.kernel.clients import TimeoutClient
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.ledger import Ledger, TimeoutsChanged
from kroute.settings import Settings

log = structlog.get_logger(__name__)


class Timeouts:
    """Sets the timeouts that the settings name, and records the previous ones in the ledger."""

    def __init__(self, ipvs: TimeoutClient, ledger: Ledger, settings: Settings) -> None:
        self._ipvs = ipvs
        self._ledger = ledger
        self._wanted = (settings.ipvs_tcp_timeout, settings.ipvs_tcpfin_timeout, settings.ipvs_udp_timeout)

    async def ensure(self) -> list[str]:
        """Set the timeouts that differ from the settings; returns a sentence if another program has changed ours."""
        if not any(self._wanted):
            return []
        present = await self._ipvs.timeouts()
        tcp, tcpfin, udp = (desired or now for desired, now in zip(self._wanted, present, strict=True))
        if present == (tcp, tcpfin, udp):
            return []
        was_set = self._ledger.timeouts is not None and self._ledger.timeouts.new == (tcp, tcpfin, udp)
        self._ledger.record([TimeoutsChanged(present, (tcp, tcpfin, udp))])
        await self._ipvs.set_timeouts(tcp, tcpfin, udp)
        log.info("ipvs_timeouts.set", tcp=tcp, tcpfin=tcpfin, udp=udp, was=present)
        return ["IPVS timeouts were changed"] if was_set else []

    async def restore(self, report: CleanupReport) -> None:
        """Restore the timeouts from the ledger, if those in force are still the ones that kroute set."""
        change = self._ledger.timeouts
        if change is None or await self._ipvs.timeouts() != change.new:
            return
        await self._ipvs.set_timeouts(*change.old)
        report.add("set the IPVS timeouts back to {} s, {} s, {} s".format(*change.old))
