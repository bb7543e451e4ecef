"""Kernel clients that read the kernel, and record changes instead of making them.

Each wraps a client of the same kind. It inherits nothing from the real class and has no socket, so a method that is not
defined here cannot reach the kernel. A recorded change counts as made when it is read again, as far as the controllers
depend on that.
"""

import errno
from collections.abc import AsyncIterator, Awaitable, Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from kroute.kernel.clients import AddressClient, IpvsClient, LinkClient, RouteClient, SysctlClient
from kroute.kernel.conntrack import DeleteFlow, Endpoint, Flow
from kroute.kernel.digest import Digest
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.ipvs.client import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    IpvsChange,
    OptionsByServer,
    SetVirtualServer,
    StatesByServer,
    SyncDaemon,
    Traffic,
    TrafficByServer,
    VirtualServerKey,
    VirtualServerState,
)
from kroute.kernel.ipvs.outlines import Outlines
from kroute.kernel.net.addresses import AddressChange, InterfaceAddress, UnbindAddress
from kroute.kernel.net.links import LinkState
from kroute.kernel.net.routes import DeleteLocalRoute, LocalRoute, RouteChange, SetLocalRoute

T = TypeVar("T")

ADD, EDIT, DELETE = "add", "edit", "delete"

_IPVS_ACTIONS = {
    AddVirtualServer: ADD,
    AddRealServer: ADD,
    DeleteVirtualServer: DELETE,
    DeleteRealServer: DELETE,
}
_OF_VIRTUAL_SERVERS = (AddVirtualServer, SetVirtualServer, DeleteVirtualServer)
_NOT_MADE = -1
"""The index of a link that is only recorded."""


class Recorded(NamedTuple):
    """One recorded change.

    `subject` identifies it in plans: an address, a virtual server's key, a set entry. `what` is a sentence, such as
    "add real server 10.0.0.1:80 to TCP 10.96.0.1:80".
    """

    kind: str
    action: str
    what: str
    subject: Hashable = None


class Recorder:
    """The recorded changes, in order.

    `errors` are the kernel's refusals to tell its state. `unknown` are those for rules, without which the rest of the
    state is still known.
    """

    def __init__(self) -> None:
        self.changes: list[Recorded] = []
        self.errors: list[str] = []
        self.unknown: list[str] = []

    def note(self, kind: str, action: str, what: str, subject: Hashable = None) -> None:
        self.changes.append(Recorded(kind, action, what, subject))

    async def answered(self, answer: Awaitable[T]) -> T:
        """The kernel's answer. An error is stored and raised again."""
        try:
            return await answer
        except KernelError as error:
            self.errors.append(str(error))
            raise


