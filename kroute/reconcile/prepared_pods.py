"""Which pods of this node are ready to answer a VIP's clients themselves.

A tunnel to a pod that is not prepared leads to nothing. So service_proxy writes no such real server before the
controller direct_return says that the pod is ready. Pods of other nodes are for the agents there.
"""

import asyncio
from collections.abc import Collection, Mapping

import msgspec

from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan, TunnelEnd, VirtualServer, VirtualServerKey

Servers = Mapping[VirtualServerKey, VirtualServer]


class PreparedPods:
    """Shared by direct_return, which says who is ready, and service_proxy, which asks. Each call is atomic."""

    def __init__(self) -> None:
        self._ready: frozenset[TunnelEnd] | None = None
        self._plans: dict[ObjectKey, ServicePlan] = {}
        self._wakers: list[asyncio.Event] = []
        self._changed: set[TunnelEnd] = set()

    def follow(self, waker: asyncio.Event) -> None:
        """Set `waker` whenever somebody becomes ready, or is no longer."""
        self._wakers.append(waker)

    def say(self, ready: Collection[TunnelEnd]) -> None:
        """These are ready, and nobody else is."""
        now = frozenset(ready)
        ends = {end for plan in self._plans.values() for end in plan.tunnel_ends}
        changed = ends if self._ready is None else now ^ self._ready
        self._ready = now
        if changed:
            self._changed |= changed
            for waker in self._wakers:
                waker.set()

    def accept(self, plan: ServicePlan) -> None:
        """Remember a plan if it depends on this."""
        if plan.tunnel_ends:
            self._plans[plan.key] = plan
        else:
            self._plans.pop(plan.key, None)

    def holds(self, owner: ObjectKey, key: VirtualServerKey) -> bool:
        """Whether a virtual server must not get new real servers, because nobody has said yet who is ready."""
        plan = self._plans.get(owner) if self._ready is None else None
        return plan is not None and key.address in plan.direct_vips

    def take_affected(self) -> list[ServicePlan]:
        """The plans for which something has changed since the last call; for service_proxy alone."""
        if not self._changed:
            return []
        changed, self._changed = self._changed, set()
        return [plan for plan in self._plans.values() if not changed.isdisjoint(plan.tunnel_ends)]

    def served(self, plan: ServicePlan, servers: Servers) -> Servers:
        """These virtual servers of a plan without the real servers that are not ready.

        As long as nobody has said who is ready, it is all of them: after a restart they serve already.
        """
        unready = set(plan.tunnel_ends) - self._ready if self._ready is not None else ()
        if not unready:
            return servers
        return {key: _without(unready, it) if it.is_tunnelled else it for key, it in servers.items()}


def _without(unready: Collection[TunnelEnd], server: VirtualServer) -> VirtualServer:
    left = tuple([it for it in server.real_servers if TunnelEnd(it.address, server.key.address) not in unready])
    return msgspec.structs.replace(server, real_servers=left)
