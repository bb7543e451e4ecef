"""Reads and deletes UDP flows of the connection tracker (conntrack)."""

import asyncio
import errno
import socket
from collections.abc import Iterable, Sequence

import msgspec

from kroute.kernel.conntrack_messages import (
    Endpoint,
    Flow,
    PackedEndpoint,
    encode_delete,
    encode_dump,
    pack_endpoint,
    parse_flow,
)
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.modules import kernel_version
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER

__all__ = ["Conntrack", "DeleteFlow", "Endpoint", "Flow"]

MODULE = "nf_conntrack_netlink"
WRITE_SLICE = 256
"""How many deletions are encoded before other tasks run."""
FILTERING_KERNEL = (5, 8)
"""From this version on the kernel compares the addresses and ports of a dump's CTA_FILTER."""
MOST_FILTERS = 8
"""So many dumps of one destination each are cheaper than one of all, unless there are only some hundred flows.

In the lab (Linux 7.3 and 6.1), with 20,000 flows to other destinations and 65,536 buckets: 3 to 5 ms, and 100 to 190.
"""


class DeleteFlow(msgspec.Struct, frozen=True):
    """Delete exactly this entry."""

    flow: Flow

    def __str__(self) -> str:
        return f"delete {self.flow}"


class Conntrack(NetlinkClient):
    """The connection tracker of the calling process's network namespace.

    The kernel loads its module at the first request, so a successful `open` does not show that it exists.
    """

    def __init__(self) -> None:
        super().__init__(NETLINK_NETFILTER)

    async def udp_flows(self, family: int, destinations: Iterable[Endpoint]) -> list[Flow]:
        """The UDP flows of a family that clients have opened to these addresses and ports.

        For a few destinations, the kernel is asked for flows to these addresses and ports (over IPv6: to these ports).
        For many, or where it refuses that, the kernel is asked for all UDP flows: its answer comes in pieces, between
        which other tasks run. A flow that begins or ends meanwhile may be in the result or not. Raises KernelError when
        the kernel refuses: EINVAL if it lacks ctnetlink.
        """
        wanted = frozenset(map(pack_endpoint, destinations))
        filters = _filters(family, wanted)
        try:
            if len(filters) <= MOST_FILTERS and kernel_version() >= FILTERING_KERNEL:
                try:
                    return await self._dump_each(family, filters, wanted)
                except KernelError as error:
                    if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
                        raise
            return await self._dump(encode_dump(family), wanted)
        except KernelError as error:
            if error.errno != errno.EINVAL:
                raise
            sentence = f"cannot list UDP flows: this kernel does not list its connections; load the module {MODULE}"
            raise KernelError(sentence, errno=error.errno) from error

    async def delete(self, flows: Sequence[Flow]) -> list[Failure[DeleteFlow]]:
        """Delete exactly these entries, not newer ones in their place. One that no longer exists is no failure.

        A refusal does not stop the others. Refused: EBUSY while a flow is offloaded to a flow table.
        """
        failures: list[Failure[DeleteFlow]] = []
        for start in range(0, len(flows), WRITE_SLICE):
            part = flows[start : start + WRITE_SLICE]
            refused = await self._netlink.transact([encode_delete(flow) for flow in part])
            failures += [
                Failure(DeleteFlow(part[index]), number) for index, number in refused.items() if number != errno.ENOENT
            ]
        return failures

    async def _dump_each(
        self, family: int, filters: Iterable[tuple[bytes, bytes]], wanted: frozenset[PackedEndpoint]
    ) -> list[Flow]:
        flows: list[Flow] = []
        for address, port in filters:
            flows += await self._dump(encode_dump(family, address, port), wanted)
            await asyncio.sleep(0)
        return flows

    async def _dump(self, request: bytes, wanted: frozenset[PackedEndpoint]) -> list[Flow]:
        return await self._netlink.request(request, lambda _, payload: parse_flow(payload, wanted))


def _filters(family: int, wanted: Iterable[PackedEndpoint]) -> list[tuple[bytes, bytes]]:
    """Addresses and ports whose dumps hold each wanted flow once: each address, with its port if that is the only one.

    Over IPv6 each port, because many kernels take the comparison of addresses the wrong way round.
    """
    if family != socket.AF_INET:
        return [(b"", port) for port in {port for _, port in wanted}]
    ports: dict[bytes, bytes] = {}
    for address, port in wanted:
        ports[address] = b"" if address in ports else port
    return list(ports.items())
