"""The ends of tunnels in this node's pods.

A pod is found by its address among the network namespaces of the node's processes. What a namespace contains is for
whoever is in it to say, so of several with one address that counts which is owned by the user namespace nearest to this
process's: the container runtime's. Each pod is prepared for itself; one that fails is tried again later, alone. A pass
has a deadline, and the next one goes on where it has stopped, so VIPs do not wait for what somebody does in namespaces.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from socket import AF_INET, AF_INET6

import structlog

from kroute.kernel.clients import TunnelClient
from kroute.kernel.errors import KernelError
from kroute.kernel.pods.client import LINKS
from kroute.kernel.pods.namespaces import PodNamespace
from kroute.kernel.pods.pod_network import PodTunnel
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem, ServicePlan, TunnelEnd
from kroute.reconcile.pass_status import PassStatus, Report

log = structlog.get_logger(__name__)

REASON = "PodNotPrepared"
LINGER = 900.0
"""Seconds for which a pod that no plan names any more keeps its end of the tunnel, for the connections that it has, as
long as any Service has direct return. A pod that ends takes it with it before."""
PASS = 5.0
"""Seconds after which a pass begins no more work in a namespace. It prepares and undoes one at least."""
MOST_ASKED = 8
"""Namespaces that are asked whether they have an address with which several were seen."""


class Pods:
    """Prepares the pods that plans name, and undoes what no plan names. `ready` are the ends that are right."""

    def __init__(self, status: PassStatus, tunnels: TunnelClient, report: Report) -> None:
        self.ready: set[TunnelEnd] = set()
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
        before, self._wanted = self._wanted, {pod: frozenset(it) for pod, it in vips.items()}
        self._owners = owners
        self._must_look |= not self._is_used or bool(before.keys() - self._wanted.keys())
        if not self._is_used:
            self._left.clear()  # nothing lingers
        for pod in before.keys() - self._wanted.keys():
            self._right.pop(pod, None)
            self._attempted.pop(pod, None)
            self._status.retries.succeeded(pod)
        self._settle()

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
        deadline = self._status.clock() + PASS
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
        self._settle()
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
                self._status.repaired([f"in pod {pod}: {it}" for it in done])
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
        having = sorted((each for each in found if pod in each.addresses), key=lambda namespace: namespace.depth)
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

    def _settle(self) -> None:
        self.ready = {
            TunnelEnd(pod, vip) for pod, vips in self._right.items() for vip in vips & self._wanted.get(pod, vips)
        }

    def _tell(self, pod: str, sentence: str) -> None:
        subject = f"direct return by pod {pod}"
        message = f"{sentence}. It gets no connections of these addresses on this node. See docs/direct-return.md."
        for owner in self._owners.get(pod, ()):
            self._report(owner, Problem(REASON, subject, message))


def _is_wanted(namespace: PodNamespace, family: int) -> bool:
    """Whether it is that of a pod that a plan names: only the addresses of these are looked for."""
    return any((":" in it) == (family == AF_INET6) for it in namespace.addresses)


def _refuse_strict(interface: str | None) -> None:
    if interface is not None:
        sentence = f"net.ipv4.conf.{interface}.rp_filter is 1, so this node drops the pod's answers"
        raise KernelError(f"{sentence}; see docs/direct-return.md")


def with_links(found: Collection[PodNamespace]) -> list[tuple[PodNamespace, int]]:
    return [(it, family) for it in found for family in (AF_INET, AF_INET6) if LINKS[family] in it.links]
