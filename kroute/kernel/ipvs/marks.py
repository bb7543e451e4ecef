"""Virtual servers that have a firewall mark in place of an address. Other programs make them; kroute makes none."""

import errno
import socket
from collections.abc import Sequence
from functools import partial

from kroute.kernel.errors import Change, Failure
from kroute.kernel.ipvs.messages import ATTR_SERVICE, CMD_DEL_SERVICE, FAMILY_NAME, SVC_AF, SVC_FWMARK, encode_dump
from kroute.kernel.netlink.client import GENERIC_HEADER, NetlinkClient, find_family, generic_message
from kroute.kernel.netlink.message import attributes, nested, to_u16, to_u32, u16, u32
from kroute.kernel.netlink.netlink_socket import NETLINK_GENERIC


class DeleteMarkServer(Change, frozen=True):
    """Delete the virtual server of a firewall mark, with its real servers."""

    family: int
    mark: int

    def __str__(self) -> str:
        return f"delete virtual server of mark {self.mark:#x} ({'IPv6' if self.family == socket.AF_INET6 else 'IPv4'})"


class IpvsMarks(NetlinkClient):
    """The virtual servers of firewall marks in the calling process's network namespace."""

    protocol = NETLINK_GENERIC

    async def read(self) -> list[tuple[int, int]]:
        """The address family and mark of each, sorted. Raises KernelError if ip_vs is not loaded."""
        query = encode_dump(await find_family(self.netlink, FAMILY_NAME))
        return sorted(await self.netlink.request(query, _parse))

    async def delete(self, deletions: Sequence[DeleteMarkServer]) -> list[Failure[DeleteMarkServer]]:
        """Delete virtual servers. One that no longer exists is no failure."""
        family = await find_family(self.netlink, FAMILY_NAME)
        return await self.write_each(deletions, partial(_encode, family), {errno.ESRCH})


def _encode(family: int, deletion: DeleteMarkServer) -> bytes:
    service = nested(ATTR_SERVICE, u16(SVC_AF, deletion.family), u32(SVC_FWMARK, deletion.mark))
    return generic_message(family, 0, CMD_DEL_SERVICE, service)


def _parse(payload: bytes) -> tuple[int, int] | None:
    service = attributes(attributes(payload, GENERIC_HEADER.size)[ATTR_SERVICE])
    return (to_u16(service[SVC_AF]), to_u32(service[SVC_FWMARK])) if SVC_FWMARK in service else None
