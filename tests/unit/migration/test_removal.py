"""Another proxy's rules in the tables of iptables-nft are removed whole or not at all, and nothing else is."""

import errno
import socket
from collections.abc import Callable
from typing import TypeVar

import pytest

from kroute.checks.other_proxies import OTHER_PROXIES
from kroute.kernel.errors import KernelError
from kroute.kernel.nftables import expressions as e
from kroute.kernel.nftables.objects import AddChain, AddRule, AddTable, Chain, NftChange, NftRule, Table
from kroute.migration.removal import ATTEMPTS, remove_nft_rules
from tests.fakes.kernel import FakeKernel
from tests.fakes.nftables import FakeNftables

T = TypeVar("T")

NAT = Table(socket.AF_INET, "nat")
KUBE_PROXY = OTHER_PROXIES["kube-proxy"]
SVC, SEP = "KUBE-SVC-NPX46M4PTMTKRN6Y", "KUBE-SEP-ABCDEFGHIJKLMNOP"
HOOKS = (Chain("PREROUTING", "nat", "prerouting", -100), Chain("OUTPUT", "nat", "output", -100))


def jump(chain: str, target: str) -> NftRule:
    return NftRule(chain, (e.counter(), e.verdict(e.VerdictCode.JUMP, target)))


THEIRS: list[NftChange] = [
    *(AddChain(Chain(name)) for name in ("KUBE-SERVICES", SVC, SEP, "KUBE-MARK-MASQ")),
    *(
        AddRule(jump(*each))
        for each in (
            ("PREROUTING", "KUBE-SERVICES"), ("OUTPUT", "KUBE-SERVICES"), ("KUBE-SERVICES", SVC), (SVC, SEP),
            (SEP, "KUBE-MARK-MASQ"),
        )
    ),
]  # fmt: skip
FOREIGN: list[NftChange] = [
    AddTable(),
    *map(AddChain, (*HOOKS, Chain("DOCKER"), Chain("KUBE-KUBELET-CANARY"))),
    AddRule(jump("PREROUTING", "DOCKER")),
    AddRule(NftRule("DOCKER", (e.verdict(e.VerdictCode.RETURN),))),
]


class Disturbed(FakeNftables):
    """A client during whose next readings another program commits these changes, one list each."""

    def __init__(self, kernel: FakeKernel, *meanwhile: list[NftChange]) -> None:
        super().__init__(kernel)
        self.meanwhile = list(meanwhile)

    async def rules(
        self, table: Table, keep: Callable[[int, NftRule], T | None]
    ) -> tuple[int, dict[str, Chain], list[T]] | None:
        found = await super().rules(table, keep)
        if self.meanwhile:
            async with FakeNftables(self.kernel) as other:
                assert await other.transact(table, self.meanwhile.pop(0)) == []
        return found


async def node(*changes: NftChange) -> FakeKernel:
    kernel = FakeKernel()
    async with FakeNftables(kernel) as nftables:
        assert await nftables.transact(NAT, [*FOREIGN, *changes]) == []
    return kernel


def rules_of(kernel: FakeKernel) -> dict[str, list[NftRule]]:
    return {chain: [rule for _, rule in rules] for chain, rules in kernel.nft.tables[NAT].rules.items()}


async def test_their_chains_and_jumps_go_and_everything_else_stays() -> None:
    kernel, untouched = await node(*THEIRS), await node()
    async with FakeNftables(kernel) as nftables:
        part = await remove_nft_rules(nftables, NAT, KUBE_PROXY)
        assert [rule.text for rule in part.rules] == ["PREROUTING -j KUBE-SERVICES", "OUTPUT -j KUBE-SERVICES"]
        assert set(part.chains) == {"KUBE-SERVICES", SVC, SEP, "KUBE-MARK-MASQ"}
        assert rules_of(kernel) == rules_of(untouched)
        generation = kernel.nft.generation
        assert (await remove_nft_rules(nftables, NAT, KUBE_PROXY)).chains == ()
        assert kernel.nft.generation == generation


async def test_a_chain_that_a_foreign_rule_leads_to_stays_with_what_it_needs() -> None:
    kernel = await node(*THEIRS, AddRule(jump("DOCKER", SEP)))
    async with FakeNftables(kernel) as nftables:
        part = await remove_nft_rules(nftables, NAT, KUBE_PROXY)
        assert part.kept == ("KUBE-MARK-MASQ", SEP)
        assert set(part.chains) == {"KUBE-SERVICES", SVC}
        assert rules_of(kernel)[SEP] == [jump(SEP, "KUBE-MARK-MASQ")]
        assert (await remove_nft_rules(nftables, NAT, KUBE_PROXY)).kept == part.kept


async def test_a_table_that_changes_after_it_was_read_is_read_again() -> None:
    kernel = await node(*THEIRS)
    more: list[NftChange] = [AddRule(jump("DOCKER", "KUBE-MARK-MASQ"))]
    async with Disturbed(kernel, more) as nftables:
        part = await remove_nft_rules(nftables, NAT, KUBE_PROXY)
    assert part.kept == ("KUBE-MARK-MASQ",)
    assert rules_of(kernel).keys() == {"PREROUTING", "OUTPUT", "DOCKER", "KUBE-KUBELET-CANARY", "KUBE-MARK-MASQ"}


async def test_a_table_that_never_stands_still_is_left_as_it_is() -> None:
    kernel = await node(*THEIRS)
    changes: list[list[NftChange]] = [[AddChain(Chain(f"DOCKER-{number}"))] for number in range(ATTEMPTS)]
    async with Disturbed(kernel, *changes) as nftables:
        with pytest.raises(KernelError, match="changes faster") as refused:
            await remove_nft_rules(nftables, NAT, KUBE_PROXY)
    assert refused.value.errno == errno.ERESTART
    assert {"KUBE-SERVICES", SVC, SEP, "DOCKER-9"} <= rules_of(kernel).keys()


async def test_what_the_kernel_refuses_leaves_the_table_as_it_was() -> None:
    """Such as a jump to a chain from a map, which no rule names."""
    kernel = await node(*THEIRS)
    before = rules_of(kernel)
    kernel.refuse(lambda change: str(change) == f"delete chain {SEP}", errno.EBUSY)
    async with FakeNftables(kernel) as nftables:
        with pytest.raises(KernelError, match=f"cannot delete chain {SEP}: Device or resource busy; run this again"):
            await remove_nft_rules(nftables, NAT, KUBE_PROXY)
    assert rules_of(kernel) == before
