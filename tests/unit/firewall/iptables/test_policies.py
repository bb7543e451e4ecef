"""Network policies in iptables and ipset: names, rules, and the order of writes, on a fake kernel."""

import itertools

import pytest
from structlog.testing import capture_logs

from kroute.firewall.iptables.address_sets import POLICIES
from kroute.firewall.iptables.policy_rules import (
    LONGEST_COMMENT,
    Group,
    cut,
    extra_elements,
    networks_of,
    next_own,
    placed,
    pod_elements,
    pods_of,
    ports_of,
    shared_sets,
    standing_sets,
    table_rules,
)
from kroute.firewall.iptables.policy_tables import PolicyChains
from kroute.firewall.sets import ROOM
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import AddEntry
from kroute.kernel.iptables.rule import comment, parse_rule
from kroute.model.addresses import Family
from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol
from kroute.model.policy_plan import (
    ANY,
    NO_EXTRA,
    Action,
    Answer,
    Direction,
    Extra,
    GroupKey,
    Part,
    PodGroups,
    PolicyChange,
    PortElement,
    PortRange,
    Tier,
)
from kroute.planning.policies.rules import DEFAULTS
from tests.fakes.kernel import FakeKernel
from tests.fakes.node_kernel import FakeNodeKernel
from tests.unit.planning.policies.cluster import (
    Cluster,
    Object,
    block,
    cluster_policy,
    egress,
    every,
    ingress,
    namespace,
    pod,
    pods_with,
    policy,
    port,
    tiers,
)

WEB = pod("web", "10.244.1.5", "fd00:244:1::5", ports=[port("http", 8080)], app="web")
CLIENT = pod("client", "10.244.2.7", "fd00:244:2::7", on="node2", app="client")
INGRESS = GroupKey(Direction.INGRESS, (ObjectKey("shop", "clients"),))
EGRESS = GroupKey(Direction.EGRESS, (ObjectKey("shop", "out"),))
OF_PODS = Part(of_pods=True, action=Action.ACCEPT), Part(of_pods=True, action=Action.DENY)
OF_NETWORKS = (Part(of_pods=False, action=Action.PASS),)
OF_CLUSTER = GroupKey(Direction.EGRESS, (ObjectKey("", "first"),), (), Tier.ADMIN, (*OF_PODS, *OF_NETWORKS))
RANGE, ALL_UDP = PortRange(Protocol.TCP, 8000, 8100), PortRange(Protocol.UDP, 0, 65535)
V4, V6 = Family


def tcp(first: int, last: int) -> Object:
    return {"tcp": {"destinationPort": {"range": {"start": first, "end": last}}}}


def test_names_fit_and_are_the_same_after_a_restart() -> None:
    group = Group.of(INGRESS)
    parts = OF_CLUSTER.of_parts()
    sets = [*standing_sets(INGRESS), networks_of(group, V6, RANGE), *shared_sets(V4), *shared_sets(V6)]
    sets += [next_own(family, direction) for family in Family for direction in Direction]
    sets += [one for part in parts for one in (*standing_sets(part), networks_of(Group.of(part), V6, RANGE, part.part))]
    assert len(group.chain) <= 28
    assert all(len(one.name) <= 31 and one.name.startswith(POLICIES) for one in sets)
    assert len({one.name for one in sets}) == len(sets)
    assert group.chain == "KROUTENP-I-SWARDD2NCJMKVNBO"


def test_a_set_has_room_for_all_that_a_group_may_allow() -> None:
    """A network of every address is two elements."""
    assert 2 * DEFAULTS.elements <= ROOM.first


@pytest.mark.parametrize("name", ['x" -j ACCEPT -m comment --comment "', "x" * 300, "x\\", "naïve"])
def test_no_name_of_a_policy_breaks_a_rule(name: str) -> None:
    key = INGRESS._replace(policies=(ObjectKey("shop", name),))
    group = Group.of(key)
    [*_, last] = table_rules(V4, standing_sets(key))["mangle"].chains[group.chain]
    parsed = parse_rule(last, V4.number)
    assert (parsed.target.name, [match.name for match in parsed.matches]) == ("DROP", ["comment"])
    assert len(group.comment.encode()) <= LONGEST_COMMENT


