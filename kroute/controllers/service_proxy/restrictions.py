"""Keeps ports with `loadBalancerSourceRanges` from serving clients outside of them: waits without limit, or closes.

What restricts is waited for as long as it takes, what merely serves is not: a Service's ClusterIP, node ports and other
external IPs have nothing to do with its source ranges. A restricted port that does not serve yet stays so until the
rules enforce its ranges. One that serves already (the restriction is new, or the rules have gone) first lets in nothing
more; when it was waited for long enough it is planned without real servers: open connections drain, new ones find
nothing. What an earlier plan or run had restricted is not closed as long as its rules stand.
"""

from collections.abc import Callable, Iterable, Mapping

import structlog

from kroute.model.addresses import Family, family_of
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, Problem, Protocol, ServicePlan, VirtualServer, VirtualServerKey
from kroute.reconcile.pass_status import Report
from kroute.reconcile.stage_gate import ENFORCED, Stage, StageGate

log = structlog.get_logger(__name__)

Want = Callable[[ServicePlan, Mapping[VirtualServerKey, VirtualServer]], None]
"""Called with a plan and all virtual servers that it is to have from now on."""

_Key = tuple[ObjectKey, Family]

REASON = "SourceRangesNotEnforced"


Ports = frozenset[VirtualServerKey]


class _Restricted:
    """The restricted ports of one Service in one family; `open` are those that the rules may not guard."""

    def __init__(self, plan: ServicePlan, ports: Ports, opened: Ports) -> None:
        self.plan = plan
        self.ports = ports
        self.open = opened
        self.since: float | None = None
        self.is_closed = False


class Restrictions:
    """Which restricted ports may serve. `due` says when what began at a time was waited for long enough (seconds)."""

    def __init__(self, gate: StageGate, report: Report, due: Callable[[float], float]) -> None:
        self._gate = gate
        self._report = report
        self._due = due
        self._restricted: dict[_Key, _Restricted] = {}
        self._waiting: set[_Key] = set()

    def accept(self, plan: ServicePlan) -> Mapping[VirtualServerKey, VirtualServer]:
        """The plan is new: returns the virtual servers to have now. What was enforced and is still wanted stays so."""
        restricted = [_server_key(entry.element) for entry in plan.set_entries if entry.set is AddressSet.RESTRICTED]
        for family in Family:
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
        """The plan's virtual servers; those of closed ports have no real servers."""
        found = [it for family in Family if (it := self._restricted.get((plan.key, family))) is not None]
        shut = {key for one in found if one.is_closed for key in one.open}
        return {it.key: _without_real_servers(it) if it.key in shut else it for it in plan.virtual_servers}

    def look(self, now: float, want: Want) -> None:
        """Find out what is enforced by now, and what was waited for long enough; want what that makes of the plans."""
        changed: set[_Key] = set()
        for family, stage in ENFORCED.items():
            lost = {(owner, family) for owner in self._gate.take_lost(stage)} & self._restricted.keys()
            for key in lost:
                self._restricted[key].open = self._restricted[key].ports
            self._waiting |= lost
            changed |= {key for key in lost if self._restricted[key].is_closed}
        changed |= {key for key in self._waiting if self._has_changed(self._restricted[key], ENFORCED[key[1]], now)}
        self._waiting = {key for key in self._waiting if self._restricted[key].open}
        for plan in [self._restricted[key].plan for key in changed]:
            want(plan, self.servers(plan))

    def holds(self, owner: ObjectKey, key: VirtualServerKey) -> bool:
        """Whether nothing new may be let in by this virtual server yet."""
        one = self._restricted.get((owner, family_of(key.address)))
        return one is not None and key in one.open and not one.is_closed

    def holds_address(self, owner: ObjectKey, address: str) -> bool:
        """Whether the address waits for the rules about the owner's ports on it."""
        key = (owner, family_of(address))
        return key in self._waiting and any(it.address == address for it in self._restricted[key].open)

    def next_due(self) -> float | None:
        """When the next port was waited for long enough."""
        waiting = (self._restricted[key] for key in self._waiting)
        return min((self._due(it.since) for it in waiting if it.since is not None and not it.is_closed), default=None)

    def _has_changed(self, one: _Restricted, stage: Stage, now: float) -> bool:
        """Whether the ports are closed now and were not, or the other way round."""
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
    return VirtualServer(server.key, server.scheduler, server.flags, server.persistence, ())


def _problem(ports: Iterable[VirtualServerKey]) -> Problem:
    first, *others = sorted(ports)
    more = f" and {len(others)} more" if others else ""
    return Problem(
        REASON,
        "spec.loadBalancerSourceRanges",
        f"{first}{more} not served on this node: its rules or sets cannot keep clients outside the source ranges off; "
        "see rules.failed and write.refused in the agent's log; served as soon as they do",
    )
