"""After any changes in any order, the plan lets those packets pass that the APIs' text allows, it is the plan that a
new catalog makes of the final objects, and a kernel takes every change on the way.
"""

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kroute.model.objects import (
    ClusterNetworkPolicy,
    ClusterNetworkPolicySpec,
    ClusterPeer,
    ClusterPolicyRule,
    ClusterPort,
    ClusterProtocol,
    ClusterProtocolPorts,
    IPBlock,
    LabelSelector,
    LabelSelectorRequirement,
    NamespacedPods,
    NetworkPolicy,
    NetworkPolicyPeer,
    NetworkPolicyPort,
    NetworkPolicyRule,
    NetworkPolicySpec,
    ObjectMeta,
    PortNumbers,
)
from kroute.planning.policies.cluster_rules import reading_cluster
from kroute.planning.policies.rules import DEFAULTS, Limits, reading
from tests.builders import finish
from tests.examples import examples
from tests.unit.planning.policies import cluster, oracle
from tests.unit.planning.policies.cluster import Cluster, Node, Object, block

NAMESPACES = st.sampled_from(["shop", "bank"])
ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.1.1", "fd00::1", "fd00::2"]
OUTSIDE = ["10.0.0.9", "192.0.2.1", "fd00::9"]
PACKETS = [("TCP", 80), ("TCP", 81), ("TCP", 90), ("UDP", 80), ("UDP", 53), ("ICMP", 0)]
TIMES = st.sampled_from([None, None, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])
LABELS = st.fixed_dictionaries({}, optional={"app": st.sampled_from("xy"), "tier": st.sampled_from("pq")})
NAMED = [("http", 80, None), ("http", 81, "TCP"), ("http", 80, "UDP"), ("dns", 53, "UDP")]