@pytest.mark.parametrize(
    ("element", "ports", "elements"),
    [
        (("10.0.0.0/8", *ANY), ANY, [("10.0.0.0/8",)]),
        (("10.1.0.1/32", 6, 80, 80), None, [("10.1.0.1/32", 6, 80)]),
        (("fd00::/8", *RANGE), RANGE, [("fd00::/8",)]),
        (("0.0.0.0/0", 17, 53, 53), None, [("0.0.0.0/1", 17, 53), ("128.0.0.0/1", 17, 53)]),
        (("::/0", *ALL_UDP), ALL_UDP, [("::/1",), ("8000::/1",)]),
    ],
)
def test_what_is_allowed_is_in_the_set_of_its_ports(
    element: tuple[object, ...], ports: PortRange | None, elements: list[object]
) -> None:
    one, found = placed(Group.of(INGRESS), 0, PortElement(*element))  # type: ignore[arg-type]
    assert (one.ports, one.family, found) == (ports, V6 if ":" in str(element[0]) else V4, elements)


def test_the_rules_lead_to_groups_which_return_what_they_allow() -> None:
    into, out = Group.of(INGRESS), Group.of(EGRESS)
    sets = [pods_of(into, V4), ports_of(into, V4), networks_of(into, V4, ANY), networks_of(into, V4, RANGE)]
    sets += [networks_of(into, V4, ALL_UDP), pods_of(out, V4), ports_of(out, V4), pods_of(out, V6)]
    rules = table_rules(V4, sets)
    assert rules["mangle"].chains["KROUTENP-INGRESS"] == [
        f"-m set --match-set {pods_of(into, V4).name} dst -g {into.chain}"
    ]
    returns = '-m comment --comment "allowed" -j RETURN'
    of_range = f"-p tcp -m multiport --dports 8000:8100 -m set --match-set {networks_of(into, V4, RANGE).name} src"
    allowed = {
        f"-m set --match-set {networks_of(into, V4, ANY).name} src {returns}",
        f"-p udp -m set --match-set {networks_of(into, V4, ALL_UDP).name} src {returns}",
        f"{of_range} {returns}",
        f'-m set --match-set {ports_of(into, V4).name} src,dst -m comment --comment "an allowed port" -j RETURN',
    }
    *returning, last = rules["mangle"].chains[into.chain]
    assert {*returning} == allowed
    assert last == '-m comment --comment "isolated by shop: clients" -j DROP'
    assert rules["nat"].chains == {
        "KROUTENP-EGRESS": [f"-m set --match-set {pods_of(out, V4).name} src -g {out.chain}"],
        out.chain: [
            f'-m set --match-set {ports_of(out, V4).name} dst,dst -m comment --comment "an allowed port" -j RETURN',
            '-m comment --comment "isolated by shop: out" -j QUEUE',
        ],
    }
    texts = [text for table in rules.values() for chain in table.chains.values() for text in chain]
    assert "KROUTENP-6-" not in " ".join(texts), "that is of the other family"


def test_a_group_of_the_cluster_asks_its_parts_in_order_and_leaves_the_rest_to_the_next_chain() -> None:
    group, out = Group.of(OF_CLUSTER), Group.of(EGRESS)
    accept, deny, leave = (networks_of(group, V4, ANY, part) for part in range(3))
    of_range = networks_of(group, V4, RANGE, 1)
    sets = [pods_of(group, V4), ports_of(group, V4, 0), accept, deny, of_range, leave, pods_of(out, V4)]
    sets.append(next_own(V4, Direction.EGRESS))
    chains = table_rules(V4, sets)["mangle"].chains
    to_next, denied = "-g KROUTENP-EGRESS-NEXT", '-m comment --comment "denied by the tier Admin: first" -j DROP'
    assert chains["KROUTENP-EGRESS"] == [
        f"-m set --match-set {pods_of(group, V4).name} src -g {group.chain}",
        f'-m comment --comment "what the tier Admin has left" {to_next}',
    ]
    assert chains["KROUTENP-EGRESS-NEXT"] == [
        '-m set --match-set KROUTENP-OWN-EGRESS src,dst -m comment --comment "a pod reaches itself" -j RETURN',
        f"-m set --match-set {pods_of(out, V4).name} src -g {out.chain}",
    ]
    rules = chains[group.chain]
    of_single = f"-m set --match-set {ports_of(group, V4, 0).name} dst,dst {comment('Accept')} -j RETURN"
    ranges = f"-p tcp -m multiport --dports 8000:8100 -m set --match-set {of_range.name} dst {denied}"
    assert {*rules[:2]} == {of_single, ranges}
    assert {*rules[2:4]} == {
        f"-m set --match-set {accept.name} dst {comment('Accept')} -j RETURN",
        f"-m set --match-set {deny.name} dst {denied}",
    }
    assert rules[4:] == [
        f"-m set --match-set {leave.name} dst {comment('Pass')} {to_next}",
        f"{comment('not decided by this tier')} {to_next}",
    ]


