"""All fakes of one fake kernel, in the bundle that the controllers get."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from kroute.kernel.iptables.tools import VARIANTS, Variant
from kroute.kernel.node_kernel import NodeKernel
from tests.fakes.addresses import FakeAddresses
from tests.fakes.conntrack import FakeConntrack
from tests.fakes.ipset import FakeIpset
from tests.fakes.ipvs import FakeIpvs
from tests.fakes.kernel import FakeKernel
from tests.fakes.links import FakeLinks
from tests.fakes.monitor import FakeMonitor
from tests.fakes.nftables import FakeNftables
from tests.fakes.pod_network import FakePodNetwork
from tests.fakes.routes import FakeRoutes
from tests.fakes.sysctl import FakeSysctls
from tests.fakes.tunnels import FakeTunnels
from tests.fakes.xtables import FakeXtables


class FakeNodeKernel(NodeKernel, frozen=True, kw_only=True):
    """A NodeKernel whose clients have the types of the fakes, for tests that need more than a controller may do."""

    links: FakeLinks
    ipvs: FakeIpvs
    addresses: FakeAddresses
    routes: FakeRoutes
    ipset: FakeIpset
    conntrack: FakeConntrack
    xtables: Mapping[Variant, FakeXtables]
    nftables: FakeNftables
    sysctls: FakeSysctls
    tunnels: FakeTunnels
    pod_network: FakePodNetwork

    @classmethod
    def of(cls, kernel: FakeKernel) -> Self:
        """The clients of this kernel, not opened yet. Nobody uses its tables of iptables-nft."""
        nft = FakeKernel()
        nft.sets = kernel.sets
        return cls(
            links=FakeLinks(kernel),
            ipvs=FakeIpvs(kernel),
            addresses=FakeAddresses(kernel),
            routes=FakeRoutes(kernel),
            ipset=FakeIpset(kernel),
            conntrack=FakeConntrack(kernel),
            xtables={each: FakeXtables(kernel if each.name == "legacy" else nft, each.family) for each in VARIANTS},
            nftables=FakeNftables(kernel),
            sysctls=FakeSysctls(kernel),
            tunnels=FakeTunnels(kernel),
            pod_network=FakePodNetwork(kernel),
            version=kernel.version,
            monitor=partial(FakeMonitor, kernel),
        )

    async def open(self) -> Self:
        """Open every client."""
        one_each = (self.links, self.ipvs, self.addresses, self.routes, self.ipset, self.conntrack, self.nftables)
        for client in one_each:
            await client.open()
        return self


@asynccontextmanager
async def open_fake_kernel(kernel: FakeKernel) -> AsyncIterator[FakeNodeKernel]:
    """Same shape as kroute.kernel.node_kernel.open_kernel, on a kernel in memory."""
    yield await FakeNodeKernel.of(kernel).open()
