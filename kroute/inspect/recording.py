"""Kernel clients that read the kernel, and record changes instead of making them.

Each is made from a Protocol of `kroute.kernel.clients`: its `reads` are passed on to a real client, and every other
method stands here. It inherits nothing from the real class and has no socket, so a method that is neither cannot reach
the kernel. A recorded change counts as made when it is read again, as far as the controllers depend on that.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from inspect import isawaitable
from typing import Any, ClassVar, Generic, NamedTuple, Never, Self, TypeVar, cast, get_args

import msgspec

from kroute.kernel import clients
from kroute.kernel.conntrack import Connection, DeleteConnection, DeleteFlow, Endpoint, Ends, Flow
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.ipset import Element, SetChange, SetDefinition
from kroute.kernel.iptables.xtables import TableRules
from kroute.kernel.ipvs import objects as ipvs
from kroute.kernel.ipvs.outlines import Outlines
from kroute.kernel.net.addresses import AddressChange
from kroute.kernel.net.routes import LocalRoute, RouteChange, SetLocalRoute
from kroute.kernel.net.steering import Steer
from kroute.kernel.netlink.message import address_family
from kroute.kernel.nftables import objects as nft
from kroute.kernel.node_kernel import NodeKernel
from kroute.kernel.pods.client import LINKS
from kroute.kernel.pods.namespaces import PodNamespace
from kroute.kernel.pods.pod_network import PodTunnel
from kroute.kernel.pods.pod_routes import PodRouteChange

C = TypeVar("C")
T = TypeVar("T")

ADD, EDIT, DELETE = "add", "edit", "delete"

_ACTIONS = {"add": ADD, "bind": ADD, "make": ADD, "renew": ADD, "delete": DELETE, "unbind": DELETE}
"""By the verb with which the sentence of a change begins. All others edit."""
_NOT_MADE = -1
"""The index of a link that is only recorded."""
_NEW_RULE = 0
"""The handle of a rule of nf_tables that is only recorded; the kernel's begin with 1."""


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


class Recording(Generic[C]):
    """A client made from the Protocol `C`: it has the methods of its class, and the real client answers `reads`.

    `is_needed`: the dry run fails if the kernel does not answer one of these.
    """

    is_needed: ClassVar = True

    def __init_subclass__(cls, *, reads: Collection[str] = ()) -> None:
        for name in reads:
            setattr(cls, name, _passed_on(name))
        [of] = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]
        if _methods(cls) != _methods(of):
            raise TypeError(f"{cls.__name__} and {of.__name__} differ in {_methods(cls) ^ _methods(of)}")

    def __init__(self, client: C, recorder: Recorder) -> None:
        self._client = client
        self._recorder = recorder
        self._note = recorder.note
        self._made: dict[Any, Any] = {}
        """What is recorded and counts as made when it is read again, by its name or key."""

    def _note_change(self, kind: str, change: object, subject: Hashable = None, what: str = "") -> None:
        """Record a change of a batch; `what`: in other words than its own."""
        what = what or str(change)
        self._note(kind, _ACTIONS.get(what.partition(" ")[0], EDIT), what, subject)


def _methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if name[0] != "_" and callable(getattr(kind, name))}


def _passed_on(name: str) -> Callable[..., Any]:
    def read(self: Recording[Any], *arguments: Any) -> Any:
        answer = getattr(self._client, name)(*arguments)
        return self._recorder.answered(answer) if self.is_needed and isawaitable(answer) else answer

    return read


def recording(kernel: NodeKernel, recorder: Recorder) -> NodeKernel:
    """The clients of `kernel` for reading. The recorder gets every write. No events arrive."""

    def made(kind: Callable[..., Recording[Any]], client: C, *more: str) -> C:
        return cast(C, kind(client, recorder, *more))

    return NodeKernel(
        links=made(RecordingLinks, kernel.links),
        ipvs=made(RecordingIpvs, kernel.ipvs),
        addresses=made(RecordingAddresses, kernel.addresses),
        routes=made(RecordingRoutes, kernel.routes),
        ipset=made(RecordingIpset, kernel.ipset),
        conntrack=made(NoConntrack, kernel.conntrack),
        xtables={variant: made(RecordingXtables, each, variant.label) for variant, each in kernel.xtables.items()},
        nftables=made(RecordingNftables, kernel.nftables),
        sysctls=made(RecordingSysctls, kernel.sysctls),
        tunnels=made(RecordingTunnels, kernel.tunnels),
        pod_network=made(RecordingPodNetwork, kernel.pod_network),
        version=kernel.version,
        monitor=NoEvents,
    )


