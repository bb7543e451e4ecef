"""The bundle of all kernel clients that kroute uses, so that they are made and injected in one place.

There are three such bundles: the real one (`open_kernel`), one that only records writes
(`kroute.inspect.recording`), and the fake of the tests (`tests/fakes/node_kernel.py`).
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias, cast, get_args

import msgspec

from kroute.kernel.clients import (
    AddressClient,
    ConntrackClient,
    IpsetClient,
    IpvsClient,
    LinkClient,
    MonitorFactory,
    NftablesClient,
    PodNetworkClient,
    RouteClient,
    SysctlClient,
    TunnelClient,
    XtablesClient,
)
from kroute.kernel.conntrack import Conntrack
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.modules import kernel_version
from kroute.kernel.net.addresses import Addresses
from kroute.kernel.net.links import Links
from kroute.kernel.net.monitor import Monitor, OwnPorts
from kroute.kernel.net.routes import Routes
from kroute.kernel.netlink.netlink_socket import NetlinkStatistics
from kroute.kernel.sysctl import PROC_SYS, Sysctls

if TYPE_CHECKING:
    from kroute.kernel.iptables.tools import Variant
    from kroute.kernel.netlink.client import NetlinkClient

ClientName: TypeAlias = Literal["links", "ipvs", "addresses", "routes", "conntrack", "ipset", "xtables", "nftables"]
"""A client that is made only for a caller that asks for it."""
CORE_CLIENTS: tuple[ClientName, ...] = ("links", "ipvs", "addresses", "routes", "conntrack")
"""Those that every node needs, whatever its firewall is."""
EVERY_CLIENT: tuple[ClientName, ...] = get_args(ClientName)


class NodeKernel(msgspec.Struct, frozen=True, kw_only=True):
    """The clients for the parts of the kernel that kroute reads and writes.

    `xtables` has a client for each family in each variant of iptables, or none where these are not asked for.
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
    xtables: "Mapping[Variant, XtablesClient]"
    nftables: NftablesClient
    sysctls: SysctlClient
    tunnels: TunnelClient
    pod_network: PodNetworkClient
    version: tuple[int, int]
    monitor: MonitorFactory
    sockets: Mapping[str, NetlinkStatistics] = {}


@asynccontextmanager
async def open_kernel(
    proc_sys: Path = PROC_SYS, *, only: Collection[ClientName] = EVERY_CLIENT
) -> AsyncIterator[NodeKernel]:
    """The kernel of the calling thread's network namespace, open until the end of the `with` block.

    Each client has its own netlink socket. Only the clients in `only` are opened; the others raise KernelError when
    they are used, and those of a firewall are not even loaded.

    Raises:
        KernelError: the kernel lacks a protocol.
    """
    links, ipvs, addresses, routes, conntrack = Links(), Ipvs(), Addresses(), Routes(), Conntrack()
    sockets: dict[ClientName, NetlinkClient] = {
        "links": links,
        "ipvs": ipvs,
        "addresses": addresses,
        "routes": routes,
        "conntrack": conntrack,
    }
    if "ipset" in only:
        from kroute.kernel.ipset import Ipset  # noqa: PLC0415  only for a caller that asks for sets

        sockets["ipset"] = Ipset()
    if "nftables" in only:
        from kroute.kernel.nftables.client import Nftables  # noqa: PLC0415  only for a caller that asks for nf_tables

        sockets["nftables"] = Nftables()
    opened = {name: client for name, client in sockets.items() if name in only}
    async with AsyncExitStack() as stack:
        for client in opened.values():
            await stack.enter_async_context(client)
        is_writer = {"addresses", "routes"} <= opened.keys()  # whose start makes several events a VIP
        own = OwnPorts(addresses.netlink.port, routes.netlink.port) if is_writer else None
        yield NodeKernel(
            links=links,
            ipvs=ipvs,
            addresses=addresses,
            routes=routes,
            ipset=cast(IpsetClient, sockets.get("ipset") or _Closed("ipset")),
            conntrack=conntrack,
            xtables=_xtables(only),
            nftables=cast(NftablesClient, sockets.get("nftables") or _Closed("nftables")),
            sysctls=Sysctls(proc_sys),
            tunnels=cast(TunnelClient, _OnDemand(partial(_tunnels, proc_sys))),
            pod_network=cast(PodNetworkClient, _OnDemand(_pod_network)),
            version=kernel_version(),
            monitor=partial(Monitor, own=own),
            sockets={name: client.netlink.statistics for name, client in opened.items()},
        )


class _Closed:
    """Stands for a client that is not opened."""

    def __init__(self, name: ClientName) -> None:
        self._name = name

    def __getattr__(self, _name: str) -> NoReturn:
        raise KernelError(f"the kernel client {self._name} is not open")


class _OnDemand:
    """A client that most nodes never use: it is loaded when it is asked for something."""

    def __init__(self, load: Callable[[], object]) -> None:
        self._load = load

    def __getattr__(self, name: str) -> object:
        return getattr(self._load(), name)


def _tunnels(proc_sys: Path) -> object:
    from kroute.kernel.pods.client import Tunnels  # noqa: PLC0415

    return Tunnels(proc_sys)


def _pod_network() -> object:
    from kroute.kernel.pods.pod_routes import PodNetworkKernel  # noqa: PLC0415

    return PodNetworkKernel()


def _xtables(only: Collection[ClientName]) -> "Mapping[Variant, XtablesClient]":
    if "xtables" not in only:
        return {}
    from kroute.kernel.iptables.tools import VARIANTS  # noqa: PLC0415  only for a caller that asks for iptables
    from kroute.kernel.iptables.xtables import Xtables  # noqa: PLC0415

    return {variant: Xtables(variant) for variant in VARIANTS}
