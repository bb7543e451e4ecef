"""The tables of network policies on a real kernel: written by changes, read back after a restart, and repaired."""

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from kroute.firewall.iptables.address_sets import POLICIES
from kroute.firewall.iptables.policy_tables import PolicyChains
from kroute.firewall.nftables.names import POLICY_TABLES
from kroute.firewall.nftables.policy_rules import MAPS, Group
from kroute.firewall.nftables.policy_tables import MANY, PolicyTables
from kroute.firewall.protocol import PolicyFirewall
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.ipset import Ipset, SetChange, SetDefinition
from kroute.kernel.iptables import tools
from kroute.kernel.iptables.tools import VARIANTS
from kroute.kernel.iptables.xtables import Xtables
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import AddElements, DeleteElements, NftChange, Table
from kroute.model.addresses import Family
from kroute.model.policy_plan import NO_EXTRA, Answer, Direction, Extra, PolicyChange
from kroute.reconcile.cleanup_report import CleanupReport
from tests.kernel.nodes import RealNode, run
from tests.unit.planning.policies.cluster import (
    Cluster,
    block,
    egress,
    ingress,
    namespace,
    pod,
    pods_with,
    policy,
    port,
    tiers,
)

T4 = POLICY_TABLES[Family.IPV4]
WEB = pod("web", "10.244.1.5", "fd00:244:1::5", ports=[port("http", 8080)], app="web")
CLIENT = pod("client", "10.244.2.7", "fd00:244:2::7", on="node2", app="client")
OTHER = pod("other", "10.244.2.8", "fd00:244:2::8", on="node2", app="client")
SHOP = namespace("shop")
DENY = policy("deny", policyTypes=["Ingress", "Egress"])
RANGE = [{"port": 8000, "endPort": 8100}, {"protocol": "UDP", "port": 53}]
STORY = [
    (DENY,),
    (ingress(pods_with(app="client"), ports=[{"port": "http"}], name="clients"), CLIENT),
    (OTHER,),
    (ingress(block("10.0.0.0/8", "10.244.2.0/24"), block("fd00::/16"), ports=RANGE, name="blocks"),),
    (egress(pods_with(app="client"), block("0.0.0.0/0"), name="out"),),
    (ingress(block("10.0.0.0/8"), name="blocks"),),
]
"""What is applied, one after another."""


