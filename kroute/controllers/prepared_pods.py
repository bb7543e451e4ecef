"""Which pods of this node are ready to answer a VIP's clients themselves.

A tunnel to a pod that is not prepared leads to nothing. So service_proxy writes no such real server before the
controller direct_return says that the pod is ready. Pods of other nodes are for the agents there.
"""

import asyncio
from collections.abc import Collection, Mapping

import msgspec

from kroute.base.forwarding import TUNNEL
from kroute.model.plan import ServicePlan, TunnelEnd, VirtualServer, VirtualServerKey

Servers = Mapping[VirtualServerKey, VirtualServer]


class PreparedPods:
    """Shared by direct_return, which says which pods are ready, and service_proxy, which asks. Each call is atomic.

    `ready` is None as long as direct_return has not said which are ready.
    """

    def __init__(self) -> None:
        self.ready: frozenset[TunnelEnd] | None = None
        self._wakers: list[asyncio.Event] = []

    def follow(self, waker: asyncio.Event) -> None:
        """Set `waker` whenever a pod becomes ready, or is no longer."""
        self._wakers.append(waker)

    def say(self, ready: Collection[TunnelEnd]) -> None:
        """These are ready, and no others are."""
        if self.ready != ready:
            self.ready = frozenset(ready)
            for waker in self._wakers:
                waker.set()

    def served(self, plan: ServicePlan, servers: Servers) -> Servers:
        """These virtual servers of a plan without the real servers that are not ready.

        As long as direct_return has not said which are ready, it is all of them: after a restart they serve already.
        """
        unready = set(plan.tunnel_ends) - self.ready if self.ready is not None else ()
        if not unready:
            return servers
        prepared = {key: _without(unready, server) for key, server in servers.items() if server.method == TUNNEL}
        return {**servers, **prepared}


def _without(unready: Collection[TunnelEnd], server: VirtualServer) -> VirtualServer:
    vip = server.key.address
    left = tuple([real for real in server.real_servers if TunnelEnd(real.address, vip) not in unready])
    return msgspec.structs.replace(server, real_servers=left)
