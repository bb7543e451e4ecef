"""Chains of nf_tables are seen, whichever program made them: tried in the family bridge, which the lab's kernel has."""

from kroute.kernel.nftables import Nftables, NftChain
from tests.kernel.nodes import run


async def test_chains_of_all_tables_are_listed(namespace: None) -> None:
    async with Nftables() as nftables:
        assert await nftables.chains() == []
        run("nft add table bridge kube-proxy")
        run("nft add chain bridge kube-proxy services")
        run("nft add chain bridge kube-proxy endpoints")
        assert await nftables.chains() == [
            NftChain("bridge", "kube-proxy", "services"),
            NftChain("bridge", "kube-proxy", "endpoints"),
        ]