class Recorder(Nftables):
    """Keeps what was written in transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[NftChange] = []

    async def transact(self, table: Table, changes: Sequence[NftChange], *, generation: int = 0) -> list[Any]:
        self.changes += changes
        return await super().transact(table, changes, generation=generation)


async def write(tables: PolicyFirewall, change: PolicyChange | None) -> None:
    if change is not None:
        await tables.write(change)


class OnNftables:
    """The tables of nf_tables."""

    mark = pytest.mark.nftables
    group = "g=$(nft list map ip kroute-policies ingress | grep -o 'ingress-[0-9a-f]*' | head -n 1)"
    damages: ClassVar[Mapping[str, str]] = {
        "all is gone": "nft flush ruleset",
        "one table is gone": "nft delete table ip6 kroute-policies",
        "no rules": "nft flush table ip kroute-policies",
        "a rule of a group is gone": "nft flush chain ip kroute-policies $g",
        "a rule is added": "nft insert rule ip kroute-policies postrouting accept",
        "a pod is gone": "nft flush map ip kroute-policies ingress",
        "a pod is added": "nft add element ip kroute-policies ingress { 10.9.9.9 : jump $g }",
        "a peer is gone": "nft flush set ip kroute-policies $g-ports",
        "a peer is added": "nft add element ip kroute-policies $g-networks { 10.9.9.9 }",
        "a chain is added": "nft add chain ip kroute-policies mine; nft add rule ip kroute-policies mine drop",
        "a set is added": "nft add set ip kroute-policies mine '{ type ipv4_addr; }'",
        "a group is gone": (
            "nft flush map ip kroute-policies ingress; nft flush chain ip kroute-policies $g;"
            " nft delete chain ip kroute-policies $g; nft delete set ip kroute-policies $g-ports"
        ),
        "it is dormant": "nft add table ip kroute-policies '{ flags dormant; }'",
        "a set is of another kind": (
            "nft flush chain ip kroute-policies $g; nft delete set ip kroute-policies $g-networks;"
            " nft add set ip kroute-policies $g-networks '{ type inet_service; }'"
        ),
    }

    def __init__(self, node: RealNode, log_group: int | None = None) -> None:
        self._nftables = node.nftables
        self._log_group = log_group

    def made(self) -> PolicyTables:
        return PolicyTables(self._nftables, self._log_group)

    async def restore(self, cluster: Cluster, extra: Extra = NO_EXTRA) -> list[str]:
        """Restore as after a restart; nothing is written where nothing is wrong."""
        async with Nftables() as other:
            before = await other.foreign_generation()
            wrong = await self.made().restore(cluster.catalog.groups(), cluster.catalog.pods, extra)
            assert (await other.foreign_generation() == before) == (not wrong)
        return wrong

    async def is_empty(self) -> bool:
        return await self._nftables.tables() == []


class OnIptables:
    """The chains and sets of the legacy tables and ipset."""

    mark = pytest.mark.legacy
    group = (
        "g=$(iptables-legacy -t mangle -S KROUTENP-INGRESS | grep -o 'KROUTENP-I-[A-Z2-7]*' | head -n 1); d=${g##*-}"
    )
    damages: ClassVar[Mapping[str, str]] = {
        "all is gone": (
            "for t in iptables-legacy ip6tables-legacy; do"
            " $t -t mangle -F; $t -t mangle -X; $t -t nat -F; $t -t nat -X; done; ipset destroy"
        ),
        "one table is gone": "ip6tables-legacy -t mangle -F; ip6tables-legacy -t mangle -X",
        "the jump is gone": "iptables-legacy -t mangle -F POSTROUTING",
        "a rule is before the jump": "iptables-legacy -t mangle -I POSTROUTING -j ACCEPT",
        "a rule of a group is gone": "iptables-legacy -t mangle -D $g 1",
        "a rule is added": "ip6tables-legacy -t mangle -I KROUTENP-PODS -j ACCEPT",
        "a rule no longer goes to the group": (
            "iptables-legacy -t mangle -R KROUTENP-INGRESS 1 -m set --match-set KROUTENP-P-$d dst -j $g"
        ),
        "nothing is refused on the way to the node": "ip6tables-legacy -t nat -F INPUT",
        "a pod is gone": "ipset flush KROUTENP-INGRESS",
        "a pod is not of its group": "ipset flush KROUTENP-P-$d",
        "a pod is added": "ipset add KROUTENP-6-EGRESS fd00::9",
        "a peer is gone": "ipset flush KROUTENP-S-$d",
        "a peer is added": "ipset add KROUTENP-S-$d 10.9.9.9,tcp:80",
        "a peer is another one": (
            "ipset del KROUTENP-S-$d 10.244.2.7,tcp:8080; ipset add KROUTENP-S-$d 10.244.2.9,tcp:8080"
        ),
        "a chain is added": (
            "iptables-legacy -t mangle -N KROUTENP-X; iptables-legacy -t mangle -A KROUTENP-X -j DROP;"
            " iptables-legacy -t mangle -A FORWARD -j KROUTENP-X"
        ),
        "a set is added": "ipset create KROUTENP-X hash:ip",
        "a set is of another kind": (
            "iptables-legacy -t mangle -F; iptables-legacy -t mangle -X; ipset destroy KROUTENP-S-$d;"
            " ipset create KROUTENP-S-$d hash:ip"
        ),
    }

    def __init__(self, node: RealNode, log_group: int | None = None) -> None:
        self._ipset = node.ipset
        self._log_group = log_group

    def made(self, ipset: Ipset | None = None) -> PolicyChains:
        xtables = {variant: Xtables(variant) for variant in VARIANTS}
        return PolicyChains(ipset or self._ipset, xtables, self._log_group)

    async def restore(self, cluster: Cluster, extra: Extra = NO_EXTRA) -> list[str]:
        """Restore as after a restart; nothing is written where nothing is wrong."""
        async with SetRecorder() as recorder:
            again = self.made(recorder)
            wrong = await again.restore(cluster.catalog.groups(), cluster.catalog.pods, extra)
            assert bool(recorder.changes) <= bool(wrong)
            assert await again.is_untouched()
        return wrong

    async def is_empty(self) -> bool:
        return await self._ipset.names() == set() and all(POLICIES not in saved(family) for family in FAMILIES)


FAMILIES = socket.AF_INET, socket.AF_INET6
KINDS = OnNftables, OnIptables
each_kind = pytest.mark.parametrize("kind", [pytest.param(kind, marks=kind.mark, id=kind.__name__) for kind in KINDS])
nftables, legacy = pytest.mark.nftables, pytest.mark.legacy


class SetRecorder(Ipset):
    """Keeps what was written to sets."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[str] = []

    async def write(self, changes: Sequence[SetChange]) -> list[Failure[SetChange]]:
        self.changes += map(str, changes)
        return await super().write(changes)

    async def create(self, definition: SetDefinition) -> bool:
        self.changes.append(f"create {definition.name}")
        return await super().create(definition)

    async def destroy(self, name: str) -> None:
        self.changes.append(f"destroy {name}")
        await super().destroy(name)