class RecordingIpvs:
    """Virtual servers, real servers and time-outs."""

    def __init__(self, ipvs: IpvsClient, recorder: Recorder) -> None:
        self._ipvs = ipvs
        self._recorder = recorder
        self._table: dict[VirtualServerKey, VirtualServerState] = {}

    async def read(self) -> dict[VirtualServerKey, VirtualServerState]:
        self._table = await self._recorder.answered(self._ipvs.read())
        return dict(self._table)

    async def scan(
        self,
        expected: Collection[VirtualServerKey] = (),  # noqa: ARG002  `read` returns everything
    ) -> AsyncIterator[list[tuple[VirtualServerKey, VirtualServerState]]]:
        yield list((await self.read()).items())

    async def real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        return await self._recorder.answered(self._ipvs.real_servers(keys))

    async def ipv4_real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        return await self.real_servers(keys)

    async def options(self, keys: Sequence[VirtualServerKey]) -> OptionsByServer:
        return await self._recorder.answered(self._ipvs.options(keys))

    async def outlines(self) -> Outlines:
        """None: a dry run ends before it could look at them."""
        return Outlines()

    async def real_server_traffic(self, keys: Sequence[VirtualServerKey]) -> TrafficByServer:
        return await self._recorder.answered(self._ipvs.real_server_traffic(keys))

    async def write(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        """Record the changes.

        An existing virtual server is not added again (EEXIST), and an edit without effect is left out.
        """
        failures: list[Failure[IpvsChange]] = []
        for change in changes:
            state = self._table.get(change.key)
            if isinstance(change, AddVirtualServer) and state is not None:
                failures.append(Failure(change, errno.EEXIST))
                continue
            if isinstance(change, SetVirtualServer) and state is not None and state.options == change.options:
                continue
            if isinstance(change, DeleteVirtualServer):
                self._table.pop(change.key, None)
            kind = "virtual server" if isinstance(change, _OF_VIRTUAL_SERVERS) else "real server"
            self._recorder.note(kind, _IPVS_ACTIONS.get(type(change), EDIT), str(change), change.key)
        return failures

    async def traffic(self) -> dict[VirtualServerKey, Traffic]:
        return await self._recorder.answered(self._ipvs.traffic())

    async def timeouts(self) -> tuple[int, int, int]:
        return await self._recorder.answered(self._ipvs.timeouts())

    async def set_timeouts(self, tcp: int, tcpfin: int, udp: int) -> None:
        self._recorder.note("timeouts", EDIT, f"set the IPVS timeouts to {tcp} s, {tcpfin} s, {udp} s")

    async def sync_daemons(self) -> set[SyncDaemon]:
        return await self._recorder.answered(self._ipvs.sync_daemons())

    async def start_sync_daemon(self, daemon: SyncDaemon) -> None:
        self._recorder.note("sync daemon", ADD, f"start the {daemon}")

    async def stop_sync_daemon(self, daemon: SyncDaemon) -> None:
        self._recorder.note("sync daemon", DELETE, f"stop the {daemon}")


class RecordingAddresses:
    """The VIPs."""

    def __init__(self, addresses: AddressClient, recorder: Recorder) -> None:
        self._addresses = addresses
        self._recorder = recorder

    async def read(self, interface: str) -> set[str]:
        return await self._recorder.answered(self._addresses.read(interface))

    async def digest(self, interface: str) -> Digest | None:
        return await self._addresses.digest(interface)

    async def of_node(self) -> list[InterfaceAddress]:
        return await self._recorder.answered(self._addresses.of_node())

    async def write(self, interface: str, changes: Sequence[AddressChange]) -> list[Failure[AddressChange]]:
        for change in changes:
            action = DELETE if isinstance(change, UnbindAddress) else ADD
            self._recorder.note("address", action, f"{change} ({interface})", change.address)
        return []


class RecordingRoutes:
    """The source routes."""

    def __init__(self, routes: RouteClient, recorder: Recorder) -> None:
        self._routes = routes
        self._recorder = recorder
        self._present: dict[str, list[LocalRoute]] = {}

    async def read(self, interface: str) -> dict[str, list[LocalRoute]]:
        self._present = await self._recorder.answered(self._routes.read(interface))
        return self._present

    async def digest(self, interface: str, sources: Sequence[str] = ()) -> Digest | None:
        return await self._routes.digest(interface, sources)

    async def write(self, interface: str, changes: Sequence[RouteChange]) -> list[Failure[RouteChange]]:  # noqa: ARG002
        """Record the changes, except routes that exist already: the controller may write those again to be sure."""
        for change in changes:
            present = self._present.get(change.address)
            is_set = isinstance(change, SetLocalRoute) and not change.alone
            if is_set and present and present[0].source == change.source:
                continue
            action = DELETE if isinstance(change, DeleteLocalRoute) else EDIT
            self._recorder.note("route", action, str(change), change.address)
        return []


class RecordingLinks:
    """The dummy link."""

    def __init__(self, links: LinkClient, recorder: Recorder) -> None:
        self._links = links
        self._recorder = recorder
        self._made: set[str] = set()

    async def index(self, name: str) -> int | None:
        """The kernel's index, or a placeholder for a link that is only recorded."""
        return _NOT_MADE if name in self._made else await self._recorder.answered(self._links.index(name))

    async def names(self) -> set[str]:
        return await self._recorder.answered(self._links.names()) | self._made

    async def read(self, name: str) -> LinkState | None:
        return await self._recorder.answered(self._links.read(name))

    async def create_dummy(self, name: str) -> None:
        self._made.add(name)
        self._recorder.note("link", ADD, f"create link {name}")

    async def repair(self, name: str) -> None:
        self._recorder.note("link", EDIT, f"set link {name} up and NOARP")

    async def delete(self, name: str) -> None:
        self._made.discard(name)
        self._recorder.note("link", DELETE, f"delete link {name}")


class RecordingSysctls:
    """Sysctls."""

    def __init__(self, sysctls: SysctlClient, recorder: Recorder) -> None:
        self._sysctls = sysctls
        self._recorder = recorder
        self._written: dict[str, str] = {}

    def read(self, name: str) -> str | None:
        """The recorded value, else the kernel's."""
        return self._written.get(name) or self._sysctls.read(name)

    def write(self, name: str, value: str) -> None:
        was = self.read(name)
        self._written[name] = value
        self._recorder.note("sysctl", EDIT, f"set {name} to {value} (is {was})")

    def is_writable(self, name: str) -> bool:
        return self._sysctls.is_writable(name)

    def hearing_routers(self) -> list[str]:
        return self._sysctls.hearing_routers()


class NoConntrack:
    """Finds no flows: they change every second, so a dry run does not compare them."""

    async def udp_flows(self, family: int, destinations: Iterable[Endpoint]) -> list[Flow]:  # noqa: ARG002
        return []

    async def delete(self, flows: Sequence[Flow]) -> list[Failure[DeleteFlow]]:  # noqa: ARG002
        return []