PODS = st.builds(
    lambda name, addresses, labels, ports, **options: cluster.pod(
        name, *addresses, ports=[cluster.port(*it) for it in ports], **options, **labels
    ),
    name=st.sampled_from(["p1", "p2", "p3", "p4"]),
    addresses=st.lists(st.sampled_from(ADDRESSES), max_size=2, unique=True),
    labels=LABELS,
    ports=st.lists(st.sampled_from(NAMED), max_size=2),
    namespace=NAMESPACES,
    on=st.sampled_from([cluster.NODE, cluster.NODE, "node2"]),
    phase=st.sampled_from(["Running", "Running", "Pending", "Succeeded"]),
    host=st.sampled_from([False, False, False, True]),
    created=TIMES,
    deleted=TIMES,
)
SPACES = st.builds(lambda name, labels: cluster.namespace(name, **labels), NAMESPACES, LABELS)
EXPRESSIONS = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, **({"values": values} if values else {})},
    st.sampled_from(["app", "tier"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Near"]),
    st.lists(st.sampled_from(["x", "y", "p"]), max_size=2),
)
SELECTORS: st.SearchStrategy[Object] = st.fixed_dictionaries(
    {}, optional={"matchLabels": LABELS, "matchExpressions": st.lists(EXPRESSIONS, max_size=2)}
)
BLOCKS = st.sampled_from(
    [
        *(block("0.0.0.0/0"), block("10.0.0.0/24"), block("10.0.0.1/32"), block("10.0.0.0/29", "10.0.0.1/32")),
        *(
            block("10.0.0.0/8", "10.0.0.0/25", "10.0.0.2/31"),
            block("fd00::/64", "fd00::1/128"),
            block("fd00::2/127"),
            block("10.0.0.2/31"),
            block("10.0.0.3/30", "10.0.0.3/31"),
        ),
        *(block("10.0.0.0/33"), block("10.0.0.0/24", "10.1.0.0/24"), block("::/0", "10.0.0.0/8")),
    ]
)
BY_LABELS: st.SearchStrategy[Object] = st.fixed_dictionaries(
    {}, optional={"podSelector": SELECTORS, "namespaceSelector": SELECTORS}
) | st.sampled_from([{"podSelector": {}}, {"namespaceSelector": {}}, cluster.pods_with(app="x")])
PORTS: st.SearchStrategy[Object] = st.fixed_dictionaries(
    {},
    optional={
        "protocol": st.sampled_from(["TCP", "UDP", "ICMP"]),
        "port": st.sampled_from([80, 80, 81, 0, "http", "dns"]),
        "endPort": st.sampled_from([80, 90, 70000]),
    },
)


def rules(peers: str) -> st.SearchStrategy[list[Object]]:
    parts = {peers: st.lists(BLOCKS | BY_LABELS, max_size=4), "ports": st.lists(PORTS, max_size=2)}
    return st.lists(st.fixed_dictionaries({}, optional=parts), max_size=2)


POLICIES = st.builds(
    lambda name, namespace, selector, spec: cluster.policy(name, namespace=namespace, selector=selector, **spec),
    st.sampled_from(["n1", "n2", "n3"]),
    NAMESPACES,
    SELECTORS,
    st.fixed_dictionaries(
        {},
        optional={
            "policyTypes": st.lists(st.sampled_from(["Ingress", "Egress"]), unique=True),
            "ingress": rules("from"),
            "egress": rules("to"),
        },
    ),
)
SOUND: st.SearchStrategy[Object] = st.builds(lambda labels: {"matchLabels": labels}, LABELS)
OF_CLUSTER: st.SearchStrategy[Object] = st.one_of(
    st.builds(lambda selector: {"namespaces": selector}, SOUND),
    st.builds(lambda one, other: {"pods": {"namespaceSelector": one, "podSelector": other}}, SOUND, SOUND),
    st.just({"pods": {"podSelector": {}}}),
)
BEYOND: st.SearchStrategy[Object] = st.builds(lambda selector: {"namespaces": selector}, SELECTORS) | st.sampled_from(
    [
        {},
        {"nodes": {}},
        {"domainNames": ["kroute.io"]},
        {"pods": {"namespaceSelector": {}}},
        {"networks": ["10.0.0.0/33"]},
    ]
)
"""Peers of which some cannot be understood."""
NETWORKS: st.SearchStrategy[Object] = st.builds(
    lambda networks: {"networks": networks},
    st.lists(
        st.sampled_from(
            [
                *("0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.0/30", "10.0.0.2/31", "10.0.0.1/32"),
                *("::/0", "fd00::/64", "fd00::1/128"),
            ]
        ),
        min_size=1,
        max_size=3,
        unique=True,
    ),
)
PROTOCOLS: st.SearchStrategy[Object] = st.sampled_from(
    [
        *(
            {"tcp": {"destinationPort": {"number": 80}}},
            {"tcp": {"destinationPort": {"range": {"start": 80, "end": 90}}}},
        ),
        *({"tcp": {"destinationPort": {"range": {"start": 1, "end": 65535}}}}, {"destinationNamedPort": "http"}),
        *({"udp": {"destinationPort": {"number": 53}}}, {"destinationNamedPort": "dns"}),
    ]
)
NO_PROTOCOLS: st.SearchStrategy[Object] = st.sampled_from(
    [{"tcp": {}}, {"gre": {}}, {"tcp": {"destinationPort": {"range": {"start": 90, "end": 80}}}}]
)


def mostly(usual: st.SearchStrategy[Object], other: st.SearchStrategy[Object]) -> st.SearchStrategy[Object]:
    """One in ten is another one. `one_of` takes a strategy that is named twice for one."""
    return st.integers(0, 9).flatmap(lambda number: other if number == 9 else usual)


def ordered_rules(field: str, peers: st.SearchStrategy[Object]) -> st.SearchStrategy[list[Object]]:
    """Rules of a ClusterNetworkPolicy, nearly all of which can be understood."""
    return st.lists(
        st.builds(
            lambda action, peers, protocols: {"action": action, field: peers, "protocols": protocols},
            st.sampled_from(["Accept", "Deny", "Pass"] * 5 + ["Log"]),
            st.lists(mostly(peers, BEYOND), min_size=1, max_size=2),
            st.just([]) | st.lists(mostly(PROTOCOLS, NO_PROTOCOLS), max_size=2),
        ),
        max_size=4,
    )


CLUSTER_POLICIES = st.builds(
    lambda name, tier, priority, subject, rules: cluster.cluster_policy(
        name, tier=tier, priority=priority, subject=subject, **rules
    ),
    st.sampled_from(["c1", "c2", "c3"]),
    st.sampled_from(["Admin", "Baseline"] * 5 + ["Other"]),
    st.integers(0, 2),
    mostly(OF_CLUSTER, BEYOND),
    st.fixed_dictionaries(
        {},
        optional={
            "ingress": ordered_rules("from", OF_CLUSTER),
            "egress": ordered_rules("to", OF_CLUSTER | NETWORKS),
        },
    ),
)
ODD = st.text(max_size=3) | st.sampled_from(
    ["10.0.0.0/8", "::/0", "\ud800", "-1", "1/", "/0", "10.0.0.0/" + "9" * 5000]
)
ODD_SELECTORS = st.none() | st.builds(
    LabelSelector,
    st.none() | st.dictionaries(ODD, ODD, max_size=2),
    st.none() | st.lists(st.builds(LabelSelectorRequirement, ODD, ODD, st.none() | st.tuples(ODD)), max_size=2),
)
ODD_RULES = st.none() | st.lists(
    st.builds(
        NetworkPolicyRule,
        st.none()
        | st.lists(
            st.builds(NetworkPolicyPort, st.none() | ODD, st.none() | ODD | st.integers(), st.none() | st.integers())
        ),
        *[
            st.none()
            | st.lists(
                st.builds(
                    NetworkPolicyPeer,
                    ODD_SELECTORS,
                    ODD_SELECTORS,
                    st.none() | st.builds(IPBlock, ODD, st.none() | st.lists(ODD, max_size=2)),
                ),
                max_size=2,
            )
        ]
        * 2,
    ),
    max_size=2,
)


@given(
    st.builds(
        NetworkPolicySpec,
        ODD_SELECTORS,
        st.none() | st.lists(ODD | st.just("Egress"), max_size=2),
        ODD_RULES,
        ODD_RULES,
    )
)
def test_whatever_a_policy_says_it_is_read(spec: NetworkPolicySpec) -> None:
    finish(reading(NetworkPolicy(ObjectMeta("odd", "shop"), spec), DEFAULTS))


ODD_PEERS = st.builds(
    ClusterPeer,
    ODD_SELECTORS,
    st.none() | st.builds(NamespacedPods, ODD_SELECTORS, ODD_SELECTORS),
    st.none() | st.lists(ODD, max_size=2),
)
ODD_PROTOCOL = st.none() | st.builds(
    ClusterProtocolPorts,
    st.none()
    | st.builds(
        ClusterPort, st.none() | st.integers(), st.none() | st.builds(PortNumbers, st.integers(), st.integers())
    ),
)
ODD_ORDERED_RULES = st.none() | st.lists(
    st.builds(
        ClusterPolicyRule,
        ODD,
        ODD | st.sampled_from(["Accept", "Deny", "Pass"]),
        *[st.none() | st.lists(ODD_PEERS, max_size=2)] * 2,
        st.none() | st.lists(st.builds(ClusterProtocol, *[ODD_PROTOCOL] * 3, st.none() | ODD), max_size=2),
    ),
    max_size=2,
)


@given(
    st.builds(
        ClusterNetworkPolicySpec,
        ODD | st.sampled_from(["Admin", "Baseline"]),
        st.integers(),
        ODD_PEERS,
        ODD_ORDERED_RULES,
        ODD_ORDERED_RULES,
    )
)
def test_whatever_a_cluster_policy_says_it_is_read(spec: ClusterNetworkPolicySpec) -> None:
    finish(reading_cluster(ClusterNetworkPolicy(ObjectMeta("odd"), spec)))


LIMITS = Limits(elements=6, of_namespace=9)
"""So small that random NetworkPolicies exceed all of them."""


class PolicyMachine(RuleBasedStateMachine):
    """A cluster that takes every change. Each step says whether the plan is made after it, or with those of later
    steps.
    """

    limits = DEFAULTS

    @initialize()
    def start(self) -> None:
        self.cluster = Cluster(limits=self.limits)

    @rule(item=PODS | SPACES | POLICIES | CLUSTER_POLICIES, at_once=st.booleans())
    def apply(self, item: Object, at_once: bool) -> None:
        self.cluster.apply(item)
        self.plan(at_once=at_once)

    @rule(data=st.data(), at_once=st.booleans())
    def delete(self, data: Any, at_once: bool) -> None:
        if self.cluster.objects:
            self.cluster.delete(self.cluster.objects[data.draw(st.sampled_from(sorted(self.cluster.objects)))])
        self.plan(at_once=at_once)

    @rule(work=st.integers(1, 30))
    def plan_some(self, work: int) -> None:
        """Plan a piece; more changes may come before the rest. Whoever asks meanwhile gets an answer."""
        for key, addresses in self.cluster.catalog.isolated():
            for address in addresses:
                assert key in self.cluster.catalog.pods[address]
                self.cluster.judged(OUTSIDE[0], address)
        if (change := self.cluster.catalog.plan_marked(work)) is not None:
            self.cluster.node.make(change)

    def plan(self, *, at_once: bool) -> None:
        if at_once:
            self.cluster.plan()

    @invariant()
    def incremental_equals_full(self) -> None:
        if not hasattr(self, "cluster") or self.cluster.catalog.has_marked:
            return
        node, fresh = self.cluster.node, self.cluster.fresh()
        assert node.pods == self.cluster.catalog.pods == fresh.node.pods
        assert node.networks == fresh.node.networks
        assert node.ports == fresh.node.ports
        assert planned(self.cluster) == elements(node)
        assert self.cluster.problems() == fresh.problems()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.plan()
            self.incremental_equals_full()


class OracleMachine(PolicyMachine):
    """Compares verdicts, too, and by which policies they are."""

    @invariant()
    def verdicts_are_those_of_the_api(self) -> None:
        if not hasattr(self, "cluster") or self.cluster.catalog.has_marked:
            return
        objects = list(self.cluster.objects.values())
        world = oracle.World(objects)
        alone = {str(cluster.key_of(it)): oracle.alone(objects, it) for it in objects if it["kind"] == "NetworkPolicy"}
        for source, destination in product(ADDRESSES + OUTSIDE, repeat=2):
            if (":" in source) != (":" in destination):
                continue
            for protocol, number in PACKETS:
                packet = source, destination, number, protocol
                allowed, judged = world.allows(*packet), self.cluster.judged(*packet)
                assert self.cluster.allows(*packet) == allowed, packet
                assert judged.is_refused != allowed, packet
                for ruling in judged.rulings:
                    ends = (destination, source) if ruling.direction == "Ingress" else (source, destination)
                    of_one = *ends, ruling.direction, number, protocol
                    action, by = world.deciding(*of_one)
                    assert ruling.refused_by == ([by] if action == "Deny" else []), packet
                    if action:
                        assert ruling.isolated_by == [], packet
                        assert ruling.allowed_by == ([by] if action == "Accept" else []), packet
                        continue
                    allowing = [name for name in ruling.isolated_by if alone[name].permits(*of_one)]
                    allowed_by = list(dict.fromkeys(it.partition(" ")[0] for it in ruling.allowed_by))
                    if source != destination:
                        assert allowed_by == allowing, packet


class LimitedMachine(PolicyMachine):
    """With limits that random policies exceed; nothing more than without them is allowed."""

    limits = LIMITS

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        if not hasattr(self, "cluster") or self.cluster.catalog.has_marked:
            return
        of_namespace: dict[str, int] = {}
        for key, count in ((key, len(found)) for key, found in elements(self.cluster.node).items() if key.namespace):
            of_namespace[key.namespace] = of_namespace.get(key.namespace, 0) + count
        assert all(count <= LIMITS.of_namespace for count in of_namespace.values())


def elements(node: Node) -> dict[Any, set[Any]]:
    return {
        key: {(it, None, 0, 65535) for it in node.networks[key]} | set(map(tuple, node.ports[key]))
        for key in node.networks
    }


def planned(made: Cluster) -> dict[Any, set[Any]]:
    return {key: {(network, *one) for network, one in found} for key, found in made.catalog.groups()}


OracleMachine.TestCase.settings = examples(200, stateful_step_count=25)
LimitedMachine.TestCase.settings = examples(100, stateful_step_count=25)
TestVerdicts = OracleMachine.TestCase
TestLimits = LimitedMachine.TestCase