def saved(family: int) -> str:
    return run(f"{'ip6tables' if family == socket.AF_INET6 else 'iptables'}-legacy-save")


async def is_right(cluster: Cluster, on: OnNftables | OnIptables) -> None:
    """A restart finds nothing wrong, and writes nothing."""
    assert await on.restore(cluster) == []


@each_kind
async def test_what_changes_have_written_is_what_a_restart_would_write(
    node: RealNode, kind: type[OnNftables | OnIptables]
) -> None:
    cluster, on = Cluster(SHOP, WEB), kind(node)
    tables = on.made()
    assert await tables.restore(cluster.catalog.groups(), cluster.catalog.pods) == []
    assert await on.is_empty()
    for items in (*STORY, *([item] for item in tiers())):
        await write(tables, cluster.after(*items))
        await is_right(cluster, on)
    for items in [(), *([item] for item in tiers()[:2]), *STORY[:0:-1]]:
        cluster.delete(*items)
        await write(tables, cluster.plan())
        await is_right(cluster, on)
    cluster.delete(DENY)
    await write(tables, cluster.plan())
    assert await on.is_empty()


@each_kind
async def test_rules_that_log_come_and_go_with_the_setting(node: RealNode, kind: type[OnNftables | OnIptables]) -> None:
    cluster = Cluster(SHOP, WEB, CLIENT, DENY, *STORY[1])
    for on in (kind(node), kind(node, 10247), kind(node)):
        assert await on.restore(cluster)
        await is_right(cluster, on)


@each_kind
async def test_networks_are_closed_around_the_pods_that_are_known_and_opened_again(
    node: RealNode, kind: type[OnNftables | OnIptables]
) -> None:
    cluster, on, extra = Cluster(SHOP, all_pods=True), kind(node), Extra(("10.244.1.0/24", "fd00:244:1::/64"))
    tables = on.made()
    await tables.restore(cluster.catalog.groups(), cluster.catalog.pods, extra)
    assert await on.restore(cluster, extra) == []
    for items in ((WEB,), (DENY,), (pod("db", "10.244.1.6", "fd00:244:1::6", app="db"),), (tiers()[1],)):
        await write(tables, cluster.after(*items))
        assert await on.restore(cluster, extra) == []
    opened = cluster.fresh()
    assert await on.restore(opened) != []
    await is_right(opened, on)
    assert await on.restore(cluster, extra) != []
    assert await on.restore(cluster, extra) == []


