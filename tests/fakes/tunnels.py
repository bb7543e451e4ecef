"""Direct return in a fake kernel: steering on the node, and pods in namespaces of their own."""

import errno
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from socket import AF_INET, AF_INET6

from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.net.steering import Steer
from kroute.kernel.pods.client import LINKS
from kroute.kernel.pods.namespaces import DEEPEST, PodNamespace
from kroute.kernel.pods.pod_network import PodTunnel
from tests.fakes.client import FakeClient
from tests.fakes.kernel import FakeKernel


@dataclass
class FakePod:
    """A network namespace. `tunnels` are kroute's, by family; `foreign` families have a link of its name already."""

    pid: int
    addresses: frozenset[str]
    depth: int = 0
    tunnels: dict[int, PodTunnel] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    seen_with: frozenset[str] = frozenset()
    """Addresses of another namespace that its process was in for a moment."""
    takes: float = 0.0
    """Seconds after which the work in it is given up."""


class FakeTunnels(FakeClient):
    """Same shape as kroute.kernel.pods.client.Tunnels, which opens its sockets itself.

    `may_look`: whether the process has the capabilities. `strict` are the pods towards which rp_filter is 1.
    """

    def __init__(self, kernel: FakeKernel) -> None:
        super().__init__(kernel)
        self.pods: list[FakePod] = []
        self.may_look = True
        self.strict: set[str] = set()
        self.mark: int | None = None
        self.addresses: set[str] = set()
        self.attempts: list[int] = []
        """The process of each pod that was to be changed, in order."""
        self.let_pass: Callable[[float], None] = lambda _seconds: None
        """Called with the seconds that work in a pod takes."""

    def add_pod(self, *addresses: str, depth: int = 0) -> FakePod:
        self.pods.append(pod := FakePod(100 + len(self.pods), frozenset(addresses), depth))
        return pod

    async def steered(self) -> set[str]:
        return set(self.addresses)

    async def has_rules(self, mark: int) -> bool:
        return self.mark == mark

    async def ensure_rules(self, mark: int) -> list[str]:
        wrong = [] if self.mark == mark else ["the rule of direct return was missing or another"]
        self.mark = mark
        return wrong

    async def steer(self, changes: Sequence[Steer]) -> list[Failure[Steer]]:
        failures = []
        for change in changes:
            if number := self.kernel.refusal(change):
                failures.append(Failure(change, number))
                continue
            (self.addresses.add if change.is_wanted else self.addresses.discard)(change.address)
            self.kernel.writes.append(change)
        return failures

    async def remove(self) -> bool:
        was = bool(self.addresses) or self.mark is not None
        self.addresses, self.mark = set(), None
        return was

    async def find(self, addresses: Collection[str]) -> list[PodNamespace]:
        if not self.may_look:
            raise KernelError("cannot look at the network namespaces of other processes", errno=errno.EACCES)
        found = []
        for pod in sorted((pod for pod in self.pods if pod.depth <= DEEPEST), key=lambda pod: pod.depth):
            links = frozenset(LINKS[it] for it in pod.tunnels.keys() | pod.foreign)
            if (has := (pod.addresses | pod.seen_with) & frozenset(addresses)) or links:
                found.append(PodNamespace(pod.pid, pod.pid, has, links, pod.depth))
        return found

    async def has_address(self, namespace: PodNamespace, address: str) -> bool:
        return address in self._pod(namespace).addresses

    async def prepare(self, namespace: PodNamespace, tunnel: PodTunnel) -> list[str]:
        self._spend(namespace)
        pod, family = self._pod(namespace), AF_INET6 if ":" in tunnel.address else AF_INET
        if tunnel.address not in pod.addresses:
            raise KernelError(f"the pod does not have {tunnel.address}", errno=errno.EADDRNOTAVAIL)
        if family in pod.foreign:
            raise KernelError(f"a link {LINKS[family]} in the pod is not kroute's", errno=errno.EEXIST)
        if pod.tunnels.get(family) == tunnel:
            return []
        pod.tunnels[family] = tunnel
        return [f"VIPs {sorted(tunnel.vips)}"]

    async def undo(self, namespace: PodNamespace, family: int) -> bool:
        self._spend(namespace)
        return self._pod(namespace).tunnels.pop(family, None) is not None

    async def strict_interface(self, pod: str) -> str | None:
        return "cali1" if pod in self.strict else None

    def _spend(self, namespace: PodNamespace) -> None:
        """Raises KernelError if somebody in the pod makes the work take too long."""
        self.attempts.append(namespace.pid)
        pod = self._pod(namespace)
        if pod.takes:
            self.let_pass(pod.takes)
            raise KernelError(f"process {pod.pid}'s namespace took longer than {pod.takes:g} s; trying again")

    def _pod(self, namespace: PodNamespace) -> FakePod:
        """The namespace, by a process in it. Raises KernelError ENOENT if that has ended."""
        for pod in self.pods:
            if pod.pid == namespace.pid == namespace.inode:
                return pod
        raise KernelError(f"cannot enter the network namespace of process {namespace.pid}", errno=errno.ENOENT)
