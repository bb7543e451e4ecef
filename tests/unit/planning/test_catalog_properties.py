"""After any changes in any order, the plans are those that a new catalog makes of the final objects."""

from collections.abc import Iterable

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Applied, Change, Deleted, EndpointSlice, ObjectKey, Service
from kroute.model.plan import Plan, ServicePlan
from kroute.planning.catalog import Catalog
from tests.builders import (
    LISTED,
    NODE,
    endpoint,
    endpoint_slice,
    facts,
    port,
    service,
    settings,
)
from tests.examples import examples

NAMES = st.sampled_from(["a", "b", "c"])
SLICES = st.sampled_from(["s1", "s2"])
CREATED = st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", None])
CONDITION = st.sampled_from([None, True, False])
ODD_VIPS = ["10.96.0.1", "fd00:96::1", "FD00:96::1", "10.96.0.300", "None", ""]
ODD_PORTS = [
    *(port(80), port(80, "http"), port(53, "dns", "UDP"), port(53, "dns"), port(0), port(9, "", "QUIC")),
    *(port(80, node_port=30080), port(81, "b", node_port=30080), port(82, node_port=99999)),
]
ODD_LABELS = [None, {"service.kubernetes.io/headless": ""}, {"service.kubernetes.io/service-proxy-name": "x"}]
ANNOTATIONS = [
    None,
    {"kroute.io/scheduler": "mh", "service.schedflags": "mh-port,sh-port"},
    {"kroute.io/scheduler": "worst", "kube-router.io/service.persistence-timeout": "60"},
    {"service.persistence-timeout": "0", "service.persistence-netmask": "24,64"},
    {"service.hairpin": "off"},
    {"kroute.io/schedular": "mh", "kroute.io/weight": "3", "kroute.io/service.local": "on"},
]
FACTS = [
    *(facts(), facts("192.168.123.239"), facts(ipv6=None), facts(None, "fd00::9"), facts(None, None)),
    *(facts(zone="z1"), facts(pod_cidrs=("10.244.1.0/24",))),
    *(facts(own=("192.168.123.250", "fd00:123::250")), facts(own=("192.168.123.250", "198.51.100.7"))),
]

PLAIN_SERVICES = st.builds(
    lambda name, vips, ports, created: service(name, *vips, ports=ports, created=created),
    name=NAMES,
    vips=st.sampled_from([("10.96.0.1",), ("10.96.0.1", "fd00:96::1"), ("fd00:96::1",), ("10.96.0.2",)]),
    ports=st.sampled_from([(80,), (80, 81)]),
    created=CREATED,
)
"""A few addresses for several Services: most Services claim an address that another one has."""

ODD_SERVICES = st.builds(
    lambda name, vips, ports, **options: service(name, *vips, ports=ports, **options),
    name=NAMES,
    vips=st.lists(st.sampled_from(ODD_VIPS), min_size=1, max_size=3),
    ports=st.lists(st.sampled_from(ODD_PORTS), max_size=3),
    created=CREATED,
    kind=st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]),
    balanced=st.sampled_from([(), ("198.51.100.7",), ("fd00:96::1", "198.51.100.8")]),
    external_ips=st.sampled_from([None, ("198.51.100.7", "127.0.0.1"), ("192.168.123.250",)]),
    external_traffic_policy=st.sampled_from([None, "Cluster", "Local"]),
    internal_traffic_policy=st.sampled_from([None, "Local"]),
    health_check_node_port=st.sampled_from([0, 31000]),
    labels=st.sampled_from(ODD_LABELS),
    annotations=st.sampled_from(ANNOTATIONS),
    affinity=st.sampled_from(["None", "ClientIP"]),
    affinity_timeout=st.sampled_from([None, 600, 0]),
)

ENDPOINTS = st.builds(
    endpoint,
    st.sampled_from(["10.244.1.1", "10.244.1.2", "10.244.1.300", "fd00:10::1", "FD00:10::1"]),
    ready=CONDITION,
    serving=CONDITION,
    terminating=CONDITION,
    on=st.sampled_from([None, NODE, "node2"]),
    zones=st.sampled_from([(), ("z1",), ("z2",)]),
    nodes=st.sampled_from([(), (NODE,)]),
)

PIECES = st.builds(
    lambda name, endpoints, **options: endpoint_slice(name, *endpoints, **options),
    name=SLICES,
    endpoints=st.lists(ENDPOINTS, min_size=1, max_size=3),
    of=st.none() | NAMES,
    ports=st.sampled_from([(8080,), (8080, 9090), ()]),
    address_type=st.sampled_from(["IPv4", "IPv4", "IPv6", "FQDN"]),
)


