"""Routes and tunnels to other nodes' pods in a fake kernel. tests/kernel/test_pod_routes.py asks the real one."""

import errno
from collections.abc import Collection, Sequence

from kroute.kernel.digest import Digest
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.pods.pod_routes import (
    DeletePodRoute,
    DeleteTunnel,
    MakeTunnel,
    PodRoute,
    PodRouteChange,
    SetPodRoute,
    SetRule,
    Tunnel,
)
from tests.fakes.client import FakeClient
from tests.fakes.kernel import FakeKernel


class FakePodNetwork(FakeClient):
    """Same shape as kroute.kernel.pods.pod_routes.PodNetworkKernel, which opens its sockets itself.

    `lacks_udp`: the kernel has no tunnels in UDP.
    """

    def __init__(self, kernel: FakeKernel) -> None:
        super().__init__(kernel)
        self.routes = kernel.pod_routes
        self.tunnels = kernel.pod_tunnels
        self.open_ports = kernel.pod_ports
        self.written: list[PodRouteChange] = []
        self.lacks_udp = False
        self.mtus = {"eth0": 1500}

    async def read(self) -> tuple[dict[str, PodRoute], dict[str, Tunnel]]:
        return dict(self.routes), dict(self.tunnels)

    async def digest(self) -> Digest:
        return Digest(hash(frozenset(self.routes.items())), (len(self.routes),))

    async def rules(self) -> set[str]:
        return set(self.kernel.pod_rules)

    async def mtu(self, interfaces: Collection[str], families: Collection[int] = ()) -> int | None:
        """`eth0` has the default routes."""
        names = {*interfaces, *(["eth0"] if families else [])}
        return min((self.mtus[name] for name in names if name in self.mtus), default=None)

    async def write(self, changes: Sequence[PodRouteChange]) -> list[Failure[PodRouteChange]]:
        order = (MakeTunnel, SetPodRoute, SetRule, DeletePodRoute, DeleteTunnel)
        failures: list[Failure[PodRouteChange]] = []
        for change in sorted(changes, key=lambda it: order.index(type(it))):
            if number := self.kernel.refusal(change) or self._make(change):
                failures.append(Failure(change, number))
            else:
                self.written.append(change)
        return failures

    async def ports(self) -> set[tuple[int, int]]:
        self._check_udp()
        return set(self.open_ports)

    async def set_port(self, family: int, port: int, *, is_wanted: bool) -> None:
        self._check_udp()
        (self.open_ports.add if is_wanted else self.open_ports.discard)((family, port))

    def lose(self, link: str) -> None:
        """Delete a link, as another program does: the routes through it go."""
        self.tunnels.pop(link, None)
        for network in [network for network, route in self.routes.items() if route.link == link]:
            del self.routes[network]

    def _make(self, change: PodRouteChange) -> int:
        match change:
            case MakeTunnel(tunnel):
                if tunnel.port and self.lacks_udp:
                    return errno.EINVAL
                self.tunnels[tunnel.link] = tunnel
            case DeleteTunnel(link):
                self.lose(link)
            case SetPodRoute(network, route, replaces):
                if route.link and route.link not in self.tunnels:
                    return errno.ENODEV
                if network in self.routes and not replaces:
                    return errno.EEXIST
                self.routes[network] = route
            case DeletePodRoute(network):
                self.routes.pop(network, None)
            case SetRule(network, is_wanted):
                (self.kernel.pod_rules.add if is_wanted else self.kernel.pod_rules.discard)(network)
        return 0

    def _check_udp(self) -> None:
        if self.lacks_udp:
            raise KernelError("the kernel has no fou (generic netlink); load the module", errno=errno.ENOENT)