def test_the_first_group_of_a_pod_and_the_next_one_have_its_address() -> None:
    groups = PodGroups(INGRESS, EGRESS, admin_egress=OF_CLUSTER)
    assert {one.name for one, _ in pod_elements("10.244.1.5", groups)} == {
        *(pods_of(Group.of(key), V4).name for key in (INGRESS, EGRESS, OF_CLUSTER)),
        *("KROUTENP-INGRESS", "KROUTENP-EGRESS", "KROUTENP-OWN-INGRESS", "KROUTENP-OWN-EGRESS"),
    }
    alone = {one.name for one, _ in pod_elements("10.244.1.5", PodGroups(INGRESS, None))}
    assert alone == {pods_of(Group.of(INGRESS), V4).name, "KROUTENP-INGRESS", "KROUTENP-OWN"}


def test_what_is_refused_is_logged_at_first_with_the_name_of_the_group() -> None:
    into, out = Group.of(INGRESS), Group.of(EGRESS)
    rules = table_rules(V4, [*standing_sets(INGRESS), *standing_sets(EGRESS)], 10247)
    for table, group, refusal in (("mangle", into, "DROP"), ("mangle", out, "DROP"), ("nat", out, "QUEUE")):
        *_, logging, last = (parse_rule(text, V4.number) for text in rules[table].chains[group.chain])
        assert last.target.name == refusal
        assert [match.name for match in logging.matches] == ["limit"]
        said = {parameter.name: parameter.values for parameter in logging.target.parameters}
        assert (logging.target.name, said) == ("NFLOG", {"nflog-prefix": (group.chain,), "nflog-group": ("10247",)})


def test_what_a_policy_of_the_cluster_denies_is_logged_at_first() -> None:
    group = Group.of(OF_CLUSTER)
    sets = [one for part in OF_CLUSTER.of_parts() for one in standing_sets(part)]
    rules = table_rules(V4, sets, 10247)["mangle"].chains[group.chain]
    denied = [at for at, one in enumerate(rules) if one.endswith("-j DROP")]
    assert len(denied) == 2, "single ports, and all ports"
    for at in denied:
        matched = rules[at].partition("-m comment")[0]
        assert rules[at - 1].startswith(f"{matched}-m limit ")
        assert rules[at - 1].endswith(f"-j NFLOG --nflog-prefix {group.chain} --nflog-group 10247")


def test_pods_that_are_not_known_are_closed_by_rules_after_those_of_pods_that_are() -> None:
    sets = [pods_of(Group.of(INGRESS), V6), *shared_sets(V6, Extra(closed=("fd00::/64",)))]
    mangle = table_rules(V6, sets)["mangle"]
    unknown = "-m set --match-set KROUTENP-6-CLOSED {0} -m set ! --match-set KROUTENP-6-KNOWN {0} "
    of_node = "-m addrtype --src-type LOCAL"
    pods = mangle.chains["KROUTENP-PODS"]
    closing = [at for at, rule in enumerate(pods) if rule.endswith("-j KROUTENP-CLOSED")]
    assert [pods[at].startswith(unknown.format(end)) for at, end in zip(closing, ("src", "dst"), strict=True)] == [1, 1]
    assert "a pod reaches itself" in pods[closing[0] - 2]
    assert pods[-1].endswith("-j KROUTENP-INGRESS")
    assert [rule.rpartition(" ")[2] for rule in mangle.chains["KROUTENP-CLOSED"]] == ["RETURN", "DROP"]
    closed = {chain: rule for chain, rule in mangle.jumps if rule.endswith("-j KROUTENP-CLOSED")}
    assert unknown.format("src") in closed["INPUT"]
    assert of_node not in closed["INPUT"]
    assert unknown.format("dst") in closed["FORWARD"]
    assert of_node in closed["FORWARD"]
    assert "KROUTENP-CLOSED" not in table_rules(V6, shared_sets(V6))["mangle"].chains