@each_kind
async def test_answers_are_dropped_until_they_are_not_any_more(
    node: RealNode, kind: type[OnNftables | OnIptables]
) -> None:
    first, second = Answer("10.244.1.5", 8080, "10.244.2.7"), Answer("fd00:244:1::5", 8080, "fd00:244:2::7")
    cluster, on, cut = Cluster(SHOP, WEB, DENY), kind(node), dict.fromkeys([first])
    tables = on.made()
    await tables.restore(cluster.catalog.groups(), cluster.catalog.pods, Extra(cut=cut))
    assert await on.restore(cluster, Extra(cut=cut)) == []
    await tables.change_cut([second], [first])
    assert await on.restore(cluster, Extra(cut=[second])) == []
    assert await on.restore(cluster) != []
    await is_right(cluster, on)
    cluster.delete(DENY)
    cluster.plan()
    tables = on.made()
    await tables.restore([], {}, Extra(cut=[second]))
    await write(tables, cluster.after(DENY))
    assert await on.restore(cluster, Extra(cut=[second])) == []


@each_kind
async def test_a_pod_that_moves_between_groups_takes_all_of_its_addresses_along(
    node: RealNode, kind: type[OnNftables | OnIptables]
) -> None:
    second = pod("db", "10.244.1.6", "fd00:244:1::6", app="db")
    cluster, on = Cluster(SHOP, WEB, second, DENY, CLIENT), kind(node)
    tables = on.made()
    await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
    of_web = ingress(pods_with(app="client"), name="web", selector={"matchLabels": {"app": "web"}})
    for step in (of_web, pod("db", "10.244.1.6", "fd00:244:1::6", app="web"), pod("db", "10.244.1.7", app="other")):
        await write(tables, cluster.after(step))
        await is_right(cluster, on)


@nftables
async def test_a_new_peer_is_one_element_and_a_pod_that_leaves_is_one(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB, CLIENT, *STORY[1])
    async with Recorder() as recorder:
        tables = PolicyTables(recorder)
        await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
        recorder.changes.clear()
        await write(tables, cluster.after(OTHER))
        assert [one.elements for one in recorder.changes if isinstance(one, AddElements)] == [
            (("10.244.2.8", 6, 8080),),
            (("fd00:244:2::8", 6, 8080),),
        ]
        cluster.delete(OTHER)
        await write(tables, cluster.plan())
        assert [type(one) for one in recorder.changes] == [AddElements, AddElements, DeleteElements, DeleteElements]


@nftables
async def test_a_set_that_many_ranges_leave_is_made_anew_and_keeps_the_others(node: RealNode) -> None:
    """To delete them one by one took the kernel 47 s for 50,000."""
    peers = [pod(f"c{it}", f"10.244.3.{it}", on="node2", app="client") for it in range(1, 1 + MANY)]
    cluster = Cluster(SHOP, WEB, CLIENT, *peers, ingress(pods_with(app="client"), ports=RANGE))
    async with Recorder() as recorder:
        tables = PolicyTables(recorder)
        await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
        recorder.changes.clear()
        cluster.delete(*peers)
        await write(tables, cluster.after(OTHER))
        ranges = [str(one).split(" set ")[0] for one in recorder.changes if "-ranges" in str(one)]
        assert ranges == ["delete", "add", "add 2 elements to", "add fd00:244:2::8/128,TCP,8000,8100 to"]
        await is_right(cluster, OnNftables(node))


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        pytest.param(kind, damage, marks=kind.mark, id=f"{kind.__name__}: {name}")
        for kind in KINDS
        for name, damage in kind.damages.items()
    ],
)
async def test_what_others_change_is_put_right(
    node: RealNode, kind: type[OnNftables | OnIptables], damage: str
) -> None:
    cluster, on = Cluster(SHOP, WEB, CLIENT, *(item for items in STORY[:-1] for item in items)), kind(node)
    tables = on.made()
    await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
    assert await tables.is_untouched()
    run("sh -e", f"{kind.group}\n{damage}")
    assert not await tables.is_untouched()
    assert await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
    assert await tables.is_untouched()
    await is_right(cluster, on)


