"""IPVS as a director uses it: every real server gets its packets by direct routing (`ipvsadm -g`)."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from kroute.kernel.clients import VirtualServerTable
from kroute.kernel.errors import Failure
from kroute.kernel.ipvs.objects import (
    DIRECT_ROUTING,
    MASQUERADING,
    AddRealServer,
    IpvsChange,
    OptionsByServer,
    RealServerKey,
    RealServerState,
    SetRealServer,
    StatesByServer,
    TrafficByServer,
    VirtualServerKey,
    VirtualServerState,
)
from kroute.kernel.ipvs.outlines import Outlines

_AS_PLANNED = {DIRECT_ROUTING: MASQUERADING, MASQUERADING: DIRECT_ROUTING}
"""What plans call the kernel's methods: they know of masquerading alone, so that is what would be wrong here."""


class DirectIpvs:
    """A VirtualServerTable in which what plans call masquerading is direct routing."""

    def __init__(self, ipvs: VirtualServerTable) -> None:
        self._ipvs = ipvs

    async def scan(
        self, expected: Collection[VirtualServerKey] = ()
    ) -> AsyncIterator[list[tuple[VirtualServerKey, VirtualServerState]]]:
        async for part in self._ipvs.scan(expected):
            yield [(key, state._replace(real_servers=_as_planned(state.real_servers))) for key, state in part]

    async def real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        return {key: _as_planned(there) for key, there in (await self._ipvs.real_servers(keys)).items()}

    async def ipv4_real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        return {key: _as_planned(there) for key, there in (await self._ipvs.ipv4_real_servers(keys)).items()}

    async def options(self, keys: Sequence[VirtualServerKey]) -> OptionsByServer:
        return await self._ipvs.options(keys)

    async def outlines(self) -> Outlines:
        return await self._ipvs.outlines()

    async def real_server_traffic(self, keys: Sequence[VirtualServerKey]) -> TrafficByServer:
        return await self._ipvs.real_server_traffic(keys)

    async def write(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        """Write the changes in order. The change of a failure is the one in direct-routing mode."""
        return await self._ipvs.write([directly_routed(change) for change in changes])


def directly_routed(change: IpvsChange) -> IpvsChange:
    """The same change in direct-routing mode."""
    if isinstance(change, AddRealServer | SetRealServer):
        return change._replace(method=DIRECT_ROUTING)
    return change


def _as_planned(there: Mapping[RealServerKey, RealServerState]) -> dict[RealServerKey, RealServerState]:
    return {key: real._replace(method=_AS_PLANNED.get(real.method, real.method)) for key, real in there.items()}