def test_answers_of_connections_that_were_cut_are_dropped_before_pods_are_asked_about() -> None:
    sets = [pods_of(Group.of(INGRESS), V4), *shared_sets(V4, Extra(cut=()))]
    answer, itself, *_ = table_rules(V4, sets)["mangle"].chains["KROUTENP-PODS"]
    assert answer.startswith("-p tcp -m tcp --tcp-flags SYN NONE -m set --match-set KROUTENP-CUT src,src,dst ")
    assert answer.endswith("-j DROP")
    assert "a pod reaches itself" in itself
    of_one = Extra(cut=[Answer("fd00::1", 80, "fd00::2")])
    assert [*extra_elements(of_one)] == [(cut(V6), ("fd00::1", 6, 80, "fd00::2"))]


class Kernel:
    """A fake kernel with the chains and sets, and a plan that they follow."""

    def __init__(self, *items: object) -> None:
        self.kernel = FakeKernel()
        self.cluster = Cluster(namespace("shop"), *items)  # type: ignore[arg-type]

    async def adopted(self, extra: Extra = NO_EXTRA, log_group: int | None = None) -> PolicyChains:
        clients = await FakeNodeKernel.of(self.kernel).open()
        self.chains = PolicyChains(clients.ipset, clients.xtables, log_group)
        await self.chains.restore(self.cluster.catalog.groups(), self.cluster.catalog.pods, extra)
        return self.chains

    async def make(self, change: PolicyChange | None) -> list[str]:
        """Make a change; returns what was written."""
        self.kernel.writes.clear()
        assert change is not None
        await self.chains.write(change)
        return [str(one) for one in self.kernel.writes]

    @property
    def rules(self) -> int:
        """How many rules mangle has for IPv4."""
        return sum(map(len, self.kernel.tables[V4.number, "mangle"].chains.values()))


async def test_a_kernel_that_cannot_log_isolates_all_the_same() -> None:
    node = Kernel(WEB, ingress(pods_with(app="client")))
    node.kernel.missing_modules.add("xt_NFLOG")
    with capture_logs() as logs:
        chains = await node.adopted(log_group=10247)
        node.kernel.missing_modules.clear()
        assert await chains.restore(node.cluster.catalog.groups(), node.cluster.catalog.pods) == []
    [said] = logs
    assert (said["event"], "xt_NFLOG" in said["next_step"]) == ("policy_log.unsupported", True)
    text = repr([table.chains for table in node.kernel.tables.values()])
    assert ("-j DROP" in text, "NFLOG" in text) == (True, False)


async def test_rules_that_are_refused_with_and_without_logging_are_an_error() -> None:
    node = Kernel(WEB, ingress(pods_with(app="client")))
    node.kernel.missing_modules.update({"xt_NFLOG", "xt_DROP"})
    with capture_logs() as logs, pytest.raises(KernelError, match="no target"):
        await node.adopted(log_group=10247)
    assert logs == []
    node.kernel.missing_modules.clear()
    await node.chains.restore(node.cluster.catalog.groups(), node.cluster.catalog.pods)
    assert "NFLOG" in repr([table.chains for table in node.kernel.tables.values()])


async def test_a_peer_is_one_element_of_each_family_and_no_rule() -> None:
    node = Kernel(WEB, ingress(pods_with(app="client"), ports=[{"port": "http"}]))
    await node.adopted()
    writes = await node.make(node.cluster.after(CLIENT))
    assert sorted(one.rpartition(" ")[0] for one in writes) == [
        "add 10.244.2.7/32,TCP,8080 to set",
        "add fd00:244:2::7/128,TCP,8080 to set",
    ]