@nftables
async def test_the_damage_of_a_change_is_found_and_the_next_restore_makes_the_change(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB, CLIENT, *STORY[1])
    tables = PolicyTables(node.nftables)
    await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
    run("nft delete table ip kroute-policies")
    with pytest.raises(Exception, match="No such file"):
        await write(tables, cluster.after(OTHER))
    await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
    await is_right(cluster, OnNftables(node))


@nftables
async def test_names_are_those_of_the_groups_and_comments_name_the_policies(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB, DENY)
    await PolicyTables(node.nftables).restore(cluster.catalog.groups(), cluster.catalog.pods)
    groups = cluster.catalog.pods["10.244.1.5"]
    assert groups.ingress is not None
    chain = Group.of(groups.ingress).chain
    led = [element async for part in node.nftables.elements(T4, MAPS[Direction.INGRESS]) for element in part]
    assert led == [("10.244.1.5", chain)]
    listed = json.loads(run(f"nft -j list chain ip kroute-policies {chain}"))["nftables"]
    assert listed[-1]["rule"]["comment"] == "isolated by shop: deny"


@nftables
async def test_a_cleanup_removes_the_tables_alone(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB, DENY)
    run("nft add table ip kroute")
    await PolicyTables(node.nftables).restore(cluster.catalog.groups(), cluster.catalog.pods)
    report = CleanupReport()
    await PolicyTables(node.nftables).remove(report)
    assert (report.undone, report.failed) == (
        ["delete table ip kroute-policies", "delete table ip6 kroute-policies"],
        [],
    )
    assert await node.nftables.tables() == [("ip", "kroute")]


