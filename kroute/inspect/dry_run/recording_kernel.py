"""A node's kernel for a dry run: reads reach it, writes go to a recorder."""

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
from kroute.inspect.dry_run.recording_nftables import RecordingNftables
from kroute.inspect.dry_run.recording_rules import RecordingIpset, RecordingXtables
from kroute.inspect.dry_run.recording_tunnels import RecordingTunnels
from kroute.kernel.net.monitor import Event, Overrun
from kroute.kernel.node_kernel import NodeKernel

_FAMILY_NAMES: dict[int, str] = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


def recording(kernel: NodeKernel, recorder: Recorder) -> NodeKernel:
    """The clients of `kernel` for reading. The recorder gets every write. No events arrive."""
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
        nftables=RecordingNftables(kernel.nftables, recorder),
        sysctls=RecordingSysctls(kernel.sysctls, recorder),
        tunnels=RecordingTunnels(kernel.tunnels, recorder),
        version=kernel.version,
        monitor=NoEvents,
        nft={
            family: RecordingXtables(tables, recorder, f"{_FAMILY_NAMES[family]} nft")
            for family, tables in kernel.nft.items()
        },
    )


class NoEvents:
    """An event source without events. A dry run compares the state of one moment."""

    def __init__(
        self,
        *,
        only_interface: str | None = None,
        except_interface: str | None = None,
        addresses: bool = True,
        other_addresses: bool = False,
        routes: bool = True,
    ) -> None:
        """Takes the arguments of `MonitorFactory` and uses none."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def next(self) -> list[Event | Overrun]:
        never: asyncio.Future[list[Event | Overrun]] = asyncio.get_running_loop().create_future()
        return await never
