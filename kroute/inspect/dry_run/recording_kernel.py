"""A node's kernel that is read and never written: what it is asked to change goes to a recorder."""

import asyncio
import socket
from typing import Self

from kroute.inspect.dry_run.recording import (
    NoConntrack,
    Recorder,
    RecordingAddresses,
    RecordingIpvs,
    RecordingLinks,
    RecordingRoutes,
    RecordingSysctls,
)
from kroute.inspect.dry_run.recording_rules import RecordingIpset, RecordingXtables
from kroute.kernel.net.monitor import Event, Overrun
from kroute.kernel.node_kernel import NodeKernel

_FAMILY_NAMES: dict[int, str] = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


def recording(kernel: NodeKernel, recorder: Recorder) -> NodeKernel:
    """The same kernel for readers; every write is given to the recorder, and no event comes from it."""
    return NodeKernel(
        links=RecordingLinks(kernel.links, recorder),
        ipvs=RecordingIpvs(kernel.ipvs, recorder),
        addresses=RecordingAddresses(kernel.addresses, recorder),
        routes=RecordingRoutes(kernel.routes, recorder),
        ipset=RecordingIpset(kernel.ipset, recorder),
        conntrack=NoConntrack(),
        xtables={
            family: RecordingXtables(tables, recorder, _FAMILY_NAMES[family])
            for family, tables in kernel.xtables.items()
        },
        sysctls=RecordingSysctls(kernel.sysctls, recorder),
        version=kernel.version,
        monitor=NoEvents,
    )


class NoEvents:
    """An event source without a socket. A dry run looks at one moment: what happens meanwhile is left out."""

    def __init__(
        self,
        *,
        only_interface: str | None = None,
        except_interface: str | None = None,
        addresses: bool = True,
        other_addresses: bool = False,
        routes: bool = True,
    ) -> None:
        """The arguments of `MonitorFactory`; none of them makes a difference."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def next(self) -> list[Event | Overrun]:
        """Never returns."""
        never: asyncio.Future[list[Event | Overrun]] = asyncio.get_running_loop().create_future()
        return await never
