"""Decides what of each plan may go live, and how long the rest of it waits.

Other controllers grant a plan what it needs, by saying that it has passed their stages:

| what is to be written | needs | waits for at most |
|---|---|---|
| a virtual server that is new, or a change of one that admits clients | ENTRIES_PREPARED | PATIENCE |
| the same, restricted (`loadBalancerSourceRanges`) | also ENFORCED of its family | no limit |
| the same, with pods that answer the clients themselves | also direct_return has said which are ready | no limit |
| an address | ENTRIES_PREPARED, ROUTES_PREPARED, the plan's virtual servers | PATIENCE |
| an address with restricted ports | also ENFORCED of its family | no limit |

The Service's ClusterIP, node ports and other external IPs do not wait with a restricted port, because its source ranges
do not apply to them. If a restricted port already serves (its restriction is new, or its rules were deleted), it gets
no new real servers at first. After PATIENCE it is closed: it is planned without real servers, so that open connections
drain and new ones are refused. A port that an earlier plan or run restricted is not closed while its rules exist.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec
import structlog

from kroute.controllers.prepared_pods import PreparedPods
from kroute.model.addresses import Family, family_of
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, Problem, Protocol, ServicePlan, VirtualServer, VirtualServerKey
from kroute.reconcile.batches import cut
from kroute.reconcile.pass_status import Report, some_of
from kroute.reconcile.resync_schedule import earliest
from kroute.reconcile.stage_gate import ENFORCED, ENTRIES_PREPARED, ROUTES_PREPARED, Revision, StageGate

log = structlog.get_logger(__name__)

PATIENCE = 5.0
"""Seconds for which a Service's virtual servers and addresses wait for routes and set entries. Three things restart the
count: a write of any controller; a look at the clock while a controller that prepares plans is in a pass (it takes
longer than this at the start of a large cluster, and with the first rules on a slow node or while another program holds
/run/xtables.lock); and a look that comes `LATE` (the process stood still, and no controller has had its turn)."""

LATE = 1.0
"""Seconds after the end of a wait at which a look at the clock is late."""

LONGEST_PATIENCE = 60.0
"""Seconds after which a wait ends even if controllers write, for instance when the kernel refuses a set entry while
others are written."""

NOT_ENFORCED = "SourceRangesNotEnforced"

_Ports = frozenset[VirtualServerKey]
_FamilyOfService = tuple[ObjectKey, Family]


class _Wait:
    """A plan that waits, from `since` on (None: from the next pass). `has_run_out`: it has waited for long enough."""

    def __init__(self, plan: ServicePlan) -> None:
        self.plan = plan
        self.since: float | None = None
        self.has_run_out = False


class _Restricted(_Wait):
    """The restricted ports of one Service in one family. `unenforced` are those whose ranges may not be enforced.

    They get no edit that admits clients. When the wait has run out, they are closed.
    """

    def __init__(self, plan: ServicePlan, ports: _Ports, before: "_Restricted | None") -> None:
        super().__init__(plan)
        self.ports = ports
        self.unenforced: _Ports = ports - (before.ports - before.unenforced) if before is not None else ports
        if before is not None and self.unenforced:
            self.since, self.has_run_out = before.since, before.has_run_out


class Readiness:
    """Knows which Services wait, and what the newest plan of each may have. Times are seconds on the caller's clock.

    A plan waits even when it needs no write now: it may need one later, when its last real server has drained.
    """

    def __init__(self, gate: StageGate, report: Report, pods: PreparedPods) -> None:
        self._gate = gate
        self._report = report
        self._pods = pods
        self._seen_pods = pods.ready
        self._waiting: dict[ObjectKey, _Wait] = {}
        """In the order in which they have begun, those that have not begun yet at the end."""
        self._restricted: dict[_FamilyOfService, _Restricted] = {}
        self._unenforced: set[_FamilyOfService] = set()
        self._tunnelled: dict[ObjectKey, ServicePlan] = {}

    # What is to be granted

    def accept(self, plan: ServicePlan) -> Mapping[VirtualServerKey, VirtualServer]:
        """Take in a new plan; returns its virtual servers as `servers` does."""
        if plan.virtual_servers or plan.vips:
            self.add(plan)
        else:
            self._waiting.pop(plan.key, None)
        if plan.tunnel_ends:
            self._tunnelled[plan.key] = plan
        else:
            self._tunnelled.pop(plan.key, None)
        restricted = [_server_key(entry.element) for entry in plan.set_entries if entry.set is AddressSet.RESTRICTED]
        for family in Family if restricted or self._restricted else ():
            key = (plan.key, family)
            before = self._restricted.pop(key, None)
            self._unenforced.discard(key)
            if ports := frozenset(port for port in restricted if family_of(port.address) is family):
                self._restricted[key] = now = _Restricted(plan, ports, before)
                if now.unenforced:
                    self._unenforced.add(key)
        return self.servers(plan)

    def add(self, plan: ServicePlan) -> None:
        """Let a plan wait, because it is new or has lost an object. It continues the wait of the plan before it."""
        if (wait := self._waiting.get(plan.key)) is not None:
            wait.plan = plan
        else:
            self._waiting[plan.key] = _Wait(plan)

    def servers(self, plan: ServicePlan) -> Mapping[VirtualServerKey, VirtualServer]:
        """The plan's virtual servers as they may be now: closed ports without real servers, and no unready pods."""
        servers = {server.key: server for server in plan.virtual_servers}
        for family in Family if self._restricted else ():
            restricted = self._restricted.get((plan.key, family))
            if restricted is not None and restricted.has_run_out:
                closed = {key: servers[key] for key in restricted.unenforced & servers.keys()}
                servers |= {key: msgspec.structs.replace(server, real_servers=()) for key, server in closed.items()}
        return self._pods.served(plan, servers) if plan.tunnel_ends else servers

    # The course of time

    def review(self, now: float) -> list[ServicePlan]:
        """Find the waits that have run out, and what was granted or revoked; call this at the beginning of a write.

        Returns the plans whose `servers` have changed by that.
        """
        self._note_overdue(now)
        changed: list[ServicePlan] = []
        for family, stage in ENFORCED.items() if self._restricted else ():
            for owner in self._gate.take_revoked(stage):
                if (restricted := self._restricted.get((owner, family))) is not None:
                    restricted.unenforced = restricted.ports
                    self._unenforced.add((owner, family))
                    if restricted.has_run_out:
                        changed.append(restricted.plan)
        for key in list(self._unenforced):
            if self._update(self._restricted[key], key[1], now):
                changed.append(self._restricted[key].plan)
            if not self._restricted[key].unenforced:
                self._unenforced.discard(key)
        if self._pods.ready is not self._seen_pods:
            changed += self._affected_by_pods()
        return changed

    def _note_overdue(self, now: float) -> None:
        """Find the Services that were waited for long enough."""
        due = self._next_overdue()
        if due is not None and (self._gate.any_preparer_is_busy or now > due + LATE):
            self._gate.restart_waits(now)
            due = self._next_overdue()
        if due is not None and now >= due:
            for wait in self._waiting.values():
                wait.has_run_out = wait.has_run_out or (wait.since is not None and now >= self._due(wait.since))

    async def end_waits(self, are_servers_right: Callable[[ObjectKey], bool], clock: Callable[[], float]) -> None:
        """Begin new waits, and end those of Services that are ready or, with a warning, have waited for long enough.

        `are_servers_right` says whether the kernel has all virtual servers of a Service.
        """
        late: list[ObjectKey] = []
        now: float | None = None
        for number, waiting in enumerate(cut(list(self._waiting.items()))):
            if number:
                await asyncio.sleep(0)
            for key, wait in waiting:
                if self._gate.has_passed(wait.plan, ROUTES_PREPARED, ENTRIES_PREPARED) and are_servers_right(key):
                    del self._waiting[key]
                elif wait.has_run_out:
                    late.append(key)
                    del self._waiting[key]
                elif wait.since is None:
                    wait.since = now = clock() if now is None else now
        if not self._waiting:
            self._waiting.clear()  # an emptied dict keeps its table
        if late:
            _warn(late)

    def next_due(self) -> float | None:
        """When the next wait will have been long enough; None if none waits."""
        if not self._unenforced:
            return self._next_overdue()
        restricted = [self._restricted[key] for key in self._unenforced]
        closings = [self._due(wait.since) for wait in restricted if wait.since is not None and not wait.has_run_out]
        return earliest(self._next_overdue(), *closings)

    # The questions

    def may_serve(self, owner: ObjectKey, key: VirtualServerKey) -> bool:
        """Whether the virtual server may be made, or changed so that it lets in clients, for the newest plan."""
        if self._pods.ready is None and (plan := self._tunnelled.get(owner)) and key.address in plan.direct_vips:
            return False
        restricted = self._restricted.get((owner, family_of(key.address))) if self._restricted else None
        if restricted is not None and key in restricted.unenforced and not restricted.has_run_out:
            return False
        wait = self._waiting.get(owner)
        return wait is None or wait.has_run_out or self._gate.has_passed(wait.plan, ENTRIES_PREPARED)

    def may_bind(self, owner: ObjectKey, address: str) -> bool:
        """Whether the address may be bound for this Service."""
        if owner in self._waiting:
            return False
        key = (owner, family_of(address))
        return key not in self._unenforced or all(port.address != address for port in self._restricted[key].unenforced)

    def is_ready_or_overdue(self, key: ObjectKey) -> bool:
        """Whether the Service has all that its addresses wait for, or has waited for long enough."""
        return key not in self._waiting

    def waits_for(self, revisions: Iterable[Revision]) -> bool:
        """Whether the plan of any of these Services waits."""
        return any(revision.key in self._waiting for revision in revisions)

    @property
    def nobody_waits(self) -> bool:
        """Whether no Service waits."""
        return not self._waiting

    def _update(self, restricted: _Restricted, family: Family, now: float) -> bool:
        """Find whether the source ranges are enforced by now; returns whether that closes or opens the ports."""
        was_closed = restricted.has_run_out
        if self._gate.has_passed(restricted.plan, ENFORCED[family]):
            restricted.unenforced, restricted.since, restricted.has_run_out = frozenset(), None, False
            if was_closed:
                ports = sorted(map(str, restricted.ports))
                log.info("source_ranges.enforced", service=str(restricted.plan.key), ports=ports)
            return was_closed
        restricted.since = now if restricted.since is None else restricted.since
        restricted.has_run_out = was_closed or now >= self._due(restricted.since)
        if restricted.has_run_out and not was_closed:
            self._report(restricted.plan.key, _problem(restricted.unenforced))
        return restricted.has_run_out is not was_closed

    def _affected_by_pods(self) -> list[ServicePlan]:
        """The plans with a pod that has become ready, or is no longer ready, since the last look."""
        before, self._seen_pods = self._seen_pods, self._pods.ready
        plans = self._tunnelled.values()
        if before is None or self._seen_pods is None:
            return list(plans)
        changed = before ^ self._seen_pods
        return [plan for plan in plans if not changed.isdisjoint(plan.tunnel_ends)]

    def _next_overdue(self) -> float | None:
        first = next(iter(self._waiting.values()), None)
        return None if first is None or first.since is None else self._due(first.since)

    def _due(self, since: float) -> float:
        """When a wait that began at `since` is long enough."""
        return min(max(since, self._gate.waits_count_from) + PATIENCE, since + LONGEST_PATIENCE)


def _server_key(element: Iterable[str | int]) -> VirtualServerKey:
    address, protocol, port = element
    return VirtualServerKey(Protocol(int(protocol)), str(address), int(port))


def _problem(ports: Iterable[VirtualServerKey]) -> Problem:
    first, *others = sorted(ports)
    more = f" and {len(others)} more" if others else ""
    return Problem(
        NOT_ENFORCED,
        "spec.loadBalancerSourceRanges",
        f"{first}{more} not served on this node: its rules or sets cannot keep clients outside the source ranges off; "
        "see rules.failed and write.refused in the agent's log; served as soon as they do",
    )


def _warn(keys: Iterable[ObjectKey]) -> None:
    log.warning(
        "service.unprepared",
        **some_of(keys),
        waited=PATIENCE,
        next_step="what was held back for it goes live now; see the errors of route_fix, masquerade and service_proxy",
    )
