"""The same small node twice, on the real kernel and on the fake one, so that one test runs on both."""

import shlex
import socket
import struct
import subprocess
from contextlib import AsyncExitStack

from kroute.kernel.conntrack import (
    CTA_TUPLE_ORIG,
    CTA_TUPLE_REPLY,
    NFNL_SUBSYS_CTNETLINK,
    UDP,
    Conntrack,
    Flow,
    encode_tuple,
)
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.tools import Variant
from kroute.kernel.iptables.xtables import Xtables
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.modules import kernel_version
from kroute.kernel.net.addresses import Addresses
from kroute.kernel.net.links import Links
from kroute.kernel.net.monitor import Monitor
from kroute.kernel.net.routes import LocalRoute, Routes
from kroute.kernel.netlink.message import NLM_F_CREATE, NLM_F_EXCL, address_family, attribute, nfnetlink_message
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER, NetlinkSocket
from kroute.kernel.nftables.client import Nftables
from tests.fakes.addresses import FakeAddresses
from tests.fakes.conntrack import FakeConntrack
from tests.fakes.ipset import FakeIpset
from tests.fakes.ipvs import FakeIpvs
from tests.fakes.kernel import FakeKernel
from tests.fakes.links import FakeLinks
from tests.fakes.monitor import FakeMonitor
from tests.fakes.nftables import FakeNftables
from tests.fakes.routes import FakeRoutes
from tests.fakes.xtables import FakeXtables

NODE_IP, OTHER_NODE_IP = "192.168.9.1", "192.168.9.2"
NODE_IP6, OTHER_NODE_IP6 = "fd99::1", "fd99::2"

HANG = 300.0
"""Seconds that only a test that hangs takes, however slow the machine is."""

MSG_CT_NEW = 0
CTA_TIMEOUT = 7
FLOW_TIMEOUT = 300
"""Seconds."""


def run(command: str, stdin: str = "") -> str:
    """Run a command in the test's namespace and return its output."""
    finished = subprocess.run(shlex.split(command), check=False, capture_output=True, text=True, input=stdin)
    assert finished.returncode == 0, f"{command}: {finished.stderr}"
    return finished.stdout


def uplink(*addresses: str) -> None:
    """Make e0, the interface of the node, with these addresses. One process does it: most tests begin with it."""
    lines = ["link add e0 type dummy", "link set e0 addrgenmode none up"]
    run("ip -batch -", "\n".join([*lines, *(f"address add {address} dev e0" for address in addresses)]))


class RealNode:
    """The classes of kroute.kernel, in the test's namespace."""

    def __init__(self, family: int) -> None:
        self.links, self.addresses, self.routes = Links(), Addresses(), Routes()
        self.ipvs, self.ipset, self.conntrack = Ipvs(), Ipset(), Conntrack()
        self.xtables: Xtables | FakeXtables = Xtables(Variant(family, "legacy"))
        self.nftables, self.other_nftables = Nftables(), Nftables()
        """kroute's client of nf_tables, and that of another program."""
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        one_each = (self.links, self.addresses, self.routes, self.ipvs, self.ipset, self.conntrack)
        for client in (*one_each, self.nftables, self.other_nftables):
            await self._stack.enter_async_context(client)
        uplink(f"{NODE_IP}/24", f"{OTHER_NODE_IP}/24", f"{NODE_IP6}/64 nodad", f"{OTHER_NODE_IP6}/64 nodad")
        await self.links.create_dummy("d0")

    async def close(self) -> None:
        await self._stack.aclose()

    def monitor(self, *, only: str | None = None, except_: str | None = None, routes: bool = True) -> Monitor:
        return Monitor(only_interface=only, except_interface=except_, routes=routes)

    @property
    def kernel_version(self) -> tuple[int, int]:
        """The version of the kernel under test, for facts that hold only for some versions."""
        return kernel_version()

    def add_address(self, interface: str, address: str) -> None:
        run(f"ip addr add {address} dev {interface}")

    def delete_address(self, interface: str, address: str) -> None:
        run(f"ip addr del {address} dev {interface}")

    def add_foreign_route(self, interface: str, route: LocalRoute, *, first: bool = False) -> None:
        """Add a route, of IPv4 as the first or last of its address."""
        how = "-6 route add" if ":" in route.address else f"route {'prepend' if first else 'append'}"
        metric = f"metric {route.metric}" if route.metric else ""
        run(f"ip {how} local {route.address} dev {interface} table local src {route.source} {metric}")

    async def add_flows(self, *flows: Flow, protocol: int = UDP) -> None:
        """Add entries to conntrack, as if packets had made them; the kernel assigns their ids."""
        netlink = NetlinkSocket(NETLINK_NETFILTER)
        await netlink.open()
        refused = await netlink.transact([_new_entry(flow, protocol) for flow in flows])
        await netlink.close()
        assert not refused, f"there already: {refused}"

    def add_foreign_rule(self, table: str, chain: str, rule: str, *, first: bool = False) -> None:
        run(f"iptables-legacy -t {table} {'-I' if first else '-A'} {chain} {rule}")

    def add_foreign_chain(self, table: str, chain: str) -> None:
        run(f"iptables-legacy -t {table} -N {chain}")

    def rules(self, table: str, chain: str) -> list[str]:
        lines = run(f"iptables-legacy -t {table} -S {chain}").splitlines()
        return [line.removeprefix(f"-A {chain} ") for line in lines if line.startswith("-A ")]