@legacy
async def test_a_peer_is_an_element_and_a_new_group_is_whole_before_a_pod_is_led_to_it(
    node: RealNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tools.write

    async def write_rules(variant: tools.Variant, table: str, lines: Sequence[str], *, wait: int) -> None:
        recorder.changes.append(f"rules of {variant.label} {table}")
        await plain(variant, table, lines, wait=wait)

    monkeypatch.setattr(tools, "write", write_rules)
    cluster = Cluster(SHOP, WEB, CLIENT)
    async with SetRecorder() as recorder:
        chains = OnIptables(node).made(recorder)
        await write(chains, cluster.after(*STORY[1]))
        steps = "add 10.244.2.7/32,TCP,8080 ", "rules of IPv4 mangle", "add 10.244.1.5 to set KROUTENP-INGRESS"
        found = [[one.startswith(step) for one in recorder.changes].index(True) for step in steps]
        assert found == sorted(found)
        recorder.changes.clear()
        await write(chains, cluster.after(OTHER))
        cluster.delete(OTHER)
        await write(chains, cluster.plan())
        peers = "10.244.2.8/32", "fd00:244:2::8/128"
        wanted = [f"{what} {peer},TCP,8080" for what in ("add", "delete") for peer in peers]
        assert sorted(" ".join(one.split()[:2]) for one in recorder.changes) == wanted


@legacy
async def test_a_range_that_comes_or_goes_and_every_address_are_written_and_found_again(node: RealNode) -> None:
    """A set has no network of every address: it is written as two, of which one may stay."""
    everywhere, half = ingress(block("0.0.0.0/0"), block("::/0"), ports=RANGE), ingress(block("0.0.0.0/1"), ports=RANGE)
    cluster, on = Cluster(SHOP, WEB, DENY), OnIptables(node)
    chains = on.made()
    await chains.restore(cluster.catalog.groups(), cluster.catalog.pods)
    without = ingress(block("::/0"))
    for step in (everywhere, half, without, everywhere, without):
        await write(chains, cluster.after(step))
        assert await chains.is_untouched()
        await is_right(cluster, on)
        ranges = "--dports 8000:8100" in saved(socket.AF_INET)
        assert ranges == (step is not without)


@legacy
async def test_only_families_of_isolated_pods_have_rules(node: RealNode) -> None:
    cluster, on = Cluster(SHOP, pod("web", "10.244.1.5", app="web"), DENY), OnIptables(node)
    chains = on.made()
    await chains.restore(cluster.catalog.groups(), cluster.catalog.pods)
    assert saved(socket.AF_INET6) == ""
    for web, has_rules in ((WEB, True), (pod("web", "fd00:244:1::5", app="web"), False)):
        await write(chains, cluster.after(web))
        await is_right(cluster, on)
        assert "KROUTENP-" in saved(socket.AF_INET6)
        assert ("KROUTENP-" in saved(socket.AF_INET)) == has_rules


@legacy
async def test_a_group_without_its_set_is_found_and_the_next_restore_makes_the_change(node: RealNode) -> None:
    cluster, on = Cluster(SHOP, WEB, CLIENT, *STORY[1]), OnIptables(node)
    chains = on.made()
    await chains.restore(cluster.catalog.groups(), cluster.catalog.pods)
    run("sh -e", on.damages["all is gone"])
    with pytest.raises(KernelError, match="No such file"):
        await write(chains, cluster.after(OTHER))
    assert not await chains.is_untouched()
    await chains.restore(cluster.catalog.groups(), cluster.catalog.pods)
    await is_right(cluster, on)


@legacy
async def test_refused_packets_are_counted_in_both_tables_and_families(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB, DENY)
    chains = OnIptables(node).made()
    await chains.restore(cluster.catalog.groups(), cluster.catalog.pods)
    into, out = (chains.group_name(key) for key in cluster.catalog.pods["10.244.1.5"] if key is not None)
    assert await chains.refused() == {into: 0, out: 0}
    for tool, table, chain, packets in (
        ("iptables", "mangle", into, 7),
        ("ip6tables", "mangle", into, 20),
        ("iptables", "mangle", out, 300),
        ("ip6tables", "nat", out, 4000),
    ):
        last = run(f"{tool}-legacy -t {table} -S {chain}").count("-A ")
        target = "QUEUE" if table == "nat" else "DROP"
        run(f"{tool}-legacy -t {table} -R {chain} {last} -j {target} -c {packets} 1")
    assert await chains.refused() == {into: 27, out: 4300}


@legacy
async def test_a_cleanup_removes_the_chains_and_sets_of_policies_alone(node: RealNode) -> None:
    cluster, on = Cluster(SHOP, WEB, DENY), OnIptables(node)
    for line in ("-N KROUTE-OUTPUT", "-A OUTPUT -j KROUTE-OUTPUT", "-A POSTROUTING -p 89 -j ACCEPT"):
        run(f"iptables-legacy -t mangle {line}")
    run("ipset create KROUTE-VIP hash:ip")
    before = without_counters(saved(socket.AF_INET))
    await on.made().restore(cluster.catalog.groups(), cluster.catalog.pods)
    report = CleanupReport()
    await on.made().remove(report)
    assert report.failed == []
    assert {"remove IPv6 jump from POSTROUTING of table mangle", "destroy set KROUTENP-OWN"} <= {*report.undone}
    assert before <= without_counters(saved(socket.AF_INET))
    assert POLICIES not in saved(socket.AF_INET) + saved(socket.AF_INET6)
    assert await node.ipset.names() == {"KROUTE-VIP"}


def without_counters(listing: str) -> set[str]:
    return {line.partition(" [")[0] for line in listing.splitlines() if not line.startswith("#")}
