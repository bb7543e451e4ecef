"""One Protocol for each client of `NodeKernel`: its methods that read and write the kernel.

A controller's constructor takes these Protocols, not the classes with sockets. The classes with sockets, the recording
clients (`kroute.inspect.recording`) and the fakes of the tests share nothing but these methods. So a recording client
cannot inherit a method that writes to the kernel, and a client that lacks a method is found. The Protocols do not
have `open` and `close`, because only the code that makes the bundle may call those.

Importing this module loads no client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kroute.kernel.bird import Session
    from kroute.kernel.cni import PodsBridge
    from kroute.kernel.conntrack import Connection, DeleteConnection, DeleteFlow, Endpoint, Ends, Flow
    from kroute.kernel.digest import Digest
    from kroute.kernel.errors import Failure
    from kroute.kernel.ipset import Element, SetChange, SetDefinition
    from kroute.kernel.iptables.xtables import TableRules
    from kroute.kernel.ipvs.objects import (
        IpvsChange,
        OptionsByServer,
        StatesByServer,
        SyncDaemon,
        Traffic,
        TrafficByServer,
        VirtualServerKey,
        VirtualServerState,
    )
    from kroute.kernel.ipvs.outlines import Outlines
    from kroute.kernel.net.addresses import AddressChange, InterfaceAddress
    from kroute.kernel.net.links import LinkState
    from kroute.kernel.net.monitor import Event, Overrun
    from kroute.kernel.net.routes import LocalRoute, RouteChange
    from kroute.kernel.net.steering import Steer
    from kroute.kernel.nftables import objects as nft
    from kroute.kernel.nftables.objects import ElementChange, NftChain, NftChange, Table, TableState
    from kroute.kernel.pods.namespaces import PodNamespace
    from kroute.kernel.pods.pod_network import PodTunnel
    from kroute.kernel.pods.pod_routes import PodRoute, PodRouteChange, Tunnel


class BirdClient(Protocol):
    """BIRD, which speaks BGP. It is no part of the kernel, and of no bundle. All raise BirdError, a KernelError."""

    def read(self) -> str | None:
        """The configuration that was written last; None: there is none that can be read."""

    def remove(self) -> None:
        """Remove the configuration that was written last. A BIRD that runs goes on with it."""

    async def has(self, text: str) -> bool:
        """Whether this text is what BIRD has read last."""

    async def sessions(self) -> list[Session]:
        """All BGP sessions."""

    async def configure(self, text: str) -> None:
        """Have BIRD read this text. If BIRD refuses it, nothing has changed."""


class LinkClient(Protocol):
    """Links, which are named by their interface names."""

    async def index(self, name: str) -> int | None:
        """The link's index in the kernel; None if it does not exist."""

    async def names(self) -> set[str]:
        """The names of all links."""

    async def read(self, name: str) -> LinkState | None:
        """The link's state; None if it does not exist."""

    async def create_dummy(self, name: str) -> None:
        """Make a dummy link that is up and does no ARP."""

    async def repair(self, name: str) -> None:
        """Set the link up, without ARP and without a link-local address."""

    async def delete(self, name: str) -> None:
        """Delete the link, if it exists."""


class VirtualServerScan(Protocol):
    """The virtual servers of IPVS with their real servers, read in parts."""

    def scan(
        self, expected: Collection[VirtualServerKey] = ()
    ) -> AsyncIterator[list[tuple[VirtualServerKey, VirtualServerState]]]:
        """All virtual servers, in parts. Those of `expected` that the kernel's listing omits are looked up singly."""


class IpvsReader(VirtualServerScan, Protocol):
    """What the figures of Services are read from."""

    async def traffic(self) -> dict[VirtualServerKey, Traffic]:
        """Each virtual server's traffic counters since it was made."""


