"""The nf_tables tables and chains of every program."""

import errno
import struct
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kroute.kernel.errors import KernelError
from kroute.kernel.modules import is_present
from kroute.kernel.netlink.message import NLM_F_DUMP, attributes, to_text
from kroute.kernel.netlink.netlink_socket import NetlinkSocket
from kroute.kernel.nftables.messages import (
    CHAIN_HOOK,
    CHAIN_NAME,
    CHAIN_POLICY,
    CHAIN_TABLE,
    DROP,
    HEADER,
    HOOK_NUMBER,
    HOOKS,
    TABLE_NAME,
    Message,
    query,
)

HOOKED = frozenset({"ip", "ip6", "inet", "bridge"})
"""The families whose hooks have the numbers of HOOKS."""
FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}

_NUMBER = struct.Struct("!I")

T = TypeVar("T")


class NftChain(NamedTuple):
    """A chain. `family` is the family's name in nft(8).

    `hook` is that of a base chain in the families of HOOKED, else "". `drops` is whether its policy is to drop.
    """

    family: str
    table: str
    name: str
    hook: str = ""
    drops: bool = False


async def every_chain(netlink: NetlinkSocket) -> list[NftChain]:
    """All chains of all families; none if the kernel has not loaded nf_tables, which this does not load."""
    return await _dump(netlink, Message.GETCHAIN, _parse)


async def every_table(netlink: NetlinkSocket) -> list[tuple[str, str]]:
    """The family's name in nft(8) and the name of each table; none as above."""
    return await _dump(netlink, Message.GETTABLE, _parse_table)


async def _dump(netlink: NetlinkSocket, kind: Message, parse: Callable[[bytes], T]) -> list[T]:
    if not is_present("nf_tables"):
        return []
    try:
        return await netlink.request(query(kind, NLM_F_DUMP), parse)
    except KernelError as error:
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
            return []
        raise


def _parse_table(payload: bytes) -> tuple[str, str]:
    family, _version, _resource = HEADER.unpack_from(payload)
    return FAMILIES.get(family, str(family)), to_text(attributes(payload, HEADER.size)[TABLE_NAME])


def _parse(payload: bytes) -> NftChain:
    family, _version, _resource = HEADER.unpack_from(payload)
    found = attributes(payload, HEADER.size)
    name = FAMILIES.get(family, str(family))
    hook = ""
    if CHAIN_HOOK in found and name in HOOKED:
        [number] = _NUMBER.unpack(attributes(found[CHAIN_HOOK])[HOOK_NUMBER])
        hook = HOOKS[number] if number < len(HOOKS) else ""
    drops = CHAIN_POLICY in found and _NUMBER.unpack(found[CHAIN_POLICY]) == (DROP,)
    return NftChain(name, to_text(found[CHAIN_TABLE]), to_text(found[CHAIN_NAME]), hook, drops)
