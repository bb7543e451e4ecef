"""The nf_tables chains of every program. kroute makes none."""

import errno
import struct
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kroute.kernel.errors import KernelError
from kroute.kernel.modules import is_present
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import NLM_F_DUMP, attributes, message, to_text
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER

NFNL_SUBSYS_NFTABLES = 10
MSG_GETTABLE, MSG_GETCHAIN = 1, 4
TABLE_NAME = 1
CHAIN_TABLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY = 1, 3, 4, 5
HOOK_NUMBER = 1
HOOKS = {0: "prerouting", 1: "input", 2: "forward", 3: "output", 4: "postrouting"}
"""Of the families in HOOKED (linux/netfilter.h, linux/netfilter_bridge.h)."""
HOOKED = frozenset({"ip", "ip6", "inet", "bridge"})
DROP = 0
"""NF_DROP."""
FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}

_NUMBER = struct.Struct("!I")
_NFGEN = struct.Struct("=BBH")
"""family, version, resource id."""


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


class Nftables(NetlinkClient):
    """The nf_tables of the calling process's network namespace."""

    def __init__(self) -> None:
        super().__init__(NETLINK_NETFILTER)

    async def chains(self) -> list[NftChain]:
        """All chains of all families; none if the kernel has not loaded nf_tables, which this does not load."""
        return await self._dump(MSG_GETCHAIN, _parse)

    async def tables(self) -> list[tuple[str, str]]:
        """The family's name in nft(8) and the name of each table; none as above."""
        return await self._dump(MSG_GETTABLE, _parse_table)

    async def _dump(self, kind: int, parse: Callable[[bytes], T]) -> list[T]:
        if not is_present("nf_tables"):
            return []
        query = message(NFNL_SUBSYS_NFTABLES << 8 | kind, NLM_F_DUMP, _NFGEN.pack(0, 0, 0))
        try:
            return await self._netlink.request(query, lambda _, payload: parse(payload))
        except KernelError as error:
            if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
                return []
            raise


def _parse_table(payload: bytes) -> tuple[str, str]:
    family, _version, _resource = _NFGEN.unpack_from(payload)
    return FAMILIES.get(family, str(family)), to_text(attributes(payload, _NFGEN.size)[TABLE_NAME])


def _parse(payload: bytes) -> NftChain:
    family, _version, _resource = _NFGEN.unpack_from(payload)
    found = attributes(payload, _NFGEN.size)
    name = FAMILIES.get(family, str(family))
    hook = ""
    if CHAIN_HOOK in found and name in HOOKED:
        [number] = _NUMBER.unpack(attributes(found[CHAIN_HOOK])[HOOK_NUMBER])
        hook = HOOKS.get(number, "")
    drops = CHAIN_POLICY in found and _NUMBER.unpack(found[CHAIN_POLICY]) == (DROP,)
    return NftChain(name, to_text(found[CHAIN_TABLE]), to_text(found[CHAIN_NAME]), hook, drops)
