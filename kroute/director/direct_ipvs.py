"""IPVS as a director uses it: every real server gets its packets by direct routing (`ipvsadm -g`)."""

from collections.abc import AsyncIterator, Collection, Sequence

from kroute.kernel.clients import VirtualServerTable
from kroute.kernel.errors import Failure
from kroute.kernel.ipvs.client import (
    DIRECT_ROUTING,
    AddRealServer,
    IpvsChange,
    OptionsByServer,
    SetRealServer,
    StatesByServer,
    TrafficByServer,
    VirtualServerKey,
    VirtualServerState,
)
from kroute.kernel.ipvs.outlines import Outlines


class DirectIpvs:
    """A VirtualServerTable whose real servers are written in direct-routing mode."""

    def __init__(self, ipvs: VirtualServerTable) -> None:
        self._ipvs = ipvs

    def scan(
        self, expected: Collection[VirtualServerKey] = ()
    ) -> AsyncIterator[list[tuple[VirtualServerKey, VirtualServerState]]]:
        return self._ipvs.scan(expected)

    async def real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        return await self._ipvs.real_servers(keys)

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
