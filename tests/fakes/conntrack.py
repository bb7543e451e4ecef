"""The connection tracker of a fake kernel."""

import errno
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence

from kroute.kernel.conntrack import Connection, DeleteConnection, DeleteFlow, Endpoint, Ends, Flow
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.netlink.message import address_family
from tests.fakes.client import FakeClient
from tests.fakes.kernel import Operation

UDP = 17


class FakeConntrack(FakeClient):
    """Same shape as kroute.kernel.conntrack.Conntrack."""

    async def udp_flows(self, family: int, destinations: Iterable[Endpoint]) -> list[Flow]:
        self.check_open()
        if "nf_conntrack_netlink" in self.kernel.missing_modules:
            raise KernelError("cannot list UDP flows; load the module nf_conntrack_netlink", errno=errno.EINVAL)
        if number := self.kernel.refusal(Operation("list UDP flows", str(family))):
            raise KernelError("cannot list UDP flows", errno=number)
        wanted = set(destinations)
        return [
            flow
            for protocol, flow in self.kernel.flows
            if protocol == UDP
            and address_family(flow.source) == family
            and (flow.destination, flow.destination_port) in wanted
        ]

    async def delete(self, flows: Sequence[Flow]) -> list[Failure[DeleteFlow]]:
        self.check_open()
        failures = []
        for flow in flows:
            change = DeleteFlow(flow)
            number = self.kernel.refusal(change) or self._delete(flow)
            if not number:
                self.kernel.writes.append(change)
            elif number != errno.ENOENT:
                failures.append(Failure(change, number))
        return failures

    async def connections(
        self, family: int, addresses: Collection[str], wanted: Callable[[Ends], bool]
    ) -> list[Connection]:
        self.check_open()
        if number := self.kernel.refusal(Operation("list connections", str(family))):
            raise KernelError("cannot list connections", errno=number)
        listed = [
            _connection(protocol, flow)
            for protocol, flow in self.kernel.flows
            if address_family(flow.source) == family and not {flow.source, flow.reply_source}.isdisjoint(addresses)
        ]
        return [connection for connection in listed if wanted(connection.ends)]

    async def delete_connections(self, connections: Sequence[Connection]) -> list[Failure[DeleteConnection]]:
        self.check_open()
        failures = []
        for change in map(DeleteConnection, connections):
            present = [entry for entry in self.kernel.flows if _connection(*entry) == change.connection]
            if number := self.kernel.refusal(change):
                failures.append(Failure(change, number))
            elif present:
                self.kernel.flows.remove(present[0])
                self.kernel.writes.append(change)
        return failures

    def add_flows(self, *flows: Flow, protocol: int = UDP) -> None:
        """Add flows, as clients open them. An id depends on the original tuple alone, so equal flows have equal ids."""
        for flow in flows:
            clashes = [
                present
                for other, present in self.kernel.flows
                if other == protocol and (present[:4] == flow[:4] or present[4:8] == flow[4:8])
            ]
            assert not clashes, f"there already: {clashes}"
            self.kernel.flows.append((protocol, flow._replace(id=zlib.crc32(repr(flow[:4]).encode()))))

    def _delete(self, flow: Flow) -> int:
        """Delete an entry by its reply tuple and zone, as the kernel looks it up."""
        for entry in self.kernel.flows:
            protocol, present = entry
            if protocol == UDP and present[4:10] == flow[4:10]:
                self.kernel.flows.remove(entry)
                return 0
        return errno.ENOENT


def _connection(protocol: int, flow: Flow) -> Connection:
    entry = repr((protocol, *flow[4:])).encode()
    ends = Ends(protocol, flow.source, flow.reply_source, flow.reply_source_port)
    return Connection(ends, flow[2:4], entry)