class NoEvents:
    """A source from which nothing comes, whatever it should follow. A dry run compares the state of one moment."""

    def __init__(self, **_: object) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def next(self) -> Never:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing has an end")


class RecordingLinks(Recording[clients.LinkClient], reads=("read",)):
    """The dummy link."""

    async def index(self, name: str) -> int | None:
        """The kernel's index, or a placeholder for a link that is only recorded."""
        return _NOT_MADE if name in self._made else await self._recorder.answered(self._client.index(name))

    async def names(self) -> set[str]:
        return await self._recorder.answered(self._client.names()) | self._made.keys()

    async def create_dummy(self, name: str) -> None:
        self._made[name] = _NOT_MADE
        self._note("link", ADD, f"create link {name}")

    async def repair(self, name: str) -> None:
        self._note("link", EDIT, f"set link {name} up and NOARP")

    async def delete(self, name: str) -> None:
        self._made.pop(name, None)
        self._note("link", DELETE, f"delete link {name}")


class RecordingIpvs(
    Recording[clients.IpvsClient],
    reads=("real_servers", "options", "real_server_traffic", "traffic", "timeouts", "sync_daemons"),
):
    """Virtual servers, real servers and time-outs."""

    async def read(self) -> dict[ipvs.VirtualServerKey, ipvs.VirtualServerState]:
        self._made = await self._recorder.answered(self._client.read())
        return dict(self._made)

    async def scan(
        self,
        expected: Collection[ipvs.VirtualServerKey] = (),  # noqa: ARG002  `read` returns everything
    ) -> AsyncIterator[list[tuple[ipvs.VirtualServerKey, ipvs.VirtualServerState]]]:
        yield list((await self.read()).items())

    async def ipv4_real_servers(self, keys: Sequence[ipvs.VirtualServerKey]) -> ipvs.StatesByServer:
        return await self._recorder.answered(self._client.real_servers(keys))

    async def outlines(self) -> Outlines:
        """None: a dry run ends before it could look at them."""
        return Outlines()

    async def write(self, changes: Sequence[ipvs.IpvsChange]) -> list[Failure[ipvs.IpvsChange]]:
        """Record the changes.

        An existing virtual server is not added again (EEXIST), and an edit without effect is left out.
        """
        failures: list[Failure[ipvs.IpvsChange]] = []
        for change in changes:
            state = self._made.get(change.key)
            if isinstance(change, ipvs.AddVirtualServer) and state is not None:
                failures.append(Failure(change, errno.EEXIST))
                continue
            if isinstance(change, ipvs.SetVirtualServer) and state is not None and state.options == change.options:
                continue
            if isinstance(change, ipvs.DeleteVirtualServer):
                self._made.pop(change.key, None)
            kind = "real server" if hasattr(change, "real_server") else "virtual server"
            self._note_change(kind, change, change.key)
        return failures

    async def set_timeouts(self, tcp: int, tcpfin: int, udp: int) -> None:
        self._note("timeouts", EDIT, f"set the IPVS timeouts to {tcp} s, {tcpfin} s, {udp} s")

    async def start_sync_daemon(self, daemon: ipvs.SyncDaemon) -> None:
        self._note("sync daemon", ADD, f"start the {daemon}")

    async def stop_sync_daemon(self, daemon: ipvs.SyncDaemon) -> None:
        self._note("sync daemon", DELETE, f"stop the {daemon}")


class RecordingAddresses(Recording[clients.AddressClient], reads=("read", "digest", "of_node")):
    """The VIPs."""

    async def write(self, interface: str, changes: Sequence[AddressChange]) -> list[Failure[AddressChange]]:
        for change in changes:
            self._note_change("address", change, change.address, f"{change} ({interface})")
        return []


class RecordingRoutes(Recording[clients.RouteClient], reads=("digest",)):
    """The source routes."""

    async def read(self, interface: str) -> dict[str, list[LocalRoute]]:
        self._made = await self._recorder.answered(self._client.read(interface))
        return self._made

    async def write(self, interface: str, changes: Sequence[RouteChange]) -> list[Failure[RouteChange]]:  # noqa: ARG002
        """Record the changes, except routes that exist already: the controller may write those again to be sure."""
        for change in changes:
            present = self._made.get(change.address)
            is_set = isinstance(change, SetLocalRoute) and not change.alone
            if is_set and present and present[0].source == change.source:
                continue
            self._note_change("route", change, change.address)
        return []