async def test_a_group_is_whole_before_pods_are_led_to_it_and_goes_when_none_is() -> None:
    node = Kernel(WEB, CLIENT, policy("other", selector={"matchLabels": {"app": "other"}}))
    await node.adopted()
    writes = await node.make(node.cluster.after(ingress(pods_with(app="client"), name="clients")))
    kinds = [kind_of(one) for one in writes]
    assert [kind for kind, _ in itertools.groupby(kinds)] == ["create", "fill", "commit", "lead"]
    node.cluster.delete(ingress(name="clients"))
    writes = await node.make(node.cluster.plan())
    assert node.kernel.sets == {}
    assert node.rules == 0


def kind_of(write: str) -> str:
    if write.startswith("add"):
        return "lead" if any(f"to set {POLICIES}{it}" in write for it in ("6-OWN", "OWN", "6-ING", "ING")) else "fill"
    return write.partition(" ")[0]


async def test_a_pod_whose_group_changes_is_led_to_the_new_one_by_the_commit_that_deletes_the_old_one() -> None:
    node = Kernel(WEB, CLIENT, policy("deny"))
    await node.adopted()
    [before] = [chain for chain in node.kernel.tables[V4.number, "mangle"].chains if chain.startswith("KROUTENP-I-")]
    writes = await node.make(node.cluster.after(ingress(pods_with(app="client"), name="clients")))
    [after] = [chain for chain in node.kernel.tables[V4.number, "mangle"].chains if chain.startswith("KROUTENP-I-")]
    assert before != after
    commits = [at for at, one in enumerate(writes) if one == "commit table mangle"]
    assert len(commits) == 2, "one of each family"
    assert all("KROUTENP-P-" in one for one in writes[commits[0] :] if "10.244.1.5 " in one)
    assert [one for one in writes[: commits[0]] if one.startswith("add 10.244.1.5 ")] == [
        f"add 10.244.1.5 to set KROUTENP-P-{after.rpartition('-')[2]}"
    ]
    assert not any("OWN" in one or "KROUTENP-INGRESS" in one for one in writes)


def place(writes: list[str], beginning: str) -> int:
    [found] = [at for at, one in enumerate(writes) if one.startswith(beginning)]
    return found


async def test_a_closed_address_opens_when_its_pod_is_isolated_and_closes_before_it_is_not() -> None:
    node = Kernel(policy("deny"))
    await node.adopted(Extra(closed=("10.244.1.0/24",)))
    writes = await node.make(node.cluster.after(WEB))
    isolated, known = (place(writes, f"add 10.244.1.5 to set KROUTENP-{name}") for name in ("INGRESS", "KNOWN"))
    assert isolated < known
    node.cluster.delete(WEB)
    writes = await node.make(node.cluster.plan())
    isolated, known = (place(writes, f"delete 10.244.1.5 from set KROUTENP-{name}") for name in ("INGRESS", "KNOWN"))
    assert known < isolated


async def test_no_pod_meets_what_its_group_allows_before_it_enters_or_after_it_has_left() -> None:
    """A kill between two writes would leave the pod open until the next start."""
    other = pod("other", "10.244.1.6", app="other")
    second = pod("second", "10.244.3.8", on="node3", app="second")
    selector = {"matchLabels": {"app": "other"}}
    for_all = ingress(pods_with(app="client"), name="clients")
    for_other = ingress(pods_with(app="second"), name="clients", selector=selector)
    node = Kernel(WEB, other, CLIENT, second, policy("deny"), for_all)
    await node.adopted()

    [both] = [key for key, _ in node.cluster.catalog.groups()]
    pods = pods_of(Group.of(both), V4).name
    writes = await node.make(node.cluster.after(for_other))
    assert place(writes, f"delete 10.244.1.5 from set {pods}") < place(writes, "add 10.244.3.8/32 to set ")
    writes = await node.make(node.cluster.after(for_all))
    assert place(writes, "delete 10.244.3.8/32 from set ") < place(writes, f"add 10.244.1.5 to set {pods}")


