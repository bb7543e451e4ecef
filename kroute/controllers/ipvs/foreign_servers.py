"""Foreign virtual servers. They are never changed; a Service that needs their address and port gets a Problem."""

from collections.abc import Sequence

from kroute.kernel.ipvs.client import VirtualServerKey as KernelKey
from kroute.model.plan import Problem, VirtualServer, VirtualServerKey
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.pass_status import PassStatus, Report


class ForeignServers:
    """The known foreign virtual servers. A plan that wants one is refused this key alone, and tried again later."""

    def __init__(
        self, status: PassStatus, desired: DesiredState[VirtualServerKey, VirtualServer], report: Report
    ) -> None:
        self.keys: set[KernelKey] = set()
        self._status = status
        self._desired = desired
        self._report = report

    def refuse(self, key: VirtualServerKey) -> str:
        """Note that this one is foreign, report it if that is new, and return the sentence."""
        self.keys.add(key)
        subject = f"virtual server {key}"
        message = (
            f"{subject} exists on this node and is not in the ledger of what kroute has made, so it is left alone and "
            "the Service is not served there. Delete it (ipvsadm -D), or change the Service."
        )
        if key not in self._status.retries:
            for owner in self._desired.owners(key):
                self._report(owner, Problem("ForeignVirtualServer", subject, message))
        return message

    def leave_out(self, deltas: Sequence[Delta[VirtualServerKey, VirtualServer]]) -> list[VirtualServerKey]:
        """Refuse the deltas of foreign virtual servers; returns the keys of the others, which may be written."""
        taken = [delta.key for delta in deltas if delta.key in self.keys]
        refusals = {key: self.refuse(key) for key in taken}
        self._status.refused(refusals, (owner for key in taken for owner in self._desired.owners(key)))
        return [delta.key for delta in deltas if delta.key not in self.keys]
