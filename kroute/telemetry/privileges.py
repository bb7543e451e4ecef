"""Report when kroute has lost a privilege: a capability of its process, or a verb at the API server."""

import asyncio
from collections.abc import Callable, Iterator

from kroute.checks.preflight import has_capability
from kroute.model.plan import Problem
from kroute.telemetry.statistics import Statistics
from kroute.watchers.kubernetes.errors import denial

REASON = "PrivilegeLost"


class PrivilegeWatch:
    """Checks every `period` seconds, reports each lost privilege, and takes that back when it is there again."""

    def __init__(
        self,
        statistics: Callable[[], Statistics],
        report: Callable[[Problem], None],
        take_back: Callable[[Problem], None],
        period: float,
        may_change_network: Callable[[], bool] = lambda: has_capability("NET_ADMIN"),
    ) -> None:
        self._statistics = statistics
        self._report = report
        self._take_back = take_back
        self._lost: dict[str, Problem] = {}
        self._period = period
        self._may_change_network = may_change_network

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await asyncio.sleep(self._period)
            self.look()

    def look(self) -> None:
        """Report what is denied, and take back what is not any more. The receiver writes each report once."""
        lost = {problem.subject: problem for problem in self._missing()}
        for problem in lost.values():
            self._report(problem)
        for subject in self._lost.keys() - lost.keys():
            self._take_back(self._lost[subject])
        self._lost = lost

    def _missing(self) -> Iterator[Problem]:
        if not self._may_change_network():
            yield _lost("capability NET_ADMIN", "this process has lost the capability NET_ADMIN", _CONTAINER)
        statistics = self._statistics()
        for name, controller in statistics.controllers.items():
            if controller.denied and controller.last_error:
                yield _lost(f"controller {name}", f"the kernel denies {name} what it needs", _CONTAINER)
        for kind, watch in statistics.watches.items():
            if watch.denied_with:
                yield _lost(*denial(kind, watch.denied_with))


def _lost(subject: str, what: str, next_step: str) -> Problem:
    consequence = "what is in the kernel stays as it is, and changes do not follow"
    return Problem(REASON, subject, f"{what}: {consequence}. Next step: {next_step}.")


_CONTAINER = "give the container the capability NET_ADMIN, and see what its security profile forbids"
