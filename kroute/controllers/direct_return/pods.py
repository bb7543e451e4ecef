"""The ends of tunnels in this node's pods.

A pod is found by its address among the network namespaces of the node's processes. What a namespace contains is for
whoever is in it to say, so of several with one address that counts which is owned by the user namespace nearest to this
process's: the container runtime's. Each pod is prepared for itself; one that fails is tried again later, alone.
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
        self._must_look = False
        self._is_used = False
        self._lingering: dict[tuple[int, int], float] = {}

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
        for pod in before.keys() - self._wanted.keys():
            self._right.pop(pod, None)
            self._status.retries.succeeded(pod)
        self._settle()

    def look_again(self) -> None:
        """Have every pod compared with what it should have, and every namespace searched for what is ours."""
        self._must_look = True

    async def write(self) -> None:
        """Prepare the pods that need it, then undo what is left in others."""
        waiting = self._status.waiting()
        due = [
            pod
            for pod, vips in self._wanted.items()
            if (self._must_look or self._right.get(pod) != vips) and pod not in waiting
        ]
        if not (due or self._must_look):
            return
        try:
            found = await self._tunnels.find(self._wanted.keys())
            refusals = {pod: sentence for pod in due if (sentence := await self._attempt(pod, found))}
        except KernelError as error:
            found, refusals = [], {pod: str(error) for pod in due}
            self._right = {pod: vips for pod, vips in self._right.items() if pod not in refusals}
        if self._must_look:
            self._must_look = False
            await self._undo_the_rest(found)
        self._settle()
        for pod, sentence in refusals.items():
            if pod not in self._status.retries:
                self._tell(pod, sentence)
        self._status.refused(refusals, (owner for pod in refusals for owner in self._owners.get(pod, ())))

    async def _attempt(self, pod: str, found: Collection[PodNamespace]) -> str:
        """Prepare one pod; returns why it could not be done, or nothing."""
        vips = self._wanted[pod]
        try:
            namespace = _namespace_of(pod, found)
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

    async def _undo_the_rest(self, found: Collection[PodNamespace]) -> None:
        left = [(it, family) for it, family in with_links(found) if not _is_wanted(it, family)]
        now = self._status.clock()
        self._lingering = {(it.inode, family): self._lingering.get((it.inode, family), now) for it, family in left}
        for namespace, family in left:
            if self._is_used and now < self._lingering[namespace.inode, family] + LINGER:
                continue
            try:
                if await self._tunnels.undo(namespace, family):
                    log.info("pod.undone", process=namespace.pid, link=LINKS[family])
                    self._status.wrote(1)
            except KernelError as error:
                log.warning("pod.not_undone", process=namespace.pid, error=str(error), next_step="trying again later")

    def _settle(self) -> None:
        self.ready = {
            TunnelEnd(pod, vip) for pod, vips in self._right.items() for vip in vips & self._wanted.get(pod, vips)
        }

    def _tell(self, pod: str, sentence: str) -> None:
        subject = f"direct return by pod {pod}"
        message = f"{sentence}. It gets no connections of these addresses on this node. See docs/direct-return.md."
        for owner in self._owners.get(pod, ()):
            self._report(owner, Problem(REASON, subject, message))


def _namespace_of(pod: str, found: Collection[PodNamespace]) -> PodNamespace:
    """The namespace of a pod. Raises KernelError if there is none, or none that is certain."""
    having = sorted((it for it in found if pod in it.addresses), key=lambda it: it.depth)
    if not having:
        raise KernelError("no process on this node has this address; is it in the host's PID namespace (hostPID)?")
    if len(having) > 1 and having[0].depth == having[1].depth:
        raise KernelError(f"processes {having[0].pid} and {having[1].pid} have this address in two network namespaces")
    return having[0]


def _is_wanted(namespace: PodNamespace, family: int) -> bool:
    """Whether it is that of a pod that a plan names: only the addresses of these are looked for."""
    return any((":" in it) == (family == AF_INET6) for it in namespace.addresses)


def _refuse_strict(interface: str | None) -> None:
    if interface is not None:
        sentence = f"net.ipv4.conf.{interface}.rp_filter is 1, so this node drops the pod's answers"
        raise KernelError(f"{sentence}; see docs/direct-return.md")


def with_links(found: Collection[PodNamespace]) -> list[tuple[PodNamespace, int]]:
    return [(it, family) for it in found for family in (AF_INET, AF_INET6) if LINKS[family] in it.links]
