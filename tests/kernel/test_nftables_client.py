"""nf_tables on a real kernel: the contract, what nft(8) shows of it, many elements, and lost events."""

import asyncio
import json
import socket
from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from kroute.kernel.nftables import expressions as e
from kroute.kernel.nftables.objects import (
    AddChain,
    AddElements,
    AddRule,
    AddSet,
    Chain,
    DeleteElements,
    Element,
    NftRule,
    NftSet,
    Table,
)
from kroute.kernel.nftables.transactions import LARGEST_PORTION
from tests.kernel import contracts_nftables
from tests.kernel.contracts_nftables import (
    JUMPS,
    NETWORKS,
    PORTS,
    RANGES,
    SETS,
    T4,
    T6,
    VIPS,
    elements,
    elements_of,
    make,
    port,
)
from tests.kernel.nodes import HANG, RealNode, run

pytestmark = pytest.mark.nftables

MANY = 20_000


@pytest.fixture
def namespace(namespace: None) -> Iterator[None]:
    """A namespace in which no table is seen before the test: all tables go with it."""
    yield
    run("nft flush ruleset")


class TestNftables(contracts_nftables.NftablesContract):
    pass


def rules_of_every_kind(table: Table) -> list[tuple[NftRule, str]]:
    """A rule with each expression, and how nft prints it."""
    is_ipv4 = table.family == socket.AF_INET
    size, source, target, ip = (4, 12, 16, "ip") if is_ipv4 else (16, 8, 24, "ip6")
    key = (
        e.payload(e.register(0), e.Header.NETWORK, target, size),
        e.meta(e.register(size), e.Meta.L4PROTO),
        e.payload(e.register(size + 4), e.Header.TRANSPORT, 2, 2),
    )
    length = 24 if is_ipv4 else 64
    network = ip_network(("198.51.100.0" if is_ipv4 else "2001:db8::") + f"/{length}")
    mask, hosts = network.netmask.packed, network.hostmask.packed
    first, last = e.register(size + 8), e.register(2 * size + 8)
    client = (
        *(e.payload(first, e.Header.NETWORK, source, size), e.bitwise(first, mask, bytes(size))),
        *(e.payload(last, e.Header.NETWORK, source, size), e.bitwise(last, mask, hosts)),
    )
    mark, new = e.number(0x4000), e.number(e.CtState.NEW)
    is_new = e.ct(1, e.Ct.STATE), e.bitwise(1, new, bytes(4)), e.compare(1, bytes(4), equal=False)
    accept, address = e.verdict(e.VerdictCode.ACCEPT), "192.0.2.1" if is_ipv4 else "2001:db8::1"
    ports = f"{ip} daddr . meta l4proto . th dport"
    return [
        (
            NftRule("input", (*key, e.lookup("cluster-ip", 1), accept), "a port"),
            f'{ports} @cluster-ip accept comment "a port"',
        ),
        (
            NftRule(
                "input", (*key, *client, e.lookup("source-network", 1, inverted=True), e.verdict(e.VerdictCode.DROP))
            ),
            f"{ports} . {ip} saddr & {network.netmask} . {ip} saddr | {network.hostmask} != @source-network drop",
        ),
        (
            NftRule("input", (*is_new, accept)),
            "ct state new accept",
        ),
        (NftRule("input", (e.ct(1, e.Ct.DIRECTION), e.compare(1, b"\0"), accept)), "ct direction original accept"),
        (
            NftRule("input", (e.meta(1, e.Meta.IIFNAME), e.compare(1, b"lo".ljust(16, b"\0"), equal=False), accept)),
            'iifname != "lo" accept',
        ),
        (NftRule("input", (e.meta(1, e.Meta.IIFNAME), e.compare(1, b"veth"), accept)), 'iifname "veth*" accept'),
        (
            NftRule("input", (e.meta(1, e.Meta.L4PROTO), e.compare(1, b"\6"), e.reject(e.Refusal.TCP_RESET))),
            "reject with tcp reset",
        ),
        (NftRule("input", (e.reject(e.Refusal.ICMP, 3 if is_ipv4 else 4),)), "reject"),
        (
            NftRule("input", (e.payload(1, e.Header.NETWORK, source, size), e.lookup_verdict("ingress", 1))),
            f"{ip} saddr vmap @ingress",
        ),
        (
            NftRule("input", (e.fib_type_of_source(1), e.compare(1, e.number(e.RouteType.LOCAL)), accept)),
            "fib saddr type local accept",
        ),
        (NftRule("input", (e.counter(), e.verdict(e.VerdictCode.RETURN))), "counter packets 0 bytes 0 return"),
        (
            NftRule("input", (e.limit(10, 20), e.log(10247, "ingress-5e9b"))),
            'limit rate 10/second burst 20 packets log prefix "ingress-5e9b" group 10247',
        ),
        (NftRule("input", (e.verdict(e.VerdictCode.GOTO, "mark-masquerade"),)), "goto mark-masquerade"),
        (
            NftRule(
                "mark-masquerade",
                (e.meta(1, e.Meta.MARK), e.bitwise(1, e.number(0xFFFFBFFF), mark), e.set_meta(e.Meta.MARK, 1)),
                "masqueraded later",
            ),
            'meta mark set meta mark | 0x00004000 comment "masqueraded later"',
        ),
        (
            NftRule(
                "postrouting",
                (
                    e.meta(1, e.Meta.MARK),
                    e.bitwise(1, mark, bytes(4)),
                    e.compare(1, bytes(4)),
                    e.verdict(e.VerdictCode.RETURN),
                ),
            ),
            "meta mark & 0x00004000 == 0x00000000 return",
        ),
        (NftRule("postrouting", (e.masquerade(fully_random=False),)), "masquerade"),
        (NftRule("postrouting", (e.masquerade(fully_random=True),)), "masquerade fully-random"),
        (
            NftRule(
                "postrouting",
                (
                    e.immediate(1, socket.inet_pton(table.family, address)),
                    e.source_nat(table.family, 1, fully_random=True),
                ),
            ),
            f"snat to {address} fully-random",
        ),
    ]