class RecordingSysctls(Recording[clients.SysctlClient], reads=("is_writable", "hearing_routers")):
    """Sysctls."""

    def read(self, name: str) -> str | None:
        """The recorded value, else the kernel's."""
        return self._made.get(name) or self._client.read(name)

    def write(self, name: str, value: str) -> None:
        self._note("sysctl", EDIT, f"set {name} to {value} (is {self.read(name)})")
        self._made[name] = value


class NoConntrack(Recording[clients.ConntrackClient]):
    """Finds no flows and no connections: they change every second, so a dry run does not compare them."""

    async def udp_flows(self, family: int, destinations: Iterable[Endpoint]) -> list[Flow]:  # noqa: ARG002
        return []

    async def delete(self, flows: Sequence[Flow]) -> list[Failure[DeleteFlow]]:  # noqa: ARG002
        return []

    async def connections(
        self,
        family: int,  # noqa: ARG002
        addresses: Collection[str],  # noqa: ARG002
        wanted: Callable[[Ends], bool],  # noqa: ARG002
    ) -> list[Connection]:
        return []

    async def delete_connections(
        self,
        connections: Sequence[Connection],  # noqa: ARG002
    ) -> list[Failure[DeleteConnection]]:
        return []


class RecordingTunnels(Recording[clients.TunnelClient], reads=("steered", "has_rules", "find", "strict_interface")):
    """Direct return: reads the node's routes and rules, and finds pods. None is entered.

    So of a pod it is known whether it has the end of a tunnel, and not whether all of it is right, or is ours.
    """

    is_needed = False

    async def ensure_rules(self, mark: int) -> list[str]:
        if not await self._client.has_rules(mark):
            self._note("direct return", ADD, f"rules for packets with mark {mark:#x}", "")
        return []

    async def steer(self, changes: Sequence[Steer]) -> list[Failure[Steer]]:
        for change in changes:
            action = ADD if change.is_wanted else DELETE
            self._note("direct return", action, f"deliver packets to {change.address}", change.address)
        return []

    async def remove(self) -> bool:
        return False

    async def undo(self, namespace: PodNamespace, family: int) -> bool:  # noqa: ARG002
        return False

    async def has_address(self, namespace: PodNamespace, address: str) -> bool:
        return address in namespace.addresses

    async def prepare(self, namespace: PodNamespace, tunnel: PodTunnel) -> list[str]:
        link = LINKS[address_family(tunnel.address)]
        if link not in namespace.links:
            self._note("direct return", ADD, f"end of a tunnel {link} in pod {tunnel.address}", min(tunnel.vips))
        return []


class RecordingPodNetwork(Recording[clients.PodNetworkClient], reads=("read", "digest", "rules", "mtu", "ports")):
    """Routes and tunnels to other nodes' pods."""

    async def write(self, changes: Sequence[PodRouteChange]) -> list[Failure[PodRouteChange]]:
        for change in changes:
            self._note_change("pod route", change)
        return []

    async def set_port(self, family: int, port: int, *, is_wanted: bool) -> None:  # noqa: ARG002  one sentence for both
        action = ADD if is_wanted else DELETE
        self._note("pod route", action, f"take packets of tunnels at UDP port {port}")


class RecordingIpset(Recording[clients.IpsetClient], reads=("digest",)):
    """The sets and their entries."""

    async def names(self) -> set[str]:
        """The names of the kernel's sets, and of those that are only recorded."""
        return await self._recorder.answered(self._client.names()) | self._made.keys()

    async def definition(self, name: str) -> SetDefinition | None:
        """The recorded definition, else the kernel's."""
        return self._made.get(name) or await self._recorder.answered(self._client.definition(name))

    async def create(self, definition: SetDefinition) -> bool:
        self._made[definition.name] = definition
        self._note("set", ADD, f"create set {definition.name} ({definition.type})")
        return True

    async def read(self, name: str) -> set[Element]:
        """The kernel's entries. A set that is only recorded has none."""
        return set() if name in self._made else await self._recorder.answered(self._client.read(name))

    async def write(self, changes: Sequence[SetChange]) -> list[Failure[SetChange]]:
        for change in changes:
            self._note_change("set entry", change, (change.set, change.element))
        return []

    async def swap(self, name: str, other: str) -> None:
        self._note("set", EDIT, f"swap the sets {name} and {other}")

    async def destroy(self, name: str) -> None:
        self._made.pop(name, None)
        self._note("set", DELETE, f"destroy set {name}")


