"""The bundle of all kernel clients that kroute uses, so that they are made and injected in one place.

There are three such bundles: the real one (`open_kernel`), one that only records writes
(`kroute.inspect.dry_run.recording_kernel`), and the fake of the tests (`tests/fakes/node_kernel.py`).
"""

import socket
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from kroute.kernel.clients import (
    AddressClient,
    ConntrackClient,
    IpvsClient,
    LinkClient,
    MonitorFactory,
    RouteClient,
    SysctlClient,
    TunnelClient,
)
from kroute.kernel.conntrack import Conntrack
from kroute.kernel.firewall_clients import IpsetClient, NftablesClient, XtablesClient
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.nft_tables import NftTables
from kroute.kernel.iptables.xtables import Xtables
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.modules import kernel_version
from kroute.kernel.net.addresses import Addresses
from kroute.kernel.net.links import Links
from kroute.kernel.net.monitor import Monitor
from kroute.kernel.net.routes import Routes
from kroute.kernel.netlink.statistics import NetlinkStatistics
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.pods.client import Tunnels
from kroute.kernel.sysctl import PROC_SYS, Sysctls

if TYPE_CHECKING:
    from kroute.kernel.netlink.client import NetlinkClient

ClientName: TypeAlias = Literal["links", "ipvs", "addresses", "routes", "conntrack", "ipset", "xtables", "nftables"]
"""A client that must be opened before it is used."""
CORE_CLIENTS: tuple[ClientName, ...] = ("links", "ipvs", "addresses", "routes", "conntrack")
"""Those that every node needs, whatever its firewall is."""
EVERY_CLIENT: tuple[ClientName, ...] = get_args(ClientName)


@dataclass(frozen=True, kw_only=True)
class NodeKernel:
    """The clients for the parts of the kernel that kroute reads and writes.

    `xtables` has a client for AF_INET and one for AF_INET6, or none where these are not opened; `nft` may have the same
    for the tables of iptables-nft.
    `monitor` makes an event source, which the caller opens. `version` is the kernel's version, such as (6, 1).
    `sockets` has the counters of each netlink socket, by the name of its client; the counters change as the sockets are
    used. It is empty where the clients have no sockets.
    """

    links: LinkClient
    ipvs: IpvsClient
    addresses: AddressClient
    routes: RouteClient
    ipset: IpsetClient
    conntrack: ConntrackClient
    xtables: Mapping[int, XtablesClient]
    nftables: NftablesClient
    sysctls: SysctlClient
    tunnels: TunnelClient
    version: tuple[int, int]
    monitor: MonitorFactory
    nft: Mapping[int, XtablesClient] = field(default_factory=dict)
    sockets: Mapping[str, NetlinkStatistics] = field(default_factory=dict)


@asynccontextmanager
async def open_kernel(
    proc_sys: Path = PROC_SYS, *, only: Collection[ClientName] = EVERY_CLIENT
) -> AsyncIterator[NodeKernel]:
    """The kernel of the calling thread's network namespace, open until the end of the `with` block.

    Each client has its own netlink socket. Only the clients in `only` are opened; the others raise KernelError when
    they are used.

    Raises:
        KernelError: the kernel lacks a protocol, or a library is missing.
    """
    links, ipvs, addresses, routes = Links(), Ipvs(), Addresses(), Routes()
    ipset, conntrack, nftables = Ipset(), Conntrack(), Nftables()
    sockets: dict[ClientName, NetlinkClient] = {
        "links": links,
        "ipvs": ipvs,
        "addresses": addresses,
        "routes": routes,
        "ipset": ipset,
        "conntrack": conntrack,
        "nftables": nftables,
    }
    xtables: dict[int, Xtables] = {family: Xtables(family) for family in (socket.AF_INET, socket.AF_INET6)}
    async with AsyncExitStack() as stack:
        clients: list[AbstractAsyncContextManager[object]] = [it for name, it in sockets.items() if name in only]
        clients += xtables.values() if "xtables" in only else ()
        for client in clients:
            await stack.enter_async_context(client)
        yield NodeKernel(
            links=links,
            ipvs=ipvs,
            addresses=addresses,
            routes=routes,
            ipset=ipset,
            conntrack=conntrack,
            xtables=xtables if "xtables" in only else {},
            nftables=nftables,
            sysctls=Sysctls(proc_sys),
            tunnels=Tunnels(proc_sys),
            version=kernel_version(),
            monitor=Monitor,
            nft={family: NftTables(family) for family in xtables},
            sockets={name: client.statistics for name, client in sockets.items() if name in only},
        )
