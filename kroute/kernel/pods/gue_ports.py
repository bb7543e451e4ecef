"""The ports of UDP at which the kernel takes packets of tunnels, with the header of GUE (include/uapi/linux/fou.h)."""

import errno

from kroute.kernel.errors import raise_refusal
from kroute.kernel.netlink.client import GENERIC_HEADER, NetlinkClient, find_family, generic_message
from kroute.kernel.netlink.message import NLM_F_DUMP, attributes, be16, message, to_be16, u8
from kroute.kernel.netlink.netlink_socket import NETLINK_GENERIC

FOU, FOU_CMD_ADD, FOU_CMD_DEL, FOU_CMD_GET = "fou", 1, 2, 3
FOU_ATTR_PORT, FOU_ATTR_AF, FOU_ATTR_TYPE, FOU_ENCAP_GUE = 1, 2, 4, 2


class GuePorts(NetlinkClient):
    """The ports at which the kernel takes packets out of UDP."""

    protocol = NETLINK_GENERIC

    async def ports(self) -> set[tuple[int, int]]:
        """The families and ports of GUE. Raises KernelError: the kernel has no FOU."""
        family = await find_family(self.netlink, FOU)
        query = message(family, NLM_F_DUMP, GENERIC_HEADER.pack(FOU_CMD_GET, 1, 0))
        return set(await self.netlink.request(query, _parse_port))

    async def set_port(self, family: int, port: int, *, is_wanted: bool) -> None:
        """Have the kernel take packets at this port, or not. Raises KernelError: another program has the port."""
        kind = await find_family(self.netlink, FOU)
        body = be16(FOU_ATTR_PORT, port) + u8(FOU_ATTR_AF, family)
        if is_wanted:
            body += u8(FOU_ATTR_TYPE, FOU_ENCAP_GUE)
        refused = await self.netlink.transact(
            [generic_message(kind, 0, FOU_CMD_ADD if is_wanted else FOU_CMD_DEL, body)]
        )
        what = f"{'take' if is_wanted else 'stop taking'} packets of tunnels at UDP port {port}"
        raise_refusal(
            refused, what, "see --overlay-encap-port-number", () if is_wanted else {errno.ENOENT, errno.EINVAL}
        )


def _parse_port(payload: bytes) -> tuple[int, int] | None:
    found = attributes(payload, GENERIC_HEADER.size)
    if found.get(FOU_ATTR_TYPE) != bytes([FOU_ENCAP_GUE]) or FOU_ATTR_PORT not in found:
        return None
    return found.get(FOU_ATTR_AF, b"\0")[0], to_be16(found[FOU_ATTR_PORT])
