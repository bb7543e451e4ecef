"""Knows which schedulers this kernel has, and replaces one that is missing by the default.

Only a write shows whether the kernel has a scheduler: it loads a scheduler's module when a virtual server names it. If
the scheduler is missing, that costs a refused write and a modprobe. So kroute asks once for each scheduler, and again
at each look and resync while it is missing.
"""

from kroute.controllers.ipvs.edits import with_scheduler
from kroute.model.plan import Problem, VirtualServer, VirtualServerKey


class Schedulers:
    """The schedulers that the kernel has, and the missing ones, each with the virtual servers that want it."""

    def __init__(self, default: str) -> None:
        self.default = default
        self._known: set[str] = {default}
        self._missing: dict[str, set[VirtualServerKey]] = {}

    @property
    def missing(self) -> list[str]:
        return list(self._missing)

    def is_known(self, scheduler: str) -> bool:
        """Whether kroute knows that the kernel has it, or that the kernel does not have it."""
        return scheduler in self._known or scheduler in self._missing

    def found(self, scheduler: str) -> set[VirtualServerKey]:
        """Note that the kernel has it. Returns the virtual servers that the default scheduler has served so far."""
        self._known.add(scheduler)
        return self._missing.pop(scheduler, set())

    def not_found(self, scheduler: str) -> None:
        """Note that the kernel does not have it."""
        self._known.discard(scheduler)
        self._missing.setdefault(scheduler, set())

    def forget(self, scheduler: str) -> None:
        """Forget that it is missing, because no virtual server wants it any more."""
        self._missing.pop(scheduler, None)

    def fail(self, server: VirtualServer) -> bool:
        """Note that the default scheduler serves this virtual server; returns whether that is new."""
        failed = self._missing[server.scheduler]
        is_new = server.key not in failed
        failed.add(server.key)
        return is_new

    def waiting_for(self, scheduler: str) -> set[VirtualServerKey]:
        """The virtual servers that the default serves because this scheduler is missing; some may be deleted by now."""
        return self._missing[scheduler]

    def effective(self, desired: VirtualServer) -> VirtualServer:
        """The virtual server with the default scheduler, if `fail` was called for it; otherwise unchanged."""
        if desired.key in self._missing.get(desired.scheduler, ()):
            return with_scheduler(desired, self.default)
        return desired

    def problem(self, scheduler: str) -> Problem:
        """The problem that a Service with this missing scheduler has."""
        return Problem(
            "SchedulerMissing",
            f"scheduler {scheduler}",
            f"The kernel of this node has no scheduler {scheduler} (module ip_vs_{scheduler}); {self.default} serves. "
            "Allowed: a scheduler whose module can be loaded.",
        )
