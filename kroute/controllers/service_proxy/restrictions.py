"""Keeps ports with `loadBalancerSourceRanges` from serving clients outside the ranges while no rules enforce these.

A restricted port that does not serve yet waits for its rules without limit. The Service's ClusterIP, node ports and
other external IPs do not wait with it, because its source ranges do not apply to them. If a port serves already (its
restriction is new, or its rules were deleted), it gets no new real servers at first. After the usual wait it is
closed: it is planned without real servers, so that open connections drain and new ones are refused. A port that an
earlier plan or run restricted is not closed while its rules exist.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec
import structlog

from kroute.model.addresses import Family, family_of
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, Problem, Protocol, ServicePlan, VirtualServer, VirtualServerKey
from kroute.reconcile.pass_status import Report
from kroute.reconcile.prepared_pods import PreparedPods
from kroute.reconcile.stage_gate import ENFORCED, Stage, StageGate

log = structlog.get_logger(__name__)

Want = Callable[[ServicePlan, Mapping[VirtualServerKey, VirtualServer]], None]
"""Called with a plan and all virtual servers that are desired for it from now on."""

_Key = tuple[ObjectKey, Family]

REASON = "SourceRangesNotEnforced"


Ports = frozenset[VirtualServerKey]


class _Restricted:
    """The restricted ports of one Service in one family. `open` are those whose ranges are not known to be enforced."""

    def __init__(self, plan: ServicePlan, ports: Ports, opened: Ports) -> None:
        self.plan = plan
        self.ports = ports
        self.open = opened
        self.since: float | None = None
        self.is_closed = False


class Restrictions:
    """Decides which restricted ports may serve. `due` returns when a wait that began at a time ends (seconds)."""

    def __init__(self, gate: StageGate, report: Report, due: Callable[[float], float], pods: PreparedPods) -> None:
        self._gate = gate
        self._pods = pods
        self._report = report
        self._due = due
        self._restricted: dict[_Key, _Restricted] = {}
        self._waiting: set[_Key] = set()

    def accept(self, plan: ServicePlan) -> Mapping[VirtualServerKey, VirtualServer]:
        """Take a new plan in; returns its virtual servers for now. A port that was enforced before still counts so."""
        self._pods.accept(plan)
        restricted = [_server_key(entry.element) for entry in plan.set_entries if entry.set is AddressSet.RESTRICTED]
        for family in Family if restricted or self._restricted else ():
            key = (plan.key, family)
            before = self._restricted.pop(key, None)
            self._waiting.discard(key)
            if ports := frozenset(it for it in restricted if family_of(it.address) is family):
                self._restricted[key] = now = _Restricted(plan, ports, ports - _enforced(before))
                if now.open:
                    self._waiting.add(key)
                    if before is not None:
                        now.since, now.is_closed = before.since, before.is_closed
        return self.servers(plan)

    def servers(self, plan: ServicePlan) -> Mapping[VirtualServerKey, VirtualServer]:
        """The plan's virtual servers, those of closed ports without real servers, and no pod that is not ready."""
        families = Family if self._restricted else ()
        found = [it for family in families if (it := self._restricted.get((plan.key, family))) is not None]
        shut = {key for one in found if one.is_closed for key in one.open}
        servers = {it.key: _without_real_servers(it) if it.key in shut else it for it in plan.virtual_servers}
        return self._pods.served(plan, servers)

    def look(self, now: float, want: Want) -> None:
        """Find ports that are enforced by now and waits that are over; call `want` for each plan that this changes."""
        changed: set[_Key] = set()
        for family, stage in ENFORCED.items():
            if not (owners := self._gate.take_lost(stage)):
                continue
            lost = {(owner, family) for owner in owners} & self._restricted.keys()
            for key in lost:
                self._restricted[key].open = self._restricted[key].ports
            self._waiting |= lost
            changed |= {key for key in lost if self._restricted[key].is_closed}
        changed |= {key for key in self._waiting if self._has_changed(self._restricted[key], ENFORCED[key[1]], now)}
        self._waiting = {key for key in self._waiting if self._restricted[key].open}
        for plan in [*(self._restricted[key].plan for key in changed), *self._pods.take_affected()]:
            want(plan, self.servers(plan))

    def holds(self, owner: ObjectKey, key: VirtualServerKey) -> bool:
        """Whether this virtual server may not serve any new packets yet."""
        if self._pods.holds(owner, key):
            return True
        one = self._restricted.get((owner, family_of(key.address))) if self._restricted else None
        return one is not None and key in one.open and not one.is_closed

    def holds_address(self, owner: ObjectKey, address: str) -> bool:
        """Whether the address waits until the rules enforce the owner's restricted ports on it."""
        key = (owner, family_of(address))
        return key in self._waiting and any(it.address == address for it in self._restricted[key].open)

    def next_due(self) -> float | None:
        """When the next wait ends and its ports are closed; None if none waits."""
        waiting = (self._restricted[key] for key in self._waiting)
        return min((self._due(it.since) for it in waiting if it.since is not None and not it.is_closed), default=None)

    def _has_changed(self, one: _Restricted, stage: Stage, now: float) -> bool:
        """Open or close the ports; returns whether that changed."""
        was_closed = one.is_closed
        if self._gate.has_passed(one.plan, stage):
            one.open, one.since, one.is_closed = frozenset(), None, False
            if was_closed:
                log.info("source_ranges.enforced", service=str(one.plan.key), ports=sorted(map(str, one.ports)))
            return was_closed
        one.since = now if one.since is None else one.since
        one.is_closed = was_closed or now >= self._due(one.since)
        if one.is_closed and not was_closed:
            self._report(one.plan.key, _problem(one.open))
        return one.is_closed is not was_closed


def _enforced(one: _Restricted | None) -> Ports:
    return one.ports - one.open if one is not None else frozenset()


def _server_key(element: Iterable[str | int]) -> VirtualServerKey:
    address, protocol, port = element
    return VirtualServerKey(Protocol(int(protocol)), str(address), int(port))


def _without_real_servers(server: VirtualServer) -> VirtualServer:
    return msgspec.structs.replace(server, real_servers=())


def _problem(ports: Iterable[VirtualServerKey]) -> Problem:
    first, *others = sorted(ports)
    more = f" and {len(others)} more" if others else ""
    return Problem(
        REASON,
        "spec.loadBalancerSourceRanges",
        f"{first}{more} not served on this node: its rules or sets cannot keep clients outside the source ranges off; "
        "see rules.failed and write.refused in the agent's log; served as soon as they do",
    )
