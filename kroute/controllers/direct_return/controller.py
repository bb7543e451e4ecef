"""Has pods answer clients of external addresses themselves, past the node that the client has reached.

Two things are this controller's. On the node: which VIPs on no link are delivered to it, by a table of routes that the
firewall's mark leads to. In this node's pods: the end of the tunnel, by which the node that was reached sends on what
the client has sent. Both are made only with `--direct-return`.

A VIP goes live last: its route is written when service_proxy has said SERVED, source ranges are enforced, and somebody
serves. It is deleted when the plan that dropped it is WITHDRAWN.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import structlog

from kroute.broadcaster import Subscription
from kroute.controllers.direct_return.cleanup import undo_direct_return
from kroute.controllers.direct_return.pods import Pods
from kroute.kernel.clients import TunnelClient
from kroute.kernel.net.steering import Steer
from kroute.model.addresses import Family, family_of
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, ServicePlan
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.controller import Controller
from kroute.reconcile.pass_status import Report
from kroute.reconcile.prepared_pods import PreparedPods
from kroute.reconcile.stage_gate import ENFORCED, ENTRIES_PREPARED, SERVED, WITHDRAWN, StageGate
from kroute.settings import Settings

log = structlog.get_logger(__name__)


class DirectReturn(Controller):
    """Owns the steering of VIPs on no link, and the ends of tunnels in pods. `prepared` learns which pods are ready."""

    name = "direct_return"
    first_resync = 1 / 3
    waits_for = (SERVED, ENTRIES_PREPARED, WITHDRAWN, *ENFORCED.values())

    def __init__(
        self,
        settings: Settings,
        subscription: Subscription,
        gate: StageGate,
        *,
        tunnels: TunnelClient,
        prepared: PreparedPods,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(settings, subscription, None, clock)
        self._gate = gate
        self._tunnels = tunnels
        self._prepared = prepared
        self._pods = Pods(self.status, tunnels, report)
        self._plans: dict[ObjectKey, ServicePlan] = {}
        self._dropped: dict[str, ServicePlan] = {}
        self._steered: set[str] = set()
        gate.join(self.wake, says={}, waits_for=self.waits_for)
        prepared.follow(self.wake)

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Take the plans in: most have nothing to do with direct return."""
        has_changed = False
        for plan in plans:
            before = self._plans.pop(plan.key, None)
            if plan.direct_vips:
                self._plans[plan.key] = plan
            dropped = {vip for vip, by in self._dropped.items() if by.key == plan.key}
            if before is not None:
                dropped |= set(before.direct_vips) - set(plan.direct_vips)
            self._dropped |= dict.fromkeys(dropped, plan)  # the newest: the gate forgets those of a deleted Service
            has_changed |= before is not None or bool(plan.direct_vips)
        if has_changed:
            self._pods.want(self._plans.values())

    async def read(self) -> Iterable[str]:
        """Scan the node's routes and rules, and have every pod looked at again."""
        drift = await self._tunnels.ensure_rules(self._settings.direct_return_mark)
        found = await self._tunnels.steered()
        drift += [f"delivery of packets to {it} was missing" for it in sorted(self._steered - found)]
        self._steered = found
        self._pods.look_again()
        return drift if self.has_adopted else ()

    async def write(self) -> None:
        """Prepare pods, then write the routes of VIPs."""
        if not await self._pods.write():
            self.wake.set()
        self._prepared.say(self._pods.ready)
        await self._steer()

    async def cleanup(self, report: CleanupReport) -> None:
        """Undo what earlier runs did on the node and, as far as this process may, in its pods."""
        await undo_direct_return(self._tunnels, report)

    async def _steer(self) -> None:
        named: dict[str, list[ServicePlan]] = defaultdict(list)
        for plan in self._plans.values():
            for vip in plan.direct_vips:
                named[vip].append(plan)
        live = {vip for vip, plans in named.items() if any(self._may_be_live(it, vip) for it in plans)}
        gone = {it for it in self._steered - live if it in named or self._is_withdrawn(it)}
        changes = [Steer(it, is_wanted=False) for it in sorted(gone)]
        changes += [Steer(it) for it in sorted(live - self._steered)]
        waiting = self.status.waiting()
        changes = [it for it in changes if it not in waiting]
        self._dropped = {vip: plan for vip, plan in self._dropped.items() if vip in self._steered}
        if not changes:
            return
        refused = {it.change: str(it) for it in await self._tunnels.steer(changes)}
        for change in changes:
            if change in refused:
                continue
            if change.is_wanted:
                self._steered.add(change.address)
            else:
                self._steered.discard(change.address)
                self._dropped.pop(change.address, None)
            log.info("vip.delivered" if change.is_wanted else "vip.undelivered", vip=change.address)
        self.status.wrote(len(changes) - len(refused))
        self.status.refused(refused, (it.key for change in refused for it in named.get(change.address, ())))

    def _may_be_live(self, plan: ServicePlan, vip: str) -> bool:
        """Whether all is ready behind a VIP. One that nobody serves is live too: clients are refused at once.

        But not if it is only that no pod is ready yet, since a process of the node could answer in its place. Of one
        that is delivered a newer plan, or another run, passes the stages in its turn; where source ranges are not
        enforced in time, service_proxy closes the port.
        """
        if vip not in self._steered:
            enforced = [ENFORCED[family_of(vip)]] if _is_restricted(plan, family_of(vip)) else []
            if not self._gate.has_passed(plan, SERVED, ENTRIES_PREPARED, *enforced):
                return False
        planned = {it.key: it for it in plan.virtual_servers if it.key.address == vip and it.real_servers}
        return not planned or any(it.real_servers for it in self._prepared.served(plan, planned).values())

    def _is_withdrawn(self, vip: str) -> bool:
        plan = self._dropped.get(vip)
        return plan is None or plan.is_empty or self._gate.has_passed(plan, WITHDRAWN)


def _is_restricted(plan: ServicePlan, family: Family) -> bool:
    return any(it.set is AddressSet.RESTRICTED and it.family is family for it in plan.set_entries)
