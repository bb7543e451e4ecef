"""Report when kroute has lost a privilege: a capability of its process, or a verb at the API server."""

import asyncio
from collections.abc import Callable

from kroute.checks.preflight import CAP_NET_ADMIN, has_capability
from kroute.model.plan import Problem
from kroute.telemetry.statistics import Statistics

REASON = "PrivilegeLost"


class PrivilegeWatch:
    """Checks every `period` seconds, and reports each lost privilege."""

    def __init__(
        self,
        statistics: Callable[[], Statistics],
        report: Callable[[Problem], None],
        period: float,
        may_change_network: Callable[[], bool] = lambda: has_capability(CAP_NET_ADMIN),
    ) -> None:
        self._statistics = statistics
        self._report = report
        self._period = period
        self._may_change_network = may_change_network

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await asyncio.sleep(self._period)
            self.look()

    def look(self) -> None:
        """Report what is denied. The receiver writes each report once."""
        if not self._may_change_network():
            self._report_lost("capability NET_ADMIN", "this process has lost the capability NET_ADMIN", _CONTAINER)
        statistics = self._statistics()
        for name, controller in statistics.controllers.items():
            if controller.denied:
                self._report_lost(f"controller {name}", f"the kernel denies {name} what it needs", _CONTAINER)
        for kind, watch in statistics.watches.items():
            if watch.denied:
                said = f"the API server does not let kroute list and watch every {kind}"
                self._report_lost(f"API {kind}", said, "compare the ClusterRole and the ServiceAccount with deploy/")

    def _report_lost(self, subject: str, what: str, next_step: str) -> None:
        consequence = "what is in the kernel stays as it is, and changes do not follow"
        self._report(Problem(REASON, subject, f"{what}: {consequence}. Next step: {next_step}."))


_CONTAINER = "give the container the capability NET_ADMIN, and see what its security profile forbids"
