"""Which schedulers this kernel has, and what replaces one that is missing.

Only the kernel knows: it loads a scheduler's module by itself when a virtual server asks for it. To ask costs a refused
write (and a modprobe), so each scheduler is asked for once, and again at each resync while it is missing.
"""

from kroute.controllers.service_proxy.ipvs_edits import with_scheduler
from kroute.model.plan import Problem, VirtualServer, VirtualServerKey


class Schedulers:
    """The schedulers that are known to be there, and those known to be missing with the virtual servers they fail."""

    def __init__(self, default: str) -> None:
        self.default = default
        self._known: set[str] = {default}
        self._missing: dict[str, set[VirtualServerKey]] = {}

    @property
    def missing(self) -> list[str]:
        """The schedulers that are known to be missing."""
        return list(self._missing)

    def is_known(self, scheduler: str) -> bool:
        """Whether it is known if the kernel has it."""
        return scheduler in self._known or scheduler in self._missing

    def found(self, scheduler: str) -> set[VirtualServerKey]:
        """The kernel has it. Returns the virtual servers that the default scheduler has served meanwhile."""
        self._known.add(scheduler)
        return self._missing.pop(scheduler, set())

    def not_found(self, scheduler: str) -> None:
        """The kernel does not have it."""
        self._known.discard(scheduler)
        self._missing.setdefault(scheduler, set())

    def forget(self, scheduler: str) -> None:
        """No virtual server asks for it any more: the next one that does asks the kernel."""
        self._missing.pop(scheduler, None)

    def fail(self, server: VirtualServer) -> bool:
        """Note that the default serves this virtual server; whether that is new."""
        failed = self._missing[server.scheduler]
        is_new = server.key not in failed
        failed.add(server.key)
        return is_new

    def waiting_for(self, scheduler: str) -> set[VirtualServerKey]:
        """The virtual servers that a missing scheduler fails (or has failed, if they have gone since)."""
        return self._missing[scheduler]

    def effective(self, desired: VirtualServer) -> VirtualServer:
        """The virtual server as this kernel can serve it, once it is known to `fail`."""
        if desired.key in self._missing.get(desired.scheduler, ()):
            return with_scheduler(desired, self.default)
        return desired

    def problem(self, scheduler: str) -> Problem:
        """What to say to the Service's owner."""
        return Problem(
            "SchedulerMissing",
            f"scheduler {scheduler}",
            f"The kernel of this node has no scheduler {scheduler} (module ip_vs_{scheduler}); {self.default} serves. "
            "Allowed: a scheduler whose module can be loaded.",
        )