def _new_entry(flow: Flow, protocol: int) -> bytes:
    return nfnetlink_message(
        NFNL_SUBSYS_CTNETLINK,
        MSG_CT_NEW,
        NLM_F_CREATE | NLM_F_EXCL,
        address_family(flow.source),
        encode_tuple(CTA_TUPLE_ORIG, flow[0:2], flow[2:4], protocol),
        encode_tuple(CTA_TUPLE_REPLY, flow[4:6], flow[6:8], protocol),
        attribute(CTA_TIMEOUT, struct.pack("!I", FLOW_TIMEOUT)),
    )


class FakeNode:
    """The fakes, on a fake kernel with the same node."""

    def __init__(self) -> None:
        self.kernel = FakeKernel()
        self.links, self.addresses = FakeLinks(self.kernel), FakeAddresses(self.kernel)
        self.routes, self.ipvs = FakeRoutes(self.kernel), FakeIpvs(self.kernel)
        self.ipset, self.xtables = FakeIpset(self.kernel), FakeXtables(self.kernel)
        self.conntrack = FakeConntrack(self.kernel)
        self.nftables, self.other_nftables = FakeNftables(self.kernel), FakeNftables(self.kernel)
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        one_each = (self.links, self.addresses, self.routes, self.ipvs, self.ipset, self.conntrack)
        for client in (*one_each, self.nftables, self.other_nftables):
            await self._stack.enter_async_context(client)
        self.kernel.add_link("e0")
        for address in (f"{NODE_IP}/24", f"{OTHER_NODE_IP}/24", f"{NODE_IP6}/64", f"{OTHER_NODE_IP6}/64"):
            self.add_address("e0", address)
        await self.links.create_dummy("d0")

    async def close(self) -> None:
        await self._stack.aclose()

    def monitor(self, *, only: str | None = None, except_: str | None = None, routes: bool = True) -> FakeMonitor:
        return FakeMonitor(self.kernel, only_interface=only, except_interface=except_, routes=routes)

    @property
    def kernel_version(self) -> tuple[int, int]:
        return self.kernel.version

    def add_address(self, interface: str, address: str) -> None:
        text, _, length = address.partition("/")
        self.kernel.add_address(interface, text, int(length.split()[0]))

    def delete_address(self, interface: str, address: str) -> None:
        self.kernel.delete_address(interface, address.partition("/")[0])

    def add_foreign_route(self, interface: str, route: LocalRoute, *, first: bool = False) -> None:
        present = self.kernel.links[interface].routes[route.address]
        before = (
            [it for it in present if it.metric < route.metric] if ":" in route.address else [] if first else present
        )
        self.kernel.set_route(interface, route, position=len(before))

    async def add_flows(self, *flows: Flow, protocol: int = UDP) -> None:
        self.conntrack.add_flows(*flows, protocol=protocol)

    def add_foreign_rule(self, table: str, chain: str, rule: str, *, first: bool = False) -> None:
        rules = self.kernel.table(socket.AF_INET, table).chains[chain]
        rules.insert(0 if first else len(rules), rule)

    def add_foreign_chain(self, table: str, chain: str) -> None:
        self.kernel.table(socket.AF_INET, table).chains[chain] = []

    def rules(self, table: str, chain: str) -> list[str]:
        return self.kernel.table(socket.AF_INET, table).chains[chain]


Node = RealNode | FakeNode
