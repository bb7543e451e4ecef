"""Has pods answer clients of external addresses themselves, past the node that the client has reached.

Two things are this controller's. On the node: which VIPs on no link are delivered to it, by a table of routes that the
firewall's mark leads to. In this node's pods: the end of the tunnel, by which the node that was reached sends on what
the client has sent. Both are made only with `--direct-return`.

A VIP goes live last: its route is written when service_proxy has said SERVED, source ranges are enforced, and somebody
serves. It is deleted when the plan that dropped it is WITHDRAWN.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from socket import AF_INET, AF_INET6

import structlog

from kroute.controllers.live_addresses import LiveAddresses
from kroute.controllers.prepared_pods import PreparedPods
from kroute.kernel.clients import TunnelClient
from kroute.kernel.errors import KernelError
from kroute.kernel.net.steering import Steer
from kroute.kernel.pods.client import LINKS
from kroute.kernel.pods.namespaces import PodNamespace
from kroute.kernel.pods.pod_network import PodTunnel
from kroute.model.addresses import Family, family_of
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, Problem, ServicePlan, TunnelEnd
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.controller import Controller, Shared
from kroute.reconcile.pass_status import PassStatus, Report
from kroute.reconcile.stage_gate import ENFORCED, ENTRIES_PREPARED, SERVED, UNANNOUNCED, WITHDRAWN

log = structlog.get_logger(__name__)

REASON = "PodNotPrepared"
STAGES = (SERVED, ENTRIES_PREPARED, WITHDRAWN, UNANNOUNCED, *ENFORCED.values())
"""What is waited for before a VIP is delivered, and before it is not delivered any more."""
LINGER = 900.0
"""Seconds for which a pod that no plan names any more keeps its end of the tunnel, for the connections that it has, as
long as any Service has direct return. A pod that ends takes it with it before."""
LONGEST_PASS = 5.0
"""Seconds after which a pass begins no more work in a namespace. It prepares and undoes one at least."""
MOST_ASKED = 8
"""Namespaces that are asked whether they have an address with which several were seen."""


class DirectReturn(Controller):
    """Owns the steering of VIPs on no link, and the ends of tunnels in pods. `prepared` learns which pods are ready."""

    name = "direct_return"
    first_period = 1 / 3

    def __init__(self, shared: Shared, tunnels: TunnelClient, prepared: PreparedPods, live: LiveAddresses) -> None:
        super().__init__(shared)
        self._gate = shared.gate
        self._tunnels = tunnels
        self._prepared = prepared
        self._live = live
        self._pods = Pods(self.status, tunnels, shared.report)
        self._plans: dict[ObjectKey, ServicePlan] = {}
        self._dropped: dict[str, ServicePlan] = {}
        self._steered: set[str] = set()
        self._gate.join(self.wake, says={}, waits_for=STAGES)
        prepared.follow(self.wake)
        live.include(self._steered)

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
        drift = await self._tunnels.ensure_rules(self.settings.direct_return_mark)
        found = await self._tunnels.steered()
        drift += [f"delivery of packets to {vip} was missing" for vip in sorted(self._steered - found)]
        self._steered.clear()
        self._steered.update(found)
        self._pods.look_again()
        return drift if self.has_adopted else ()

    async def write(self) -> None:
        """Prepare pods, then write the routes of VIPs."""
        if not await self._pods.write():
            self.wake.set()
        self._prepared.say(self._pods.ready)
        await self._steer()

    async def _steer(self) -> None:
        named: dict[str, list[ServicePlan]] = defaultdict(list)
        for plan in self._plans.values():
            for vip in plan.direct_vips:
                named[vip].append(plan)
        live = {vip for vip, plans in named.items() if any(self._may_be_live(plan, vip) for plan in plans)}
        gone = {vip for vip in self._steered - live if vip in named or self._is_withdrawn(vip)}
        changes = [Steer(vip, is_wanted=False) for vip in sorted(gone)]
        changes += [Steer(vip) for vip in sorted(live - self._steered)]
        waiting = self.status.waiting()
        changes = [change for change in changes if change not in waiting]
        self._dropped = {vip: plan for vip, plan in self._dropped.items() if vip in self._steered}
        if not changes:
            return
        refused = {failure.change: str(failure) for failure in await self._tunnels.steer(changes)}
        for change in changes:
            if change in refused:
                continue
            if change.is_wanted:
                self._steered.add(change.address)
            else:
                self._steered.discard(change.address)
                self._dropped.pop(change.address, None)
            log.info("vip.delivered" if change.is_wanted else "vip.undelivered", vip=change.address)
        self._live.changed()
        self.status.wrote(len(changes) - len(refused))
        self.status.refused(refused, (plan.key for change in refused for plan in named.get(change.address, ())))

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
        planned = {
            server.key: server for server in plan.virtual_servers if server.key.address == vip and server.real_servers
        }
        return not planned or any(server.real_servers for server in self._prepared.served(plan, planned).values())

    def _is_withdrawn(self, vip: str) -> bool:
        plan = self._dropped.get(vip)
        is_withdrawn = plan is None or plan.is_empty or self._gate.has_passed(plan, WITHDRAWN)
        return is_withdrawn and vip not in self._live.announced


class Pods:
    """The ends of tunnels in this node's pods: prepares those that plans name, and undoes what no plan names.

    A pod is found by its address among the network namespaces of the node's processes. What a namespace contains is for
    the processes in it to say, so of several with one address that counts which is owned by the user namespace nearest
    to this process's: the container runtime's. Each pod is prepared for itself; one that fails is tried again later,
    alone. A pass has a deadline, and the next one goes on where it has stopped, so VIPs do not wait for what processes
    do in namespaces.
    """

    def __init__(self, status: PassStatus, tunnels: TunnelClient, report: Report) -> None:
        self._status = status
        self._tunnels = tunnels
        self._report = report
        self._wanted: dict[str, frozenset[str]] = {}
        self._owners: dict[str, set[ObjectKey]] = {}
        self._right: dict[str, frozenset[str]] = {}
        self._pass = self._look = 0
        self._attempted: dict[str, int] = {}
        """The last pass that has attempted to prepare each pod. All are due once from pass `_look` on."""
        self._must_look = False
        self._is_used = False
        self._left: dict[tuple[int, int], float] = {}
        """When each end that no plan names is to be undone."""

    @property
    def ready(self) -> set[TunnelEnd]:
        """The ends that are right."""
        return {TunnelEnd(pod, vip) for pod, vips in self._right.items() for vip in vips & self._wanted.get(pod, vips)}

    def want(self, plans: Iterable[ServicePlan]) -> None:
        """These are all plans with direct return."""
        self._is_used = False
        vips: dict[str, set[str]] = defaultdict(set)
        owners: dict[str, set[ObjectKey]] = defaultdict(set)
        for plan in plans:
            self._is_used = True
            for end in plan.tunnel_ends:
                vips[end.pod].add(end.vip)
                owners[end.pod].add(plan.key)
        before, self._wanted = self._wanted, {pod: frozenset(named) for pod, named in vips.items()}
        self._owners = owners
        self._must_look |= not self._is_used or bool(before.keys() - self._wanted.keys())
        if not self._is_used:
            self._left.clear()  # nothing lingers
        for pod in before.keys() - self._wanted.keys():
            self._right.pop(pod, None)
            self._attempted.pop(pod, None)
            self._status.retries.succeeded(pod)

    def look_again(self) -> None:
        """Have every pod compared with what it should have, and every namespace searched for what is ours."""
        self._must_look = True
        self._look = self._pass + 1

    async def write(self) -> bool:
        """Prepare the pods that need it, then undo what is left in others; returns whether all was attempted."""
        self._pass += 1
        waiting = self._status.waiting()
        due = [
            pod
            for pod, vips in self._wanted.items()
            if (self._attempted.get(pod, 0) < self._look or self._right.get(pod) != vips) and pod not in waiting
        ]
        if not (due or self._must_look):
            return True
        due.sort(key=lambda pod: self._attempted.get(pod, 0))
        deadline = self._status.clock() + LONGEST_PASS
        refusals: dict[str, str] = {}
        try:
            found = await self._tunnels.find(self._wanted.keys())
            while due:
                self._attempted[pod := due.pop(0)] = self._pass
                if sentence := await self._attempt(pod, found):
                    refusals[pod] = sentence
                if self._status.clock() >= deadline:
                    break
        except KernelError as error:
            found, refusals, due = [], {pod: str(error) for pod in due}, []
            self._right = {pod: vips for pod, vips in self._right.items() if pod not in refusals}
        if self._must_look:
            self._must_look = not await self._undo_the_rest(found, deadline)
        for pod, sentence in refusals.items():
            if pod not in self._status.retries:
                self._tell(pod, sentence)
        self._status.refused(refusals, (owner for pod in refusals for owner in self._owners.get(pod, ())))
        return not (due or self._must_look)

    async def _attempt(self, pod: str, found: Collection[PodNamespace]) -> str:
        """Prepare one pod; returns why it could not be done, or nothing."""
        vips = self._wanted[pod]
        try:
            namespace = await self._namespace_of(pod, found)
            _refuse_strict(await self._tunnels.strict_interface(pod))
            done = await self._tunnels.prepare(namespace, PodTunnel(pod, vips))
        except KernelError as error:
            self._right.pop(pod, None)
            return f"pod {pod} cannot answer for {', '.join(sorted(vips))}: {error}"
        if done:
            is_repair = self._right.get(pod) == vips
            if is_repair:
                self._status.repaired([f"in pod {pod}: {what}" for what in done])
            log.info("pod.prepared", pod=pod, vips=sorted(vips), what=done)
            self._status.wrote(len(done))
        self._right[pod] = vips
        self._status.retries.succeeded(pod)
        return ""

    async def _namespace_of(self, pod: str, found: Collection[PodNamespace]) -> PodNamespace:
        """The namespace of a pod. Raises KernelError if there is none, or none that is certain.

        A process that was in another namespace for a moment may have been seen with the address of that one. So if
        there are several, they are asked, beginning with those that count.
        """
        having = sorted((namespace for namespace in found if pod in namespace.addresses), key=attrgetter("depth"))
        refusal = "no process on this node has this address; is it in the host's PID namespace (hostPID)?"
        certain: list[PodNamespace] = []
        for namespace in having[:MOST_ASKED]:
            if certain and certain[0].depth < namespace.depth:
                break
            try:
                if len(having) == 1 or await self._tunnels.has_address(namespace, pod):
                    certain.append(namespace)
            except KernelError as error:
                refusal = str(error)
        if len(certain) > 1:
            both = f"processes {certain[0].pid} and {certain[1].pid}"
            raise KernelError(f"{both} have this address in two network namespaces")
        if not certain:
            raise KernelError(refusal)
        return certain[0]

    async def _undo_the_rest(self, found: Collection[PodNamespace], deadline: float) -> bool:
        """Undo what is due; returns whether all was attempted. What fails has its next turn after LINGER."""
        now = self._status.clock()
        first = now + LINGER if self._is_used else now
        left = {(end.inode, family): end for end, family in with_links(found) if not _is_wanted(end, family)}
        self._left = {key: self._left.get(key, first) for key in left}
        due = sorted((key for key in left if self._left[key] <= now), key=self._left.__getitem__)
        errors: list[str] = []
        while due:
            namespace, family = left[key := due.pop(0)], key[1]
            try:
                if await self._tunnels.undo(namespace, family):
                    log.info("pod.undone", process=namespace.pid, link=LINKS[family])
                    self._status.wrote(1)
            except KernelError as error:
                errors.append(str(error))
            self._left[key] = self._status.clock() + LINGER
            if self._status.clock() >= deadline:
                break
        if errors:
            log.warning("pod.not_undone", error=errors[0], more=len(errors) - 1, next_step="trying again later")
        return not due

    def _tell(self, pod: str, sentence: str) -> None:
        subject = f"direct return by pod {pod}"
        message = f"{sentence}. It gets no connections of these addresses on this node. See docs/direct-return.md."
        for owner in self._owners.get(pod, ()):
            self._report(owner, Problem(REASON, subject, message))


async def undo_direct_return(tunnels: TunnelClient, report: CleanupReport) -> None:
    """Undo what earlier runs did on the node and, as far as this process may look there, in its pods.

    Without the rights of direct return nothing in pods is found, and nothing was made unless these were taken away.
    """
    with report.step("routes and rules of direct return"):
        if await tunnels.remove():
            report.add("delete the routes and rules of direct return")
    try:
        found = await tunnels.find(())
    except KernelError:
        return
    for namespace, family in with_links(found):
        with report.step(f"end of a tunnel in the network namespace of process {namespace.pid}"):
            if await tunnels.undo(namespace, family):
                report.add(f"delete the end of a tunnel in the network namespace of process {namespace.pid}")


def _is_restricted(plan: ServicePlan, family: Family) -> bool:
    return any(entry.set is AddressSet.RESTRICTED and entry.family is family for entry in plan.set_entries)


def _is_wanted(namespace: PodNamespace, family: int) -> bool:
    """Whether it is that of a pod that a plan names: only the addresses of these are looked for."""
    return any((":" in address) == (family == AF_INET6) for address in namespace.addresses)


def _refuse_strict(interface: str | None) -> None:
    if interface is not None:
        sentence = f"net.ipv4.conf.{interface}.rp_filter is 1, so this node drops the pod's answers"
        raise KernelError(f"{sentence}; see docs/direct-return.md")


def with_links(found: Collection[PodNamespace]) -> list[tuple[PodNamespace, int]]:
    return [
        (namespace, family) for namespace in found for family in (AF_INET, AF_INET6) if LINKS[family] in namespace.links
    ]
