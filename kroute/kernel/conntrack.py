"""Reads and deletes UDP flows of the connection tracker (conntrack)."""

import errno
from collections.abc import Iterable, Sequence

import msgspec

from kroute.kernel.conntrack_messages import Endpoint, Flow, encode_delete, encode_dump, pack_endpoint, parse_flow
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER

__all__ = ["Conntrack", "DeleteFlow", "Endpoint", "Flow"]

MODULE = "nf_conntrack_netlink"
WRITE_SLICE = 256
"""How many deletions are encoded before other tasks run."""


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

        The kernel dumps its whole table, in pieces between which other tasks run. A flow that begins or ends meanwhile
        may be in the result or not. Raises KernelError when the kernel refuses: EINVAL if it lacks ctnetlink.
        """
        wanted = frozenset(map(pack_endpoint, destinations))
        try:
            return await self._netlink.request(encode_dump(family), lambda _, payload: parse_flow(payload, wanted))
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
