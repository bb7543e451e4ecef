"""Chains of nf_tables are seen, whichever program made them: tried in the family bridge, which every lab kernel has."""

from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import NftChain
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


async def test_the_hook_and_the_policy_of_a_base_chain_are_read(namespace: None) -> None:
    async with Nftables() as nftables:
        run("nft add table bridge fw")
        run("nft add chain bridge fw f { type filter hook forward priority 0; policy drop; }")
        run("nft add chain bridge fw i { type filter hook input priority 0; }")
        run("nft add chain bridge fw plain")
        assert await nftables.chains() == [
            NftChain("bridge", "fw", "f", "forward", drops=True),
            NftChain("bridge", "fw", "i", "input"),
            NftChain("bridge", "fw", "plain"),
        ]
        run("nft add table bridge empty")
        assert await nftables.tables() == [("bridge", "fw"), ("bridge", "empty")]