CHAINS = (
    Chain("input", "filter", "input", -5),
    Chain("mark-masquerade"),
    Chain("output", "route", "output", -150),
    Chain("postrouting", "nat", "postrouting", 95),
)


@pytest.mark.parametrize("table", [T4, T6], ids=str)
async def test_nft_prints_our_rules_as_a_person_would_write_them(node: RealNode, table: Table) -> None:
    rules = rules_of_every_kind(table)
    await make(node, AddSet(JUMPS), *map(AddChain, CHAINS), *(AddRule(rule) for rule, _ in rules), table=table)
    for chain in CHAINS:
        lines = [line.strip() for line in run(f"nft list chain {table} {chain.name}").splitlines()[2:-2]]
        wanted = [text for rule, text in rules if rule.chain == chain.name]
        if chain.hook:
            priorities = {-5: "filter - 5", -150: "mangle", 95: "srcnat - 5"}
            head = f"type {chain.type} hook {chain.hook} priority {priorities[chain.priority]}; policy accept;"
            wanted = [head, *wanted]
        assert lines == wanted


@pytest.mark.parametrize("table", [T4, T6], ids=str)
async def test_the_kernel_gives_rules_back_as_they_were_written(node: RealNode, table: Table) -> None:
    rules = [rule for rule, _ in rules_of_every_kind(table)]
    await make(node, AddSet(JUMPS), *map(AddChain, CHAINS), *map(AddRule, rules), table=table)
    state = await node.nftables.read(table)
    assert state is not None
    assert sorted(rule for _handle, rule in state.rules) == sorted(rules)


@pytest.mark.parametrize("table", [T4, T6], ids=str)
async def test_nft_prints_our_sets_as_it_would_have_made_them(node: RealNode, table: Table) -> None:
    await make(node, *(AddElements(it, elements_of(table, it)) for it in SETS), table=table)
    address = "ipv4_addr" if table is T4 else "ipv6_addr"
    types: dict[str, object] = {}
    counts: dict[str, int] = {}
    for it in json.loads(run("nft -j list ruleset"))["nftables"]:
        if "set" in it:
            types[it["set"]["name"]] = (it["set"]["type"], it["set"].get("flags", []))
            counts[it["set"]["name"]] = len(it["set"]["elem"])
    assert counts == {it.name: len(elements_of(table, it)) for it in SETS}
    of_port = [address, "inet_proto", "inet_service"]
    assert types == {
        "vip": (address, []),
        "cluster-ip": (of_port, []),
        "hairpin": ([*of_port, address], []),
        "source-network": ([*of_port, address, address], []),
        "pod-network": (address, ["interval"]),
        "port-ranges": (of_port, ["interval"]),
    }


@pytest.mark.parametrize("table", [T4, T6], ids=str)
async def test_what_nft_lists_it_can_load_again_and_we_read_the_same(node: RealNode, table: Table) -> None:
    rules = [rule for rule, _ in rules_of_every_kind(table)]
    filled = [AddElements(it, elements_of(table, it)) for it in SETS]
    await make(node, AddSet(JUMPS), *map(AddChain, CHAINS), *map(AddRule, rules), *filled, table=table)
    listed, before = run(f"nft list table {table}"), await node.nftables.read(table)
    run(f"nft delete table {table}")
    run_nft(listed)
    after = await node.nftables.read(table)
    assert before is not None
    assert after is not None
    assert (after.sets, after.chains) == (before.sets, before.chains)
    for definition in SETS:
        assert await elements(node, definition, table) == set(elements_of(table, definition))


