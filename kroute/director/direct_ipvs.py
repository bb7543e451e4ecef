"""IPVS as a director uses it: every real server gets its packets as they are (`ipvsadm -g`)."""

from collections.abc import Sequence

from kroute.kernel.errors import Failure
from kroute.kernel.ipvs.client import DIRECT_ROUTING, AddRealServer, Ipvs, IpvsChange, SetRealServer


class DirectIpvs(Ipvs):
    """The IPVS table, whose real servers are written in direct-routing mode."""

    async def write(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        """Make the changes in order, as `Ipvs.write` does."""
        return await super().write([directly_routed(change) for change in changes])


def directly_routed(change: IpvsChange) -> IpvsChange:
    """The same change in direct-routing mode."""
    if isinstance(change, AddRealServer | SetRealServer):
        return change._replace(method=DIRECT_ROUTING)
    return change