class RecordingXtables(Recording[clients.XtablesClient], reads=("is_used", "chains", "packets", "digest")):
    """The rules of one family. Unreadable tables are no error of the dry run: the family may not exist on the node."""

    is_needed = False

    def __init__(self, client: clients.XtablesClient, recorder: Recorder, variant: str) -> None:
        super().__init__(client, recorder)
        self._variant = variant

    async def ensure(self, rules: TableRules) -> list[str]:
        """Record the differences."""
        found = await self.differences(rules)
        for what in found:
            self._note("rules", EDIT, f"write the {self._variant} rules of table {rules.table}: {what}")
        return found

    async def differences(self, rules: TableRules) -> list[str]:
        """The differences from the kernel's rules. An unused table is not read: that would create it."""
        if not await self._client.is_used(rules.table):
            return [f"chain {name} is missing" for name in rules.chains]
        try:
            return await self._client.differences(rules)
        except KernelError as error:
            self._recorder.unknown.append(f"the {self._variant} rules cannot be compared: {error}")
            raise

    async def remove(self, table: str, prefix: str) -> list[str]:
        self._note("rules", DELETE, f"remove the {self._variant} chains {prefix}... of table {table}")
        return []


class RecordingNftables(
    Recording[clients.NftablesClient], reads=("chains", "tables", "validate", "foreign_generation")
):
    """Tables with their sets, chains and rules. What is recorded counts as made when a table is read again."""

    async def transact(self, table: nft.Table, changes: Sequence[nft.NftChange]) -> list[Failure[nft.NftChange]]:
        """Record the changes, except a table that exists already and is not dormant, and that a new set is emptied."""
        state = await self.read(table)
        for change in changes:
            if isinstance(change, nft.AddTable) and state is not None and not state.is_dormant:
                continue
            if isinstance(change, nft.FlushSet) and (table, change.name) in self._made:
                continue
            self._note_in(table, change)
            if isinstance(change, nft.AddSet | nft.FlushSet):
                self._made[table, change.set.name if isinstance(change, nft.AddSet) else change.name] = ()
            state = _changed(state, change)
        self._made[table] = state
        return []

    async def write(self, table: nft.Table, changes: Sequence[nft.ElementChange]) -> list[Failure[nft.NftChange]]:
        for change in changes:
            self._note_in(table, change)
        return []

    async def read(self, table: nft.Table) -> nft.TableState | None:
        """The recorded table, else the kernel's."""
        if table not in self._made:
            self._made[table] = await self._recorder.answered(self._client.read(table))
        state: nft.TableState | None = self._made[table]
        return state

    async def elements(self, table: nft.Table, of: nft.NftSet) -> AsyncIterator[list[nft.Element]]:
        """The kernel's elements. A set that is only recorded, or is emptied, has none."""
        if (table, of.name) not in self._made:
            async for part in self._client.elements(table, of):
                yield part

    def foreign_changes(self, tables: Collection[nft.Table]) -> NoEvents:  # noqa: ARG002
        return NoEvents()

    def _note_in(self, table: nft.Table, change: nft.NftChange) -> None:
        if isinstance(change, nft.AddElements | nft.DeleteElements):
            for element in change.elements:
                of_one = msgspec.structs.replace(change, elements=(element,))
                self._note_change("set entry", of_one, (f"{table} {change.set.name}", element))
        elif isinstance(change, nft.AddTable | nft.DeleteTable):
            self._note_change("rules", change, what=f"{change} {table}".replace("the table", "table"))
        else:
            kind = "set" if isinstance(change, nft.AddSet | nft.DeleteSet | nft.FlushSet) else "rules"
            self._note_change(kind, change, what=f"{change} of table {table}")


def _changed(state: nft.TableState | None, change: nft.NftChange) -> nft.TableState | None:
    """The table after a change of sets, chains or rules."""
    if isinstance(change, nft.DeleteTable):
        return None
    sets, chains, rules, is_dormant = state or nft.TableState({}, {}, [])
    match change:
        case nft.AddTable():
            is_dormant = False
        case nft.AddSet(definition):
            sets = {**sets, definition.name: definition}
        case nft.DeleteSet(name):
            sets = {key: kept for key, kept in sets.items() if key != name}
        case nft.AddChain(chain):
            chains = {**chains, chain.name: chain}
        case nft.DeleteChain(name):
            chains = {key: kept for key, kept in chains.items() if key != name}
        case nft.AddRule(rule):
            rules = [*rules, (_NEW_RULE, rule)]
        case nft.FlushChain(name):
            rules = [(handle, rule) for handle, rule in rules if rule.chain != name]
        case nft.DeleteRule(name, handle):
            rules = [(number, rule) for number, rule in rules if (rule.chain, number) != (name, handle)]
    order = list(chains)
    rules = sorted(rules, key=lambda numbered: order.index(numbered[1].chain) if numbered[1].chain in order else 0)
    return nft.TableState(sets, chains, rules, is_dormant)
