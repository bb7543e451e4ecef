"""Check the nodes, and log the verdicts."""

from collections.abc import Callable

import structlog

from kroute.http.probes import Probes
from kroute.model.probes import Probe, ProbeSettings
from kroute.telemetry.spam_filter import Decision, SpamFilter

log = structlog.get_logger(__name__)

MOST_A_SECOND = 1000
"""Checks that begin in a second, of all nodes and Services together: each takes some 0.2 ms of a processor. If very
many began at once, the director would be so busy that it took answers for late."""


class NodeProbes(Probes):
    """The probes of a director."""

    def __init__(self, settings: ProbeSettings, notify: Callable[[], None]) -> None:
        super().__init__(settings, notify, MOST_A_SECOND)
        self._spam_filter = SpamFilter()

    def tell(self, probe: Probe, namespaces: frozenset[str], reason: str | None) -> None:
        """Log a verdict, within bounds: a tenant's ports may fail and recover all the time."""
        decision = self._spam_filter.judge(namespaces, probe.address)
        if decision in {Decision.DROP, Decision.ADD}:
            return
        fields = {"address": probe.address, "port": probe.port, "probe": probe.kind}
        if decision is Decision.SILENCE:
            fields["more"] = (
                f"further verdicts on nodes for {', '.join(sorted(namespaces))} are not logged: see kroute status"
            )
        if reason is not None:
            log.warning("node.failing", **fields, reason=reason)
        else:
            log.info("node.recovered", **fields)