def without_generation(plans: Iterable[Plan]) -> dict[ObjectKey, Plan]:
    return {plan.key: msgspec.structs.replace(plan, generation=0) for plan in plans}


class CatalogMachine(RuleBasedStateMachine):
    """One catalog that takes every change, and the objects that exist.

    Each step says whether the Services are planned after it (`at_once`) or together with those of later steps.
    """

    @initialize(node=st.sampled_from(FACTS))
    def start(self, node: NodeFacts) -> None:
        self.node = node
        self.catalog = Catalog(settings(), node)
        self.catalog.take(LISTED)
        self.services: dict[ObjectKey, Service] = {}
        self.slices: dict[ObjectKey, EndpointSlice] = {}
        self.plans: dict[ObjectKey, Plan] = {}
        self.generation = 0
        self.is_within_slice = False
        self.plan_marked()

    @rule(item=PLAIN_SERVICES | ODD_SERVICES, at_once=st.booleans())
    def apply_service(self, item: Service, at_once: bool) -> None:
        self.services[item.key] = item
        self.take(Applied(item), at_once=at_once)

    @rule(name=NAMES, at_once=st.booleans())
    def delete_service(self, name: str, at_once: bool) -> None:
        key = ObjectKey("default", name)
        self.services.pop(key, None)
        self.take(Deleted(Service, key), at_once=at_once)

    @rule(item=PIECES, at_once=st.booleans())
    def apply_slice(self, item: EndpointSlice, at_once: bool) -> None:
        self.slices[item.key] = item
        self.take(Applied(item), at_once=at_once)

    @rule(name=SLICES, at_once=st.booleans())
    def delete_slice(self, name: str, at_once: bool) -> None:
        key = ObjectKey("default", name)
        self.slices.pop(key, None)
        self.take(Deleted(EndpointSlice, key), at_once=at_once)

    @rule(node=st.sampled_from(FACTS), at_once=st.booleans())
    def change_node(self, node: NodeFacts, at_once: bool) -> None:
        self.node = node
        self.catalog.set_node(node)
        self.take(at_once=at_once)

    @rule(limit=st.integers(1, 3), work=st.none() | st.integers(1, 3))
    def plan_some(self, limit: int, work: int | None) -> None:
        """Plan a slice of the marked Services, or a part of one; more changes may come before the rest."""
        self.is_within_slice = work is not None
        for plan in self.catalog.plan_marked(limit, work):
            assert plan.generation > self.generation
            self.generation = plan.generation
            self.plans[plan.key] = plan
        self.plans = {key: plan for key, plan in self.plans.items() if not plan.is_empty}
        self.planned = not self.catalog.has_marked

    def take(self, *changes: Change, at_once: bool) -> None:
        self.catalog.take(changes)
        self.planned = False
        if at_once:
            self.plan_marked()

    def plan_marked(self) -> None:
        """Plan what is marked; the plans must be exactly the changed ones, and newer than all earlier ones."""
        while self.is_within_slice and self.catalog.has_marked:
            self.plan_some(3, None)
        before = without_generation(self.plans.values())
        planned = self.catalog.plan_marked()
        for plan in planned:
            assert plan.generation > self.generation
            self.generation = plan.generation
            self.plans[plan.key] = plan
        self.plans = {key: plan for key, plan in self.plans.items() if not plan.is_empty}
        after = without_generation(self.plans.values())
        assert len(planned) == len({plan.key for plan in planned})
        changed = {key for key in before | after if before.get(key) != after.get(key)}
        assert {plan.key for plan in planned} == changed
        self.planned = True

    @invariant()
    def incremental_equals_full(self) -> None:
        if not self.planned:
            return
        fresh = Catalog(settings(), self.node)
        fresh.take([*map(Applied, self.slices.values()), *map(Applied, self.services.values())])
        fresh.take(LISTED)
        assert without_generation(self.plans.values()) == without_generation(fresh.plan_marked())

    @invariant()
    def an_address_has_one_virtual_server(self) -> None:
        services = [plan for plan in self.plans.values() if isinstance(plan, ServicePlan)]
        keys = [server.key for plan in services for server in plan.virtual_servers]
        assert len(keys) == len(set(keys))

    def teardown(self) -> None:
        if hasattr(self, "catalog"):
            self.plan_marked()
            self.incremental_equals_full()


CatalogMachine.TestCase.settings = examples(100, stateful_step_count=40)
TestCatalogIsIncremental = CatalogMachine.TestCase
