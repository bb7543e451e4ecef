"""Knows which schedulers this kernel has, and replaces one that is missing by the default.

Only a write shows whether the kernel has a scheduler: it loads a scheduler's module when a virtual server names it. If
the scheduler is missing, that costs a refused write and a modprobe. So kroute asks once for each scheduler, and again
at each look and resync while it is missing.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem, VirtualServer, VirtualServerKey
from kroute.reconcile.pass_status import Report


class Schedulers:
    """The schedulers that the kernel has, and the missing ones, each with the virtual servers that want it."""

    def __init__(self, default: str, report: Report) -> None:
        self.default = default
        self._report = report
        self._is_asked_again = False
        self._known: set[str] = {default}
        self.missing: dict[str, set[VirtualServerKey]] = {}
        """Each missing scheduler, with the virtual servers that the default serves in its place (some may be gone)."""

    def ask_again(self) -> None:
        """Let `to_ask_again` return all that are missing once."""
        self._is_asked_again = True

    def to_ask_again(self) -> list[str]:
        """The missing schedulers of which the kernel is to be asked again."""
        is_due, self._is_asked_again = self._is_asked_again, False
        return list(self.missing) if is_due else []

    def is_known(self, scheduler: str) -> bool:
        """Whether kroute knows that the kernel has it, or that the kernel does not have it."""
        return scheduler in self._known or scheduler in self.missing

    def found(self, scheduler: str) -> set[VirtualServerKey]:
        """Note that the kernel has it. Returns the virtual servers that the default scheduler has served so far."""
        self._known.add(scheduler)
        return self.missing.pop(scheduler, set())

    def not_found(self, scheduler: str) -> None:
        """Note that the kernel does not have it."""
        self._known.discard(scheduler)
        self.missing.setdefault(scheduler, set())

    def forget(self, scheduler: str) -> None:
        """Forget that it is missing, because no virtual server wants it any more."""
        self.missing.pop(scheduler, None)

    def replace_missing(self, server: VirtualServer, owners: Iterable[ObjectKey]) -> None:
        """Let the default serve this virtual server if its scheduler is missing. Its owners are told of it once."""
        failed = self.missing.get(server.scheduler)
        if failed is None or server.key in failed:
            return
        failed.add(server.key)
        problem = Problem(
            "SchedulerMissing",
            f"scheduler {server.scheduler}",
            f"The kernel of this node has no scheduler {server.scheduler} (module ip_vs_{server.scheduler}); "
            f"{self.default} serves. Allowed: a scheduler whose module can be loaded.",
        )
        for owner in owners:
            self._report(owner, problem)

    def effective(self, desired: VirtualServer) -> VirtualServer:
        """The virtual server with the default scheduler, if `replace_missing` has replaced its own."""
        if desired.key in self.missing.get(desired.scheduler, ()):
            return replace(desired, scheduler=self.default)
        return desired