class VirtualServerTable(VirtualServerScan, Protocol):
    """The virtual servers of IPVS with their real servers."""

    async def real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        """The real servers of these virtual servers."""

    async def ipv4_real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        """The IPv4 real servers of these IPv4 virtual servers, in a tenth of the time; the kernel may refuse that."""

    async def options(self, keys: Sequence[VirtualServerKey]) -> OptionsByServer:
        """The options of those of these virtual servers that exist."""

    async def outlines(self) -> Outlines:
        """The outlines of all IPv4 virtual servers without a firewall mark."""

    async def real_server_traffic(self, keys: Sequence[VirtualServerKey]) -> TrafficByServer:
        """The traffic of these virtual servers' real servers, without those whose answers bypass this machine."""

    async def write(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        """Make the changes in order; returns those that the kernel refused."""


class TimeoutClient(Protocol):
    """The timeouts of IPVS: TCP, TCP after FIN, UDP, in seconds."""

    async def timeouts(self) -> tuple[int, int, int]:
        """The timeouts that are in force."""

    async def set_timeouts(self, tcp: int, tcpfin: int, udp: int) -> None:
        """Set the timeouts; 0 leaves one as it is."""


class SyncDaemonClient(Protocol):
    """The daemons that send the connections of IPVS to other machines, or receive them from there."""

    async def sync_daemons(self) -> set[SyncDaemon]:
        """The daemons that are running."""

    async def start_sync_daemon(self, daemon: SyncDaemon) -> None:
        """Start a daemon."""

    async def stop_sync_daemon(self, daemon: SyncDaemon) -> None:
        """Stop a daemon."""


class IpvsClient(VirtualServerTable, IpvsReader, TimeoutClient, SyncDaemonClient, Protocol):
    """All of IPVS."""

    async def read(self) -> dict[VirtualServerKey, VirtualServerState]:
        """The whole table."""


class AddressClient(Protocol):
    """The addresses of interfaces."""

    async def read(self, interface: str) -> set[str]:
        """The addresses of one interface."""

    async def digest(self, interface: str) -> Digest | None:
        """A digest of the addresses of one interface, and how many there are; None if it does not exist."""

    async def of_node(self) -> list[InterfaceAddress]:
        """The addresses of all interfaces."""

    async def write(self, interface: str, changes: Sequence[AddressChange]) -> list[Failure[AddressChange]]:
        """Make the changes in order; returns those that the kernel refused."""


class RouteClient(Protocol):
    """The routes of table local to single addresses."""

    async def read(self, interface: str) -> dict[str, list[LocalRoute]]:
        """The routes of one interface, by address; the first of an IPv4 address wins."""

    async def digest(self, interface: str, sources: Sequence[str] = ()) -> Digest | None:
        """A digest of the routes of one interface, and how many have each of the sources; None if it does not exist."""

    async def write(self, interface: str, changes: Sequence[RouteChange]) -> list[Failure[RouteChange]]:
        """Make the changes in order; returns those that the kernel refused."""


class TunnelClient(Protocol):
    """What direct return needs; `kroute.kernel.pods.client.Tunnels` explains each. All raise KernelError."""

    async def steered(self) -> set[str]:
        """The addresses on no link of which packets are delivered to this node."""

    async def has_rules(self, mark: int) -> bool:
        """Whether the rules that lead marked packets to these addresses are there, and no others of ours."""

    async def ensure_rules(self, mark: int) -> list[str]:
        """Have the rules that lead marked packets to these addresses; returns what was not so."""

    async def steer(self, changes: Sequence[Steer]) -> list[Failure[Steer]]:
        """Make the changes in order; returns those that the kernel refused."""

    async def remove(self) -> bool:
        """Delete rules and routes; returns whether there were any."""

    async def find(self, addresses: Collection[str]) -> list[PodNamespace]:
        """The namespaces with one of these addresses, or with a link that has the name of ours."""

    async def has_address(self, namespace: PodNamespace, address: str) -> bool:
        """Whether the namespace has the address; certain, unlike what `find` has seen."""

    async def prepare(self, namespace: PodNamespace, tunnel: PodTunnel) -> list[str]:
        """Make a pod an end of a tunnel; returns what was not so."""

    async def undo(self, namespace: PodNamespace, family: int) -> bool:
        """Take away what is ours in a pod; returns whether there was something."""

    async def strict_interface(self, pod: str) -> str | None:
        """The interface towards a pod if it drops the pod's answers from VIPs; else None."""


class PodNetworkClient(Protocol):
    """What connects pods; `kroute.kernel.pods.pod_routes` explains each. All raise KernelError."""

    async def read(self) -> tuple[dict[str, PodRoute], dict[str, Tunnel]]:
        """Our routes by network, and our tunnels by link."""

    async def digest(self) -> Digest:
        """A digest of our routes, with their number."""

    async def rules(self) -> set[str]:
        """The networks of this node's pods for which there are rules."""

    async def mtu(self, interfaces: Collection[str], families: Collection[int] = ()) -> int | None:
        """The smallest MTU of these interfaces and of these families' default routes; None if none of them exists."""

    async def write(self, changes: Sequence[PodRouteChange]) -> list[Failure[PodRouteChange]]:
        """Make the changes; returns those that the kernel refused."""

    async def ports(self) -> set[tuple[int, int]]:
        """The families and ports at which the kernel takes packets of tunnels out of UDP."""

    async def set_port(self, family: int, port: int, *, is_wanted: bool) -> None:
        """Have the kernel take packets of tunnels at this port, or not."""


class CniClient(Protocol):
    """Where container runtimes find how pods get their network. It is no part of the kernel, and of no bundle."""

    def read(self) -> str | None:
        """What kroute has written; None: nothing."""

    def bridge_in_use(self) -> PodsBridge | None:
        """What pods of this node are on, by what kroute or kube-router has written; None: neither has.

        Raises KernelError.
        """

    def write(self, text: str) -> None:
        """Write it in one step. Raises KernelError."""

    def remove(self) -> bool:
        """Delete it; returns whether there was something. Raises KernelError."""


class ConntrackClient(Protocol):
    """UDP flows, and connections of all protocols, in the connection tracker."""

    async def udp_flows(self, family: int, destinations: Iterable[Endpoint]) -> list[Flow]:
        """The flows to these destinations. `family` is AF_INET or AF_INET6."""

    async def delete(self, flows: Sequence[Flow]) -> list[Failure[DeleteFlow]]:
        """Delete these flows. One that no longer exists is no failure."""

    async def connections(
        self, family: int, addresses: Collection[str], wanted: Callable[[Ends], bool]
    ) -> list[Connection]:
        """Those wanted among the connections that these addresses have begun or answer."""

    async def delete_connections(self, connections: Sequence[Connection]) -> list[Failure[DeleteConnection]]:
        """Delete these connections. One that no longer exists is no failure."""


class SysctlClient(Protocol):
    """Sysctls, by names such as `net.ipv4.ip_forward`."""

    def read(self, name: str) -> str | None:
        """The value; None if the kernel has no such sysctl."""

    def write(self, name: str, value: str) -> None:
        """Set the value. Raises KernelError when the kernel refuses."""

    def is_writable(self, name: str) -> bool:
        """Whether this process may set the sysctl."""

    def hearing_routers(self) -> list[str]:
        """The interfaces by which the kernel has learned IPv6 routes from routers, in the spelling of sysctls."""


class EventSource(AbstractAsyncContextManager["EventSource"], Protocol):
    """Events of the kernel, from the moment at which the context manager is entered."""

    async def next(self) -> list[Event | Overrun]:
        """Wait for events, and return those that wait. After an Overrun the state must be read again."""


class MonitorFactory(Protocol):
    """Makes an event source; `kroute.kernel.net.monitor.Monitor` explains the arguments."""

    def __call__(
        self,
        *,
        only_interface: str | None = None,
        except_interface: str | None = None,
        other_addresses: bool = False,
        routes: bool = True,
    ) -> EventSource:
        """Make an event source that is not open yet."""


class IpsetClient(Protocol):
    """IP sets."""

    async def names(self) -> set[str]:
        """The names of all sets."""

    async def definition(self, name: str) -> SetDefinition | None:
        """The set's type and size; None if it does not exist."""

    async def create(self, definition: SetDefinition) -> bool:
        """Make the set; returns False if one that fits exists. Raises KernelError EEXIST for one that does not fit."""

    async def read(self, name: str) -> set[Element]:
        """The elements of a set. Raises KernelError ENOENT if it does not exist."""

    async def digest(self, name: str) -> Digest | None:
        """A digest of a set, and how many elements it has; None if it does not exist."""

    async def write(self, changes: Sequence[SetChange]) -> list[Failure[SetChange]]:
        """Make the changes in order; returns those that the kernel refused."""

    async def swap(self, name: str, other: str) -> None:
        """Let two sets of one type change names in one step. KernelError without either, or for other types."""

    async def destroy(self, name: str) -> None:
        """Destroy the set, if it exists. Raises KernelError EBUSY while a rule or another set uses it."""


class XtablesClient(Protocol):
    """The iptables rules of one family."""

    async def ensure(self, rules: TableRules) -> list[str]:
        """Write the rules of a table that are missing or wrong; returns what was wrong, in words."""

    async def differences(self, rules: TableRules) -> list[str]:
        """What `ensure` would find wrong."""

    async def remove(self, table: str, prefix: str) -> list[str]:
        """Delete every chain whose name has the prefix, and every jump to one; returns what was deleted, in words."""

    async def is_used(self, table: str) -> bool:
        """Whether the table exists. The kernel makes a table when a program first reads or writes it."""

    async def chains(self, table: str) -> list[str]:
        """The names of a table's chains, perhaps without those that are built in; none if the table does not exist."""

    async def packets(self, table: str) -> Mapping[str, Sequence[int]]:
        """How many packets have matched each rule of a legacy table, by its chain, without those that are built in."""

    async def digest(self, tables: Sequence[str]) -> Digest:
        """A digest of these tables, without their counters, and how many of them exist."""


class ForeignChanges(AbstractAsyncContextManager["ForeignChanges"], Protocol):
    """Changes to some nf_tables tables by other sockets, from the moment at which the context manager is entered."""

    async def next(self) -> str:
        """Wait until another program has changed one of the tables; returns which, in words.

        One call may stand for many changes. It also returns when events were lost. The tables must be read again after
        each call.
        """


class NftablesClient(Protocol):
    """nf_tables. A change is refused with an errno that its class names; `kroute.kernel.nftables.objects` has them."""

    async def chains(self) -> list[NftChain]:
        """All chains of all families and programs; none if the kernel has not loaded nf_tables."""

    async def tables(self) -> list[tuple[str, str]]:
        """The family's name in nft(8) and the name of each table; none as above."""

    async def transact(self, table: Table, changes: Sequence[NftChange]) -> list[Failure[NftChange]]:
        """Make all changes in order, at one moment for packets; or none of them, and return those that are refused.

        Of changes of elements every refused element is returned, each as a change of its own. The event loop waits
        while the kernel works: some 10 us for each element. Raises KernelError when the outcome is unknown.
        """

    async def validate(self, table: Table, changes: Sequence[NftChange]) -> list[Failure[NftChange]]:
        """What `transact` would return. The kernel checks everything, loads the modules, and changes nothing."""

    async def write(self, table: Table, changes: Sequence[ElementChange]) -> list[Failure[NftChange]]:
        """Make changes of elements in order, in transactions so short that other tasks run every few milliseconds.

        Refused elements do not stop the others. One that is there already, or is gone already, is no failure.
        """

    async def read(self, table: Table) -> TableState | None:
        """Sets, chains and rules; None if there is no such table. Raises KernelError EINTR if it changes too fast."""

    def elements(self, table: Table, of: nft.NftSet) -> AsyncIterator[list[nft.Element]]:
        """The elements of a set, in parts of some hundreds. Raises KernelError ENOENT if there is no such set."""

    async def foreign_generation(self) -> int:
        """A number that stays the same as long as no other socket commits a transaction, to any table."""

    def foreign_changes(self, tables: Collection[Table]) -> ForeignChanges:
        """Follow changes of these tables that other sockets make. The caller opens what it gets."""