async def test_a_group_of_the_cluster_refuses_all_that_it_will_refuse_before_it_accepts_more() -> None:
    def of_cluster(action: str, last: int) -> Object:
        peers = {"action": action, "to": [every(app="client")], "protocols": [tcp(80, last)]}
        return cluster_policy(egress=[peers, {"action": "Pass", "to": [every(app="web")]}])

    node = Kernel(WEB, CLIENT, of_cluster("Deny", 90))
    await node.adopted()
    [key, *_] = [key for key, _ in node.cluster.catalog.groups()]
    first, second = (networks_of(Group.of(key), V4, PortRange(Protocol.TCP, 80, last)).name for last in (90, 95))
    writes = await node.make(node.cluster.after(of_cluster("Deny", 95)))
    added, commit = writes.index(f"add 10.244.2.7/32 to set {second}"), writes.index("commit table mangle")
    assert added < commit < writes.index(f"destroy set {first}")
    assert not any(one.startswith("delete 10.244.2.7/32") for one in writes[:commit])
    await node.make(node.cluster.after(of_cluster("Accept", 90)))
    writes = await node.make(node.cluster.after(of_cluster("Accept", 95)))
    [deleted] = [at for at, one in enumerate(writes) if one.startswith("delete 10.244.2.7/32")]
    [added] = [at for at, one in enumerate(writes) if one.startswith("add 10.244.2.7/32")]
    assert deleted < writes.index("commit table mangle") < added


async def test_an_element_that_is_refused_keeps_no_other_waiting_and_the_next_restore_writes_it() -> None:
    node = Kernel(WEB, ingress(pods_with(app="client")))
    await node.adopted()
    node.kernel.refuse(lambda change: isinstance(change, AddEntry) and change.element == ("10.244.2.7/32",), 12)
    with pytest.raises(KernelError, match=r"10\.244\.2\.7"):
        await node.make(node.cluster.after(CLIENT))
    assert any(found.elements == {("fd00:244:2::7/128",)} for found in node.kernel.sets.values())
    assert not await node.chains.is_untouched()
    node.kernel.accept_all()
    drift = await node.chains.restore(node.cluster.catalog.groups(), node.cluster.catalog.pods)
    assert [one.split(" ", 2)[2] for one in drift] == ["lacked 1 elements"]
    assert await node.chains.is_untouched()


async def test_a_kernel_without_ipv6_isolates_over_ipv4() -> None:
    node = Kernel(pod("web", "10.244.1.5", app="web"), policy("deny", policyTypes=["Ingress", "Egress"]))
    node.kernel.ipv6 = False
    chains = await node.adopted()
    assert await chains.is_untouched()
    assert (V6.number, "mangle") not in node.kernel.tables
    assert node.rules > 0


async def test_what_changes_write_is_what_a_restart_would_write() -> None:
    node = Kernel(WEB, CLIENT)
    await node.adopted()
    ports = [{"port": 8000, "endPort": 8100}, {"protocol": "UDP"}, {"protocol": "SCTP", "port": 9}]
    story = [
        ingress(pods_with(app="client"), block("0.0.0.0/0", "10.0.0.0/8"), ports=ports, name="in"),
        egress(block("::/0"), block("0.0.0.0/0"), ports=ports, name="out"),
        ingress(block("0.0.0.0/1"), ports=ports[:1], name="in"),
        egress(block("::/0"), ports=ports[1:], name="out"),
        ingress(name="in"),
        *tiers(),
        ingress(block("0.0.0.0/1"), ports=ports[:1], name="in"),
    ]
    for step in story:
        await node.make(node.cluster.after(step))
        clients = await FakeNodeKernel.of(node.kernel).open()
        again = PolicyChains(clients.ipset, clients.xtables)
        node.kernel.writes.clear()
        assert await again.restore(node.cluster.catalog.groups(), node.cluster.catalog.pods) == []
        assert node.kernel.writes == []


async def test_a_missing_set_of_peers_is_filled_before_the_next_is_made_and_any_rule_names_it() -> None:
    rules = [{"ports": [{"port": 80}], "from": [pods_with(app="client")]}]
    node = Kernel(WEB, CLIENT, policy(ingress=rules, policyTypes=["Ingress", "Egress"], egress=[]))
    await node.adopted()
    writes = [str(one) for one in node.kernel.writes]
    filled = [at for at, one in enumerate(writes) if "KROUTENP-S-" in one and one.startswith("add 10.244.2.7/32")]
    made = [at for at, one in enumerate(writes) if one.startswith("create set KROUTENP-S-")]
    assert len(filled) == 1
    assert made[0] < filled[0] < made[-1] < writes.index("commit table mangle")
    assert await node.chains.restore(node.cluster.catalog.groups(), node.cluster.catalog.pods) == []
