"""The client of nf_tables."""

from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER
from kroute.kernel.nftables.chains import NftChain, every_chain, every_table


class Nftables(NetlinkClient):
    """The nf_tables of the calling process's network namespace."""

    def __init__(self) -> None:
        super().__init__(NETLINK_NETFILTER)

    async def chains(self) -> list[NftChain]:
        """All chains of all families; none if the kernel has not loaded nf_tables, which this does not load."""
        return await every_chain(self._netlink)

    async def tables(self) -> list[tuple[str, str]]:
        """The family's name in nft(8) and the name of each table; none as above."""
        return await every_table(self._netlink)
