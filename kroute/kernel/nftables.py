"""The nf_tables chains of every program. kroute makes none."""

import errno
import struct
from typing import NamedTuple

from kroute.kernel.errors import KernelError
from kroute.kernel.modules import is_present
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import NLM_F_DUMP, attributes, message, to_text
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER

NFNL_SUBSYS_NFTABLES = 10
MSG_GETCHAIN = 4
CHAIN_TABLE, CHAIN_NAME = 1, 3
FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}

_NFGEN = struct.Struct("=BBH")
"""family, version, resource id."""


class NftChain(NamedTuple):
    """A chain. `family` is the family's name in nft(8)."""

    family: str
    table: str
    name: str


class Nftables(NetlinkClient):
    """The nf_tables of the calling process's network namespace."""

    def __init__(self) -> None:
        super().__init__(NETLINK_NETFILTER)

    async def chains(self) -> list[NftChain]:
        """All chains of all families; none if the kernel has not loaded nf_tables, which this does not load."""
        if not is_present("nf_tables"):
            return []
        query = message(NFNL_SUBSYS_NFTABLES << 8 | MSG_GETCHAIN, NLM_F_DUMP, _NFGEN.pack(0, 0, 0))
        try:
            return await self._netlink.request(query, lambda _, payload: _parse(payload))
        except KernelError as error:
            if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
                return []
            raise


def _parse(payload: bytes) -> NftChain:
    family, _version, _resource = _NFGEN.unpack_from(payload)
    found = attributes(payload, _NFGEN.size)
    return NftChain(FAMILIES.get(family, str(family)), to_text(found[CHAIN_TABLE]), to_text(found[CHAIN_NAME]))
