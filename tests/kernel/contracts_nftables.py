"""The behaviour of nf_tables that kroute relies on. The real client and the fake pass the same tests.

A subclass provides the fixture `node`: tests/kernel/test_nftables_client.py the real one,
tests/unit/kernel/test_fakes.py the fake one.
"""

import asyncio
import errno
import socket
from collections.abc import Sequence

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.nftables import expressions as e
from kroute.kernel.nftables.objects import (
    AddChain,
    AddElements,
    AddRule,
    AddSet,
    AddTable,
    Chain,
    DeleteChain,
    DeleteElements,
    DeleteRule,
    DeleteSet,
    DeleteTable,
    Element,
    FlushChain,
    FlushSet,
    NftChange,
    NftRule,
    NftSet,
    Table,
    TableState,
)
from tests.kernel.nodes import HANG, Node

T4, T6 = Table(socket.AF_INET, "kroute"), Table(socket.AF_INET6, "kroute")
VIPS = NftSet("vip", ("ip",))
PORTS = NftSet("cluster-ip", ("ip", "port"))
HAIRPINS = NftSet("hairpin", ("ip", "port", "ip"))
RANGES = NftSet("source-network", ("ip", "port", "net"))
NETWORKS = NftSet("pod-network", ("net",))
PORT_RANGES = NftSet("port-ranges", ("net", "ports"))
SETS = (VIPS, PORTS, HAIRPINS, RANGES, NETWORKS, PORT_RANGES)
JUMPS = NftSet("ingress", ("ip", "jump"))
NEVER_OVERLAP = (errno.EEXIST, errno.ENOTEMPTY)

ACCEPT = e.verdict(e.VerdictCode.ACCEPT)
INPUT = Chain("input", "filter", "input", -5)
POSTROUTING = Chain("postrouting", "nat", "postrouting", 95)
LONG = "x" * 128
PLAIN = Chain("mark-masquerade")


def in_vips(family: int = socket.AF_INET) -> tuple[bytes, ...]:
    offset, length = (16, 4) if family == socket.AF_INET else (24, 16)
    return e.payload(1, e.Header.NETWORK, offset, length), e.lookup("vip", 1)


def port(network: str = "", *, number: int = 80, family: int = socket.AF_INET) -> Element:
    address = "10.0.0.1" if family == socket.AF_INET else "fd00::1"
    return (address, 6, number, network) if network else (address, 6, number)


def elements_of(table: Table, definition: NftSet) -> tuple[Element, ...]:
    is_ipv4 = table.family == socket.AF_INET
    first, second = ("10.0.0.1", "10.255.0.2") if is_ipv4 else ("fd00::1", "fd00:ffff::2")
    narrow, wide = ("10.2.3.0/24", "240.0.0.0/4") if is_ipv4 else ("fd00:1:2::/64", "ff00::/8")
    every = "0.0.0.0/0" if is_ipv4 else "::/0"
    return {
        VIPS: ((first,), (second,)),
        PORTS: ((first, 6, 80), (first, 17, 80), (second, 132, 65535)),
        HAIRPINS: ((first, 6, 80, second), (first, 6, 80, first)),
        RANGES: ((first, 6, 80, narrow), (first, 6, 80, wide), (first, 17, 80, narrow), (second, 6, 1, every)),
        NETWORKS: ((narrow,), (wide,)),
        PORT_RANGES: ((narrow, 6, 80, 80), (every, 6, 81, 90), (wide, 17, 0, 65535), (every, 132, 7, 7)),
    }[definition]


async def make(node: Node, *changes: NftChange, table: Table = T4) -> None:
    assert await node.nftables.transact(table, [AddTable(), *map(AddSet, SETS), *changes]) == []


async def elements(node: Node, of: NftSet, table: Table = T4) -> set[Element]:
    return {element async for part in node.nftables.elements(table, of) for element in part}


async def refusals(node: Node, *changes: NftChange) -> list[tuple[str, int]]:
    """What is refused, and why; nothing else is changed either."""
    before = await node.nftables.read(T4)
    refused = await node.nftables.transact(T4, changes)
    assert refused == await node.nftables.validate(T4, changes)
    assert await node.nftables.read(T4) == before
    return [(str(it.change), it.errno) for it in refused]