async def test_elements_that_nft_adds_are_read(node: RealNode) -> None:
    await make(node)
    run_nft(
        "add element ip kroute pod-network { 10.0.0.0/8, 192.168.0.3-192.168.0.5 }\n"
        "add element ip kroute source-network { 10.0.0.1 . tcp . 80 . 10.2.0.0 . 10.2.1.255 }\n"
        "add element ip kroute source-network { 10.0.0.1 . tcp . 80 . 10.2.0.5 . 10.2.0.9 }\n"
        "add element ip kroute cluster-ip { 10.0.0.1 . udp . 53 }\n"
    )
    assert await elements(node, NETWORKS) == {("10.0.0.0/8",), ("192.168.0.3/32",), ("192.168.0.4/31",)}
    assert await elements(node, RANGES) == {port("10.2.0.0/23"), port("10.2.0.5-10.2.0.9")}
    assert await elements(node, PORTS) == {("10.0.0.1", 17, 53)}


@pytest.mark.parametrize(
    "made",
    [
        "type ipv4_addr; flags interval;",
        "type inet_service;",
        "type ipv4_addr; size 7;",
        "type ipv4_addr; flags timeout;",
        "type ipv4_addr : verdict;",
    ],
)
async def test_a_set_that_somebody_made_otherwise_is_not_ours(node: RealNode, made: str) -> None:
    run_nft(f"add table ip kroute\nadd {'map' if 'verdict' in made else 'set'} ip kroute vip {{ {made} }}")
    state = await node.nftables.read(T4)
    assert state is not None
    assert state.sets["vip"] != VIPS


async def test_a_chain_whose_policy_somebody_changed_is_not_ours(node: RealNode) -> None:
    await make(node, AddChain(CHAINS[0]))
    run_nft("chain ip kroute input { policy drop; }")
    state = await node.nftables.read(T4)
    assert state is not None
    assert state.chains["input"] == CHAINS[0]._replace(drops=True)


async def test_thousands_of_elements_are_written_while_other_tasks_run(node: RealNode) -> None:
    await make(node)
    many: tuple[Element, ...] = tuple((f"10.{it >> 16}.{it >> 8 & 255}.{it & 255}", 6, 80) for it in range(MANY))
    turns: list[None] = []
    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count(turns))
        assert await node.nftables.write(T4, [AddElements(PORTS, many)]) == []
        assert len(turns) > MANY / LARGEST_PORTION
        turns.clear()
        assert await elements(node, PORTS) == set(many)
        assert len(turns) > MANY / LARGEST_PORTION
        assert await node.nftables.write(T4, [DeleteElements(PORTS, many[1:])]) == []
        counting.cancel()
    assert await elements(node, PORTS) == {many[0]}


async def test_who_has_changed_a_table_is_told(node: RealNode) -> None:
    await make(node)
    async with node.nftables.foreign_changes([T4]) as changes:
        run("nft add element ip kroute vip { 10.0.0.1 }")
        assert (await changes.next()).startswith("nft (process ")
        run("nft flush ruleset")
        assert (await changes.next()).startswith("nft (process ")
        run("nft add table ip other")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await changes.next()


async def test_a_change_among_many_of_another_table_is_told_and_those_alone_wake_nobody(node: RealNode) -> None:
    await make(node)
    add = "add element ip other s {{ {} }}\n".format(", ".join(f"10.0.{it >> 8}.{it & 255}" for it in range(3000)))
    flush = "flush set ip other s\n"
    run_nft("add table ip other\nadd set ip other s { type ipv4_addr; }\n")
    async with node.nftables.foreign_changes([T4]) as changes:
        received = changes.netlink.receive_now
        for text in (add, flush):
            run_nft(text)
        assert received() is not None, "the generation"
        assert received() is not None, "the other generation"
        assert received() is None
        run_nft(f"{add}add element ip kroute vip {{ 10.0.0.1 }}\n{flush}{add}")
        async with asyncio.timeout(HANG):
            assert (await changes.next()).startswith("nft (process ")


async def test_lost_events_count_as_a_change(node: RealNode) -> None:
    await make(node)
    other = NftSet("other", ("ip", "port"))
    await node.other_nftables.transact(T4, [AddSet(other)])
    async with node.nftables.foreign_changes([T4]) as changes:
        for number in range(12):
            ports = tuple((f"10.0.{number}.1", 6, it) for it in range(1, 20_000))
            await node.other_nftables.write(T4, [AddElements(other, ports)])
        async with asyncio.timeout(HANG):
            assert "lost" in await changes.next()
        await node.other_nftables.write(T4, [AddElements(VIPS, (("10.0.0.1",),))])
        async with asyncio.timeout(HANG):
            assert "(process " in await changes.next()


def run_nft(text: str) -> None:
    """Have nft load a file with this text."""
    path = "/tmp/rules.nft"
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)
    run(f"nft -f {path}")


async def count(turns: list[None]) -> None:
    """Count how often other tasks run."""
    while True:
        await asyncio.sleep(0)
        turns.append(None)
