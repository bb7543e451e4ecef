"""What may be asked of the kernel: one Protocol for each client of `NodeKernel`.

A controller's constructor names these and not the classes with the sockets. The classes with the sockets, those that
record (`kroute.inspect.dry_run`) and the fakes of the tests have nothing in common but these methods, so that a
recording client cannot inherit a way to the kernel, and mypy finds a client that lacks a method. Opening and closing
are left out on purpose: they belong to whoever opened the bundle.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from kroute.kernel.conntrack import DeleteFlow, Endpoint, Flow
from kroute.kernel.errors import Failure
from kroute.kernel.ipset import Element, SetChange, SetDefinition
from kroute.kernel.iptables.xtables import TableRules
from kroute.kernel.ipvs.client import (
    IpvsChange,
    RealServerKey,
    RealServerState,
    SyncDaemon,
    Traffic,
    VirtualServerKey,
    VirtualServerState,
)
from kroute.kernel.net.addresses import AddressChange, InterfaceAddress
from kroute.kernel.net.links import LinkState
from kroute.kernel.net.monitor import Event, Overrun
from kroute.kernel.net.routes import LocalRoute, RouteChange


class LinkClient(Protocol):
    """Links, by their names."""

    async def index(self, name: str) -> int | None:
        """The kernel's number of the link; None if there is none."""

    async def read(self, name: str) -> LinkState | None:
        """Its state; None if there is none."""

    async def create_dummy(self, name: str) -> None:
        """Make a dummy link that is up and does no ARP."""

    async def repair(self, name: str) -> None:
        """Set the link up, without ARP and without a link-local address."""

    async def delete(self, name: str) -> None:
        """Delete the link, if it is there."""


class VirtualServerTable(Protocol):
    """The virtual servers of IPVS with their real servers."""

    def scan(
        self, expected: Collection[VirtualServerKey] = ()
    ) -> AsyncIterator[list[tuple[VirtualServerKey, VirtualServerState]]]:
        """All of them, in parts; `expected` are looked up one by one if the kernel's listing left them out."""

    async def real_servers(
        self, keys: Sequence[VirtualServerKey]
    ) -> dict[VirtualServerKey, dict[RealServerKey, RealServerState]]:
        """The real servers of these virtual servers."""

    async def write(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        """Make the changes in order; returns those that the kernel refused."""


class TimeoutClient(Protocol):
    """The timeouts of IPVS: TCP, TCP after FIN, UDP, in seconds."""

    async def timeouts(self) -> tuple[int, int, int]:
        """Those of now."""

    async def set_timeouts(self, tcp: int, tcpfin: int, udp: int) -> None:
        """Set them; 0 leaves one as it is."""


class SyncDaemonClient(Protocol):
    """The daemons that send the connections of IPVS to another machine, or take them from there."""

    async def sync_daemons(self) -> set[SyncDaemon]:
        """Those that run."""

    async def start_sync_daemon(self, daemon: SyncDaemon) -> None:
        """Start one."""

    async def stop_sync_daemon(self, daemon: SyncDaemon) -> None:
        """Stop one."""


class IpvsClient(VirtualServerTable, TimeoutClient, SyncDaemonClient, Protocol):
    """All of IPVS."""

    async def read(self) -> dict[VirtualServerKey, VirtualServerState]:
        """The whole table."""

    async def traffic(self) -> dict[VirtualServerKey, Traffic]:
        """What each virtual server has counted since it was made."""


class AddressClient(Protocol):
    """The addresses of interfaces."""

    async def read(self, interface: str) -> set[str]:
        """Those of one interface."""

    async def of_node(self) -> list[InterfaceAddress]:
        """Those of all interfaces."""

    async def write(self, interface: str, changes: Sequence[AddressChange]) -> list[Failure[AddressChange]]:
        """Make the changes in order; returns those that the kernel refused."""


class RouteClient(Protocol):
    """The routes of table local to single addresses."""

    async def read(self, interface: str) -> dict[str, list[LocalRoute]]:
        """Those of one interface, by address; the first of an address wins."""

    async def write(self, interface: str, changes: Sequence[RouteChange]) -> list[Failure[RouteChange]]:
        """Make the changes in order; returns those that the kernel refused."""


class IpsetClient(Protocol):
    """IP sets."""

    async def names(self) -> set[str]:
        """The names of all sets."""

    async def definition(self, name: str) -> SetDefinition | None:
        """The set's type and size; None if there is no such set."""

    async def create(self, definition: SetDefinition) -> bool:
        """Make the set; whether it was not there. KernelError if there is one of another type."""

    async def read(self, name: str) -> set[Element]:
        """The elements of a set. KernelError (ENOENT) if there is no such set."""

    async def write(self, changes: Sequence[SetChange]) -> list[Failure[SetChange]]:
        """Make the changes in order; returns those that the kernel refused."""

    async def destroy(self, name: str) -> None:
        """Destroy the set, if it is there. KernelError (EBUSY) while a rule uses it."""


class ConntrackClient(Protocol):
    """UDP flows in the connection tracker."""

    async def udp_flows(self, family: int, destinations: Iterable[Endpoint]) -> list[Flow]:
        """The flows to these destinations. `family` is AF_INET or AF_INET6."""

    async def delete(self, flows: Sequence[Flow]) -> list[Failure[DeleteFlow]]:
        """Forget these flows; one that is gone already is no failure."""


class XtablesClient(Protocol):
    """The iptables rules of one family."""

    async def ensure(self, rules: TableRules) -> list[str]:
        """Make the rules of a table so; returns what was wrong, in words."""

    async def differences(self, rules: TableRules) -> list[str]:
        """What `ensure` would find wrong."""

    async def remove(self, table: str, prefix: str) -> list[str]:
        """Delete every chain whose name has the prefix, and every jump to one; returns what was deleted, in words."""

    async def is_used(self, table: str) -> bool:
        """Whether anybody has used the table since the machine started: reading another one makes it."""

    async def chains(self, table: str) -> list[str]:
        """The names of a table's chains; none if nobody has used it."""

    async def supports_random_fully(self) -> bool:
        """Whether MASQUERADE knows --random-fully."""


class SysctlClient(Protocol):
    """Sysctls, by names such as `net.ipv4.ip_forward`."""

    def read(self, name: str) -> str | None:
        """The value; None if there is no such sysctl."""

    def write(self, name: str, value: str) -> None:
        """Set it. KernelError if that cannot be done."""

    def is_writable(self, name: str) -> bool:
        """Whether this process may set it."""


class EventSource(AbstractAsyncContextManager["EventSource"], Protocol):
    """Events of the kernel, from when it is entered."""

    async def next(self) -> list[Event | Overrun]:
        """Wait for events, and return every one that waits. After an Overrun the state must be read again."""


class MonitorFactory(Protocol):
    """Makes an event source; what the arguments mean is said at `kroute.kernel.net.monitor.Monitor`."""

    def __call__(
        self,
        *,
        only_interface: str | None = None,
        except_interface: str | None = None,
        addresses: bool = True,
        other_addresses: bool = False,
        routes: bool = True,
    ) -> EventSource:
        """Make one that is not yet open."""
