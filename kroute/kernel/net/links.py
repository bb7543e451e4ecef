"""Links, and the dummy interface that carries the VIPs."""

import errno
import socket
from socket import AF_INET6, AF_UNSPEC

import msgspec

from kroute.kernel.errors import KernelError, none_if_refused, raise_refusal
from kroute.kernel.netlink.client import NetlinkClient, only
from kroute.kernel.netlink.message import NLM_F_CREATE, NLM_F_EXCL, attributes, message, nested, text, to_text, u8
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE
from kroute.kernel.netlink.rtnetlink import (
    ADDR_GEN_MODE_NONE,
    IFF_NOARP,
    IFF_UP,
    IFLA_AF_SPEC,
    IFLA_IFNAME,
    IFLA_INET6_ADDR_GEN_MODE,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    LINK_HEADER,
    RTM_DELLINK,
    RTM_GETLINK,
    RTM_NEWLINK,
    RTM_SETLINK,
    interface_index,
)

DUMMY = "dummy"
TUNNELS = "kroute-"
"""What the names of tunnels to other nodes begin with. That of the bridge of pods does, too."""


class LinkState(msgspec.Struct, frozen=True):
    """A link as the kernel has it. `link_local`: the kernel gives it an IPv6 link-local address."""

    ifindex: int
    kind: str
    up: bool
    noarp: bool
    link_local: bool

    @property
    def is_right(self) -> bool:
        """Whether it is as `Links.create_dummy` makes it."""
        return self.kind == DUMMY and self.up and self.noarp and not self.link_local


class Links(NetlinkClient):
    """The links of the calling process's network namespace."""

    protocol = NETLINK_ROUTE

    async def index(self, name: str) -> int | None:
        """The link's index; None if no link has that name."""
        return interface_index(name)

    async def names(self) -> set[str]:
        """The names of all links."""
        return {name for _, name in socket.if_nameindex()}

    async def read(self, name: str) -> LinkState | None:
        """The link's state; None if no link has that name."""
        query = message(RTM_GETLINK, 0, LINK_HEADER.pack(AF_UNSPEC, 0, 0, 0, 0) + text(IFLA_IFNAME, name))
        found = await none_if_refused(self.netlink.request(query, _parse_link), errno.ENODEV)
        return only(found) if found is not None else None

    async def create_dummy(self, name: str) -> None:
        """Make a dummy interface that is up and NOARP, and that never has an IPv6 link-local address.

        Raises KernelError: EEXIST if a link of that name exists, EOPNOTSUPP if the dummy module is missing. It takes
        three messages, because the kernel accepts the address generation mode only for a link that exists: the link is
        made down, gets its mode, and is then set up.
        """
        made = LINK_HEADER.pack(AF_UNSPEC, 0, 0, IFF_NOARP, IFF_NOARP)
        made += text(IFLA_IFNAME, name) + nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, DUMMY))
        create = message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, made)
        refused = await self.netlink.transact([create])
        lacks_dummy = errno.EOPNOTSUPP in refused.values()
        hint = "load the dummy module" if lacks_dummy else "delete it or choose another name"
        raise_refusal(refused, f"create dummy {name}", hint)
        await self.repair(name)

    async def repair(self, name: str) -> None:
        """Set the link up and NOARP, without an IPv6 link-local address. Raises KernelError ENODEV if it is missing."""
        index = interface_index(name)
        if index is None:
            raise KernelError(f"cannot repair {name}: it is gone; create it again", errno=errno.ENODEV)
        refused = await self.netlink.transact([encode_no_link_local(index), set_link(index, flags=IFF_UP | IFF_NOARP)])
        if refused.get(0) in {errno.EAFNOSUPPORT, errno.EOPNOTSUPP}:
            del refused[0]  # without IPv6 in this kernel there is no link-local address either
        raise_refusal(refused, f"set {name} up", "trying later")

    async def delete(self, name: str) -> None:
        """Delete the link with its addresses and routes. Does nothing if it does not exist."""
        index = interface_index(name)
        if index is None:
            return
        refused = await self.netlink.transact([encode_delete_link(index)])
        raise_refusal(refused, f"delete {name}", "delete it by hand", {errno.ENODEV})


def encode_no_link_local(index: int) -> bytes:
    """Have the kernel give the link no IPv6 link-local address."""
    mode = nested(IFLA_AF_SPEC, nested(AF_INET6, u8(IFLA_INET6_ADDR_GEN_MODE, ADDR_GEN_MODE_NONE)))
    return set_link(index, mode)


def set_link(index: int, attributes: bytes = b"", flags: int = 0) -> bytes:
    """Set these attributes and flags of the link."""
    return message(RTM_SETLINK, 0, LINK_HEADER.pack(AF_UNSPEC, 0, index, flags, flags) + attributes)


def encode_delete_link(index: int) -> bytes:
    """Delete the link, with its addresses and routes."""
    return message(RTM_DELLINK, 0, LINK_HEADER.pack(AF_UNSPEC, 0, index, 0, 0))


def _parse_link(payload: bytes) -> LinkState:
    _family, _type, index, flags, _change = LINK_HEADER.unpack_from(payload)
    found = attributes(payload, LINK_HEADER.size)
    kind = attributes(found.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND, b"")
    inet6 = attributes(attributes(found.get(IFLA_AF_SPEC, b"")).get(AF_INET6, b""))
    mode = inet6.get(IFLA_INET6_ADDR_GEN_MODE)
    link_local = mode is not None and mode[0] != ADDR_GEN_MODE_NONE
    return LinkState(index, to_text(kind), bool(flags & IFF_UP), bool(flags & IFF_NOARP), link_local)