async def rules_of(node: Node) -> list[NftRule]:
    state = await node.nftables.read(T4)
    assert state is not None
    return [rule for _handle, rule in state.rules]


class NftablesContract:
    @pytest.mark.parametrize("table", [T4, T6], ids=str)
    @pytest.mark.parametrize("definition", SETS, ids=lambda it: it.name)
    async def test_elements_are_read_back_true(self, node: Node, table: Table, definition: NftSet) -> None:
        added = elements_of(table, definition)
        await make(node, AddElements(definition, added), table=table)
        assert await elements(node, definition, table) == set(added)
        assert await node.nftables.transact(table, [DeleteElements(definition, added[1:])]) == []
        assert await elements(node, definition, table) == set(added[:1])
        assert await node.nftables.transact(table, [FlushSet(definition.name)]) == []
        assert await elements(node, definition, table) == set()

    @pytest.mark.parametrize("table", [T4, T6], ids=str)
    async def test_a_table_is_read_back_true(self, node: Node, table: Table) -> None:
        assert await node.nftables.read(table) is None
        first = NftRule("mark-masquerade", (*in_vips(table.family), ACCEPT), "an address of Services")
        second = NftRule("mark-masquerade", (e.verdict(e.VerdictCode.RETURN),))
        jump = NftRule("input", (e.verdict(e.VerdictCode.GOTO, "mark-masquerade"),))
        masquerade = NftRule("postrouting", (e.masquerade(fully_random=True),), "x" * 127)
        chains = [INPUT, POSTROUTING, PLAIN]
        await make(node, *map(AddChain, chains), *map(AddRule, (first, masquerade, second, jump)), table=table)
        state = await node.nftables.read(table)
        assert state is not None
        assert state.sets == {it.name: it for it in SETS}
        assert list(state.chains.values()) == chains
        assert [rule for _handle, rule in state.rules] == [jump, masquerade, first, second]
        assert await node.nftables.transact(table, [DeleteTable()]) == []
        assert await node.nftables.read(table) is None

    async def test_what_is_there_is_added_again_without_failure(self, node: Node) -> None:
        adding = [AddElements(it, elements_of(T4, it)) for it in SETS]
        await make(node, *adding)
        assert await node.nftables.transact(T4, [AddTable(), *adding]) == []

    async def test_the_chains_of_a_table_are_among_everybodys(self, node: Node) -> None:
        await make(node, AddChain(INPUT), AddChain(PLAIN))
        chains = [(it.family, it.table, it.name, it.hook) for it in await node.nftables.chains()]
        assert chains == [("ip", "kroute", "input", "input"), ("ip", "kroute", "mark-masquerade", "")]
        assert await node.nftables.tables() == [("ip", "kroute")]

    @pytest.mark.parametrize(
        ("changes", "refused"),
        [
            ([AddSet(VIPS)], [("add set vip", errno.EEXIST)]),
            ([AddChain(INPUT)], [("add chain input", errno.EEXIST)]),
            ([DeleteSet("nope")], [("delete set nope", errno.ENOENT)]),
            ([DeleteChain("nope")], [("delete chain nope", errno.ENOENT)]),
            ([FlushSet("nope")], [("flush set nope", errno.ENOENT)]),
            ([FlushChain("nope")], [("flush chain nope", errno.ENOENT)]),
            ([DeleteRule("input", 4711)], [("delete rule 4711 of chain input", errno.ENOENT)]),
            ([DeleteSet("vip")], [("delete set vip", errno.EBUSY)]),
            ([DeleteChain("mark-masquerade")], [("delete chain mark-masquerade", errno.EBUSY)]),
            ([AddChain(Chain("a", "bogus", "input", 0))], [("add chain a", errno.ENOENT)]),
            ([AddChain(Chain("a", "nat", "forward", 0))], [("add chain a", errno.EOPNOTSUPP)]),
            ([AddChain(Chain("a", "nat", "prerouting", -200))], [("add chain a", errno.EOPNOTSUPP)]),
            ([AddRule(NftRule("nope", (ACCEPT,), "why"))], [('add a rule "why" to chain nope', errno.ENOENT)]),
            (
                [AddRule(NftRule("input", (*in_vips()[:1], e.lookup("nope", 1))))],
                [("add a rule to chain input", errno.ENOENT)],
            ),
            (
                [AddRule(NftRule("input", (e.verdict(e.VerdictCode.JUMP, "nope"),)))],
                [("add a rule to chain input", errno.ENOENT)],
            ),
            (
                [AddRule(NftRule("mark-masquerade", (e.verdict(e.VerdictCode.JUMP, "input"),)))],
                [("add a rule to chain mark-masquerade", errno.EOPNOTSUPP)],
            ),
            (
                [AddRule(NftRule("input", (e.masquerade(fully_random=True),)))],
                [("add a rule to chain input", errno.EOPNOTSUPP)],
            ),
            (
                [AddRule(NftRule("postrouting", (e.reject(e.Refusal.ICMP, 3),)))],
                [("add a rule to chain postrouting", errno.EOPNOTSUPP)],
            ),
            (
                [AddRule(NftRule("input", (ACCEPT,), "x" * 128))],
                [(f'add a rule "{"x" * 128}" to chain input', errno.EINVAL)],
            ),
            ([AddElements(VIPS, (("10.0.0.1",), ("fd00::1",)))], [("add fd00::1 to set vip", errno.EINVAL)]),
            ([AddElements(VIPS, (("10.0.0.1", 6, 80),))], [("add 10.0.0.1,TCP,80 to set vip", errno.EINVAL)]),
            (
                [AddElements(NftSet("vip", ("ip", "port")), (port(),))],
                [("add 10.0.0.1,TCP,80 to set vip", errno.EINVAL)],
            ),
            (
                [DeleteElements(VIPS, (("10.0.0.1",), ("10.0.0.8",), ("10.0.0.9",)))],
                [("delete 10.0.0.8 from set vip", errno.ENOENT), ("delete 10.0.0.9 from set vip", errno.ENOENT)],
            ),
            (
                [AddElements(NftSet("nope", ("ip",)), (("10.0.0.1",), ("10.0.0.2",)))],
                [("add 10.0.0.1 to set nope", errno.ENOENT), ("add 10.0.0.2 to set nope", errno.ENOENT)],
            ),
        ],
        ids=lambda it: ", ".join(map(str, it))[:60] if it and not isinstance(it[0], tuple) else "",
    )
    async def test_what_is_refused_is_named_and_nothing_is_changed(
        self, node: Node, changes: Sequence[NftChange], refused: list[tuple[str, int]]
    ) -> None:
        await make(
            node,
            *map(AddChain, (INPUT, POSTROUTING, PLAIN)),
            AddRule(NftRule("input", (*in_vips(), e.verdict(e.VerdictCode.JUMP, "mark-masquerade")))),
            AddElements(VIPS, (("10.0.0.1",),)),
        )
        assert await refusals(node, AddChain(Chain("fine")), *changes) == refused

    @pytest.mark.parametrize(
        "change",
        [AddSet(VIPS), AddElements(VIPS, (("10.0.0.1",),)), DeleteTable(), AddChain(INPUT), FlushSet("vip")],
        ids=str,
    )
    async def test_a_missing_table_is_named(self, node: Node, change: NftChange) -> None:
        assert await refusals(node, change) == [(str(change), errno.ENOENT)]

    async def test_all_refused_changes_of_a_transaction_are_named(self, node: Node) -> None:
        await make(node)
        assert await refusals(node, DeleteSet("a"), AddSet(VIPS), AddChain(INPUT), DeleteChain("b")) == [
            ("delete set a", errno.ENOENT),
            ("add set vip", errno.EEXIST),
            ("delete chain b", errno.ENOENT),
        ]

    async def test_jumps_in_a_circle_are_refused(self, node: Node) -> None:
        jumps = [("input", "a"), ("a", "b"), ("b", "a")]
        rules = [AddRule(NftRule(chain, (e.verdict(e.VerdictCode.JUMP, target),))) for chain, target in jumps]
        await make(node)
        refused = await node.nftables.transact(T4, [*map(AddChain, (INPUT, Chain("a"), Chain("b"))), *rules])
        assert [(str(it.change), it.errno) for it in refused] == [("add a rule to chain b", errno.EMLINK)]

    @pytest.mark.parametrize("inside", ["10.2.0.0/17", "10.2.128.0/17", "10.2.7.0/24", "10.2.0.1/32"])
    async def test_a_network_inside_another_is_refused(self, node: Node, inside: str) -> None:
        await make(node, AddElements(NETWORKS, (("10.2.0.0/16",),)))
        [(what, why)] = await refusals(node, AddElements(NETWORKS, (("10.3.0.0/16",), (inside,))))
        assert what == f"add {inside} to set pod-network"
        assert why in NEVER_OVERLAP

    async def test_networks_change_places_in_one_transaction(self, node: Node) -> None:
        wide, parts = (("10.2.0.0/23",),), (("10.2.0.0/24",), ("10.2.1.0/24",))
        await make(node, AddElements(NETWORKS, wide))
        for before, after in ((wide, parts), (parts, wide)):
            assert (
                await node.nftables.transact(T4, [DeleteElements(NETWORKS, before), AddElements(NETWORKS, after)]) == []
            )
            assert await elements(node, NETWORKS) == set(after)

    async def test_networks_behind_other_parts_may_overlap(self, node: Node) -> None:
        many = {port("10.2.0.0/16"), port("10.2.0.0/24"), port("10.2.0.0/32"), ("10.0.0.2", 6, 80, "10.2.0.0/15")}
        await make(node, AddElements(RANGES, tuple(many)))
        assert await elements(node, RANGES) == many

    async def test_networks_with_ranges_of_ports_may_be_within_each_other_if_no_packet_matches_two(
        self, node: Node
    ) -> None:
        wide, narrow, one = ("10.0.0.0/8", 6, 80, 90), ("10.2.0.0/16", 6, 91, 99), ("10.2.0.1/32", 6, 1, 79)
        await make(node, AddElements(PORT_RANGES, (narrow, wide, one)))
        changes = [DeleteElements(PORT_RANGES, (wide, one)), AddElements(PORT_RANGES, (("10.2.0.1/32", 6, 1, 90),))]
        assert await node.nftables.transact(T4, changes) == []
        assert await elements(node, PORT_RANGES) == {narrow, ("10.2.0.1/32", 6, 1, 90)}
        [(what, why)] = await refusals(node, AddElements(PORT_RANGES, (("10.2.0.1/32", 6, 95, 95),)))
        assert what == "add 10.2.0.1/32,TCP,95,95 to set port-ranges"
        assert why in NEVER_OVERLAP

    @pytest.mark.parametrize("table", [T4, T6], ids=str)
    async def test_an_address_is_led_to_one_chain_and_then_to_another(self, node: Node, table: Table) -> None:
        first, second = ("10.0.0.1", "10.0.0.2") if table is T4 else ("fd00::1", "fd00::2")
        await make(node, AddSet(JUMPS), AddChain(PLAIN), AddChain(Chain("other")), table=table)
        led = ((first, PLAIN.name), (second, "other"))
        assert await node.nftables.transact(table, [AddElements(JUMPS, led)]) == []
        assert await elements(node, JUMPS, table) == set(led)
        moved = [DeleteElements(JUMPS, ((first, PLAIN.name),)), AddElements(JUMPS, ((first, "other"),))]
        assert await node.nftables.transact(table, [*moved, DeleteChain(PLAIN.name)]) == []
        assert await elements(node, JUMPS, table) == {(first, "other"), (second, "other")}
        state = await node.nftables.read(table)
        assert state is not None
        assert state.sets[JUMPS.name] == JUMPS

    async def test_a_chain_to_which_an_address_is_led_stays(self, node: Node) -> None:
        led = AddElements(JUMPS, (("10.0.0.1", PLAIN.name),))
        await make(node, AddSet(JUMPS), AddChain(PLAIN), AddChain(Chain("other")), led)
        assert await refusals(node, DeleteChain(PLAIN.name)) == [("delete chain mark-masquerade", errno.EBUSY)]
        elsewhere, nowhere = (AddElements(JUMPS, (("10.0.0.1", chain),)) for chain in ("other", "nope"))
        assert [why for _what, why in await refusals(node, elsewhere)] == [errno.EEXIST]
        assert [why for _what, why in await refusals(node, nowhere)] == [errno.ENOENT]

    async def test_rules_are_replaced_in_one_transaction(self, node: Node) -> None:
        await make(node, AddChain(INPUT), AddRule(NftRule("input", (ACCEPT,), "old")))
        new = [NftRule("input", (*in_vips(), ACCEPT), "new"), NftRule("input", (e.verdict(e.VerdictCode.DROP),))]
        assert await node.nftables.transact(T4, [FlushChain("input"), *map(AddRule, new)]) == []
        assert await rules_of(node) == new
        state = await node.nftables.read(T4)
        assert state is not None
        assert await node.nftables.transact(T4, [DeleteRule("input", state.rules[0][0])]) == []
        assert await rules_of(node) == new[1:]

    async def test_chains_and_sets_are_deleted_when_nothing_refers_to_them(self, node: Node) -> None:
        jump = NftRule("input", (*in_vips(), e.verdict(e.VerdictCode.JUMP, "mark-masquerade")))
        await make(node, AddChain(INPUT), AddChain(PLAIN), AddRule(jump))
        gone = [FlushChain("input"), DeleteChain("mark-masquerade"), DeleteSet("vip"), DeleteChain("input")]
        assert await node.nftables.transact(T4, gone) == []
        state = await node.nftables.read(T4)
        assert state == TableState({it.name: it for it in SETS[1:]}, {}, [])

    async def test_of_the_rules_of_a_table_only_what_is_wanted_is_kept(self, node: Node) -> None:
        assert await node.nftables.rules(T4, lambda handle, rule: rule) is None
        jump = NftRule("input", (e.verdict(e.VerdictCode.JUMP, "mark-masquerade"),))
        await make(
            node, AddChain(INPUT), AddChain(PLAIN), AddRule(jump), AddRule(NftRule("mark-masquerade", (ACCEPT,)))
        )
        found = await node.nftables.rules(T4, lambda handle, rule: (handle, rule) if rule == jump else None)
        assert found is not None
        generation, chains, kept = found
        assert chains == {"input": INPUT, "mark-masquerade": PLAIN}
        assert [rule for _handle, rule in kept] == [jump]
        deletion = [DeleteRule("input", kept[0][0]), FlushChain("mark-masquerade"), DeleteChain("mark-masquerade")]
        assert await node.nftables.transact(T4, deletion, generation=generation) == []
        assert await rules_of(node) == []

    async def test_a_transaction_is_refused_when_somebody_has_committed_since_its_generation(self, node: Node) -> None:
        await make(node, AddChain(INPUT))
        [generation, _chains, _rules] = await node.nftables.rules(T4, lambda handle, rule: None) or (0, {}, [])
        assert await node.other_nftables.transact(Table(socket.AF_INET, "another"), [AddTable()]) == []
        with pytest.raises(KernelError) as refused:
            await node.nftables.transact(T4, [DeleteChain("input")], generation=generation)
        assert refused.value.errno == errno.ERESTART
        state = await node.nftables.read(T4)
        assert state is not None
        assert "input" in state.chains
        assert await node.nftables.transact(T4, [DeleteChain("input")], generation=generation + 1) == []

    async def test_chains_are_deleted_in_any_order_once_they_are_empty_but_not_below_anothers_jump(
        self, node: Node
    ) -> None:
        inner = Chain("inner")
        rules = (
            NftRule("input", (e.verdict(e.VerdictCode.JUMP, "mark-masquerade"),)),
            NftRule("mark-masquerade", (e.verdict(e.VerdictCode.JUMP, "inner"),)),
        )
        await make(node, *map(AddChain, (INPUT, PLAIN, inner)), *map(AddRule, rules))
        flushes, deletions = map(FlushChain, ("inner", PLAIN.name)), map(DeleteChain, ("inner", PLAIN.name))
        changes = [*flushes, *deletions]
        assert await refusals(node, *changes) == [("delete chain mark-masquerade", errno.EBUSY)]
        assert await node.nftables.transact(T4, [FlushChain("input"), *changes]) == []

    async def test_a_set_is_made_anew_in_one_transaction(self, node: Node) -> None:
        await make(node, AddElements(VIPS, (("10.0.0.1",),)))
        other = NftSet("vip", ("ip", "port"))
        changes = [DeleteSet("vip"), AddSet(other), AddElements(other, (port(),))]
        assert await node.nftables.transact(T4, changes) == []
        assert await elements(node, other) == {port()}

    async def test_a_check_changes_nothing(self, node: Node) -> None:
        changes = [AddTable(), *map(AddSet, SETS), AddChain(INPUT), AddRule(NftRule("input", (*in_vips(), ACCEPT)))]
        assert await node.nftables.validate(T4, changes) == []
        assert await node.nftables.read(T4) is None

    async def test_writing_leaves_out_only_what_is_refused(self, node: Node) -> None:
        await make(node, AddElements(NETWORKS, (("10.2.0.0/16",),)), AddElements(VIPS, (("10.0.0.1",),)))
        adding = AddElements(NETWORKS, (("10.3.0.0/16",), ("10.2.3.0/24",), ("10.4.0.0/16",)))
        deleting = DeleteElements(VIPS, (("10.0.0.9",), ("10.0.0.1",)))
        adding_more = AddElements(VIPS, (("fd00::1",), ("10.0.0.2",)))
        refused = await node.nftables.write(T4, [adding, deleting, adding_more])
        assert {str(it.change) for it in refused} == {
            "add 10.2.3.0/24 to set pod-network",
            "add fd00::1 to set vip",
        }
        assert await elements(node, NETWORKS) == {(f"10.{it}.0.0/16",) for it in (2, 3, 4)}
        assert await elements(node, VIPS) == {("10.0.0.2",)}

    async def test_writing_keeps_the_order_of_changes(self, node: Node) -> None:
        await make(node, AddElements(VIPS, (("10.0.0.1",),)))
        one = (("10.0.0.1",),)
        assert await node.nftables.write(T4, [DeleteElements(VIPS, one), AddElements(VIPS, one)]) == []
        assert await elements(node, VIPS) == set(one)
        assert await node.nftables.write(T4, [AddElements(VIPS, one), DeleteElements(VIPS, one)]) == []
        assert await elements(node, VIPS) == set()

    async def test_thousands_of_elements_come_in_parts(self, node: Node) -> None:
        await make(node)
        many = [("10.0.0.1", 6, number) for number in range(1, 5001)]
        assert await node.nftables.write(T4, [AddElements(PORTS, tuple(many))]) == []
        parts = [part async for part in node.nftables.elements(T4, PORTS)]
        assert len(parts) > 1
        assert sorted(it for part in parts for it in part) == sorted(many)

    @pytest.mark.parametrize("table", [T4, T6], ids=str)
    async def test_a_missing_set_has_no_elements_to_read(self, node: Node, table: Table) -> None:
        await make(node)
        with pytest.raises(KernelError) as refused:
            await elements(node, NftSet("nope", ("ip",)), table)
        assert refused.value.errno == errno.ENOENT

    async def test_the_foreign_generation_changes_with_others_transactions_alone(self, node: Node) -> None:
        before = await node.nftables.foreign_generation()
        await make(node)
        await node.nftables.write(T4, [AddElements(VIPS, (("10.0.0.1",), ("10.0.0.2",)))])
        await node.nftables.write(T4, [AddElements(VIPS, (("10.0.0.1",),))])
        await node.nftables.validate(T4, [DeleteTable()])
        assert await node.nftables.transact(T4, [DeleteSet("nope")]) != []
        assert await node.nftables.transact(T4, [AddTable()]) == []
        assert await node.nftables.foreign_generation() == before
        await node.other_nftables.transact(T6, [AddTable()])
        assert await node.nftables.foreign_generation() != before

    async def test_foreign_changes_are_told_and_own_ones_are_not(self, node: Node) -> None:
        await make(node)
        async with node.nftables.foreign_changes([T4]) as changes:
            await node.nftables.write(T4, [AddElements(VIPS, (("10.0.0.1",),))])
            await node.other_nftables.transact(T6, [AddTable()])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await changes.next()
            await node.other_nftables.write(T4, [DeleteElements(VIPS, (("10.0.0.1",),))])
            async with asyncio.timeout(HANG):
                assert "(process " in await changes.next()
