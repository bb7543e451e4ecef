"""The kernel's state of one address and port, for comparison with the plan."""

import msgspec

from kroute.firewall.protocol import Firewall
from kroute.firewall.sets import Sets
from kroute.kernel.ipvs.objects import TUNNEL, RealServerKey, VirtualServerState
from kroute.kernel.net.routes import RouteLookup, Way
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.addresses import family_of
from kroute.model.plan import VirtualServerKey


class AppliedState(msgspec.Struct):
    """`bound` are the addresses on the dummy interface. `server` and `route` are None if there is none.

    `is_steered`: direct return delivers packets from elsewhere to this node, though the address is on no link.
    """

    bound: set[str]
    sets: Sets
    server: VirtualServerState | None
    route: Way | None
    is_steered: bool = False

    @property
    def is_local(self) -> bool:
        """Whether packets to the address are for this node."""
        return self.is_steered or (self.route is not None and self.route.is_local)

    @property
    def source(self) -> str | None:
        """The address from which this node's own processes call it, or None."""
        return self.route.source if self.route is not None else None

    @property
    def is_tunnelled(self) -> bool:
        """Whether packets go on unchanged in a tunnel."""
        return self.server is not None and any(it.method == TUNNEL for it in self.server.real_servers.values())

    @property
    def serving(self) -> list[RealServerKey]:
        """The real servers that take new connections."""
        return sorted(it for it, real in self.server.real_servers.items() if real.weight) if self.server else []


async def read_applied_state(
    interface: str, key: VirtualServerKey, kernel: NodeKernel, firewall: Firewall, lookup: RouteLookup
) -> AppliedState:
    """Read the kernel's state. `interface` is the dummy interface's name. Raises KernelError."""
    route = await lookup.towards(key.address)
    is_here = route is not None and route.is_local
    return AppliedState(
        bound=await kernel.addresses.read(interface),
        sets=await firewall.read_sets(family_of(key.address)),
        server=(await kernel.ipvs.read()).get(key),
        route=route,
        is_steered=not is_here and key.address in await kernel.tunnels.steered(),
    )
