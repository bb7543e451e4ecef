"""After any changes in any order, the plan lets those packets pass that the API's text allows, it is the plan that a
new catalog makes of the final objects, and a kernel takes every change on the way.
"""

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kroute.model.objects import (
    IPBlock,
    LabelSelector,
    LabelSelectorRequirement,
    NetworkPolicy,
    NetworkPolicyPeer,
    NetworkPolicyPort,
    NetworkPolicyRule,
    NetworkPolicySpec,
    ObjectMeta,
)
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


LIMITS = Limits(elements=6, of_namespace=9)
"""So small that random policies exceed all of them."""


class PolicyMachine(RuleBasedStateMachine):
    """A cluster that takes every change. Each step says whether the plan is made after it, or with those of later
    steps.
    """

    limits = DEFAULTS

    @initialize()
    def start(self) -> None:
        self.cluster = Cluster(limits=self.limits)

    @rule(item=PODS | SPACES | POLICIES, at_once=st.booleans())
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
        alone = {str(cluster.key_of(it)): oracle.alone(objects, it) for it in objects if it["kind"] == "NetworkPolicy"}
        for source, destination in product(ADDRESSES + OUTSIDE, repeat=2):
            if (":" in source) != (":" in destination):
                continue
            for protocol, number in PACKETS:
                packet = source, destination, number, protocol
                assert self.cluster.allows(*packet) == oracle.allows(objects, *packet), packet
                judged = self.cluster.judged(*packet)
                assert judged.is_refused != oracle.allows(objects, *packet), packet
                for ruling in judged.rulings:
                    ends = (destination, source) if ruling.direction == "Ingress" else (source, destination)
                    allowing = [
                        name
                        for name in ruling.isolated_by
                        if alone[name].permits(*ends, ruling.direction, number, protocol)
                    ]
                    assert list(dict.fromkeys(it.partition(" ")[0] for it in ruling.allowed_by)) == allowing, packet


class LimitedMachine(PolicyMachine):
    """With limits that random policies exceed; nothing more than without them is allowed."""

    limits = LIMITS

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        if not hasattr(self, "cluster") or self.cluster.catalog.has_marked:
            return
        of_namespace: dict[str, int] = {}
        for key, count in ((key, len(found)) for key, found in elements(self.cluster.node).items()):
            namespace = key.policies[0].namespace
            of_namespace[namespace] = of_namespace.get(namespace, 0) + count
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
