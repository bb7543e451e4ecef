"""The plan of a director for Services with external IPs, as tables, and which plans a change affects."""

from collections.abc import Iterable

import msgspec
import pytest

from kroute.base.forwarding import DIRECT_ROUTING
from kroute.director.catalog import DirectorCatalog
from kroute.director.plan import director_node
from kroute.director.wiring import machine_facts
from kroute.model.node_facts import ApiFacts, NodeFacts, NodeInterfaces
from kroute.model.objects import (
    Applied,
    Deleted,
    Endpoint,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    Listed,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Node,
    NodeAddress,
    NodeCondition,
    NodeStatus,
    ObjectKey,
    ObjectMeta,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
)
from kroute.model.plan import Persistence, ServicePlan
from kroute.model.probes import Probe, ProbeKind
from kroute.settings import Settings
from tests.builders import finish, planned

VIP, VIP6 = "203.0.113.1", "2001:db8::1"
SETTINGS = Settings(node_name="director-1", scheduler="wrr")
MACHINE = NodeFacts("", interfaces=NodeInterfaces(frozenset({"192.0.2.5"})))
WEB = ObjectKey("default", "web")


def node(number: int, *, ready: str = "True", labels: dict[str, str] | None = None) -> Node:
    addresses = (("Hostname", f"n{number}"), ("InternalIP", f"10.0.0.{number}"), ("InternalIP", f"fd00::{number}"))
    return Node(
        ObjectMeta(name=f"n{number}", labels=labels),
        status=NodeStatus(tuple(NodeAddress(*it) for it in addresses), (NodeCondition("Ready", ready),)),
    )


def service(
    annotations: dict[str, str] | None = None,
    *,
    name: str = "web",
    protocol: str = "TCP",
    port: int = 80,
    **spec: object,
) -> Service:
    fields = {
        "cluster_ip": "10.96.0.1",
        "external_ips": (VIP, VIP6),
        "ports": (ServicePort(port, "", protocol),),
        **spec,
    }
    fields.setdefault("cluster_ips", (fields["cluster_ip"], "fd00:96::1"))
    return Service(
        ObjectMeta(name=name, namespace="default", creation_timestamp=f"2026-01-0{len(name)}", annotations=annotations),
        ServiceSpec(**fields),  # type: ignore[arg-type]
    )


def slices(*nodes: str, ready: bool = True, protocol: str = "TCP") -> list[EndpointSlice]:
    return [
        EndpointSlice(
            ObjectMeta(name=f"web-{family}", namespace="default", labels={"kubernetes.io/service-name": "web"}),
            family,
            tuple(
                Endpoint((f"{prefix}{number}",), EndpointConditions(ready=ready), node_name=name)
                for number, name in enumerate(nodes, 1)
            ),
            (EndpointPort("", 8080, protocol),),
        )
        for family, prefix in (("IPv4", "10.1.0."), ("IPv6", "fd01::"))
    ]


def catalog(
    *items: Node | Service | EndpointSlice, machine: NodeFacts = MACHINE, **settings: object
) -> DirectorCatalog:
    made = DirectorCatalog(msgspec.structs.replace(SETTINGS, **settings), machine)
    made.take([Applied(item) for item in items])
    made.take([Listed(kind) for kind in (Service, EndpointSlice, Node)])
    return made


def only(plans: Iterable[ServicePlan]) -> ServicePlan:
    [plan] = plans
    return plan


def real_servers(plan: ServicePlan, address: str = VIP) -> dict[str, int]:
    [server] = [it for it in plan.virtual_servers if it.key.address == address]
    assert {it.port for it in server.real_servers} <= {server.key.port}
    return {it.address: it.weight for it in server.real_servers}


NODES = (node(1), node(2), node(3))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (NODES, {"10.0.0.1": 1, "10.0.0.2": 1, "10.0.0.3": 1}),
        ((node(1), node(2, ready="False"), node(3, ready="Unknown")), {"10.0.0.1": 1}),
        ((node(1), node(2, labels={"node.kubernetes.io/exclude-from-external-load-balancers": ""})), {"10.0.0.1": 1}),
        ((Node(ObjectMeta(name="n0")),), {}),
    ],
    ids=["all ready", "unready", "excluded", "unknown"],
)
def test_policy_cluster_directs_to_every_node_that_takes_traffic(
    nodes: tuple[Node, ...], expected: dict[str, int]
) -> None:
    plan = only(planned(catalog(service(), *slices("n1"), *nodes)))
    assert real_servers(plan) == expected
    assert real_servers(plan, VIP6).keys() == {address.replace("10.0.0.", "fd00::") for address in expected}
    assert [vip.address for vip in plan.vips] == [VIP6, VIP]


@pytest.mark.parametrize(
    ("annotations", "policy", "endpoints", "expected"),
    [
        ({}, "Local", ("n2", "n2"), {"10.0.0.2": 1}),
        ({}, "Local", (), {}),
        ({"kube-router.io/service.local": "true"}, "Cluster", ("n2", "n2"), {"10.0.0.2": 1}),
        (
            {"kroute.io/director-weight": "endpoints"},
            "Local",
            ("n2", "n2", "n3"),
            {"10.0.0.2": 2, "10.0.0.3": 1},
        ),
        ({"service.director-weight": "endpoints"}, None, ("n2",), {"10.0.0.1": 0, "10.0.0.2": 1, "10.0.0.3": 0}),
        (
            {"kube-router.io/service.director-weight": "equal"},
            None,
            ("n2",),
            dict.fromkeys(("10.0.0.1", "10.0.0.2", "10.0.0.3"), 1),
        ),
    ],
    ids=[
        "local",
        "local without endpoint",
        "local by annotation",
        "local by endpoints",
        "cluster by endpoints",
        "equal",
    ],
)
def test_policy_and_weights(
    annotations: dict[str, str], policy: str | None, endpoints: tuple[str, ...], expected: dict[str, int]
) -> None:
    item = service(annotations, external_traffic_policy=policy)
    assert real_servers(only(planned(catalog(item, *slices(*endpoints), *NODES)))) == expected


def test_a_weight_that_is_none_is_said_and_all_nodes_weigh_the_same() -> None:
    plan = only(planned(catalog(service({"service.director-weight": "heavy"}), *slices("n1"), *NODES)))
    assert set(real_servers(plan).values()) == {1}
    assert [problem.reason for problem in plan.problems] == ["InvalidAnnotation"]
    assert "Allowed: endpoints, equal." in plan.problems[0].message


def test_in_a_slow_start_the_weights_of_nodes_have_steps_to_climb_as_on_a_node() -> None:
    annotations = {"kroute.io/slow-start": "30s", "kroute.io/scheduler": "wrr"}
    annotations |= {"service.director-weight": "endpoints"}
    plan = only(planned(catalog(service(annotations), *slices("n1", "n1", "n2"), *NODES)))
    assert real_servers(plan) == {"10.0.0.1": 40, "10.0.0.2": 20, "10.0.0.3": 0}


def test_packets_are_routed_directly_to_the_nodes_even_with_direct_return_there() -> None:
    plan = only(planned(catalog(service({"kube-router.io/service.dsr": "tunnel"}), *NODES)))
    assert {it.method for it in plan.virtual_servers} == {DIRECT_ROUTING}


def test_scheduler_and_persistence_are_those_of_the_nodes() -> None:
    annotations = {"kroute.io/scheduler": "sh", "kroute.io/scheduler-flags": "sh-port"}
    plan = only(planned(catalog(service(annotations, session_affinity="ClientIP"), *NODES)))
    [server] = [it for it in plan.virtual_servers if it.key.address == VIP]
    assert (server.scheduler, server.flags, server.persistence) == ("sh", 0x10, Persistence(10800, 32))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (service(), Probe(ProbeKind.REACH, "10.0.0.1", 80)),
        (service(ports=(ServicePort(80, node_port=30080),)), Probe(ProbeKind.CONNECT, "10.0.0.1", 30080)),
        (
            service(type="LoadBalancer", external_traffic_policy="Local", health_check_node_port=32000),
            Probe(ProbeKind.HTTP, "10.0.0.1", 32000),
        ),
        (service(protocol="UDP"), None),
        (service(protocol="SCTP"), None),
    ],
    ids=["no node port", "node port", "health check node port", "UDP", "SCTP"],
)
def test_what_is_checked_of_a_node(item: Service, expected: Probe | None) -> None:
    made = catalog(item, *slices("n1", protocol=item.spec.ports[0].protocol), node(1))  # type: ignore[index]
    planned(made)
    assert {it for it in made.probes if "." in it.address} == ({expected} if expected else set())


def test_a_failing_node_has_weight_0_and_only_its_services_are_planned_again() -> None:
    other = service(name="other", external_ips=("203.0.113.9",), port=81)
    made = catalog(service(), other, *slices("n1"), *NODES)
    planned(made)
    made.set_failing({Probe(ProbeKind.REACH, "10.0.0.2", 80)})
    plan = only(planned(made))
    assert plan.key == WEB
    assert real_servers(plan) == {"10.0.0.1": 1, "10.0.0.2": 0, "10.0.0.3": 1}
    assert set(real_servers(plan, VIP6).values()) == {1}
    made.set_failing(frozenset())
    assert set(real_servers(only(planned(made))).values()) == {1}


def test_an_external_ip_that_is_a_nodes_own_address_is_never_taken() -> None:
    plan = only(planned(catalog(service(external_ips=("10.0.0.2", VIP)), *NODES)))
    assert [vip.address for vip in plan.vips] == [VIP]
    assert [(problem.reason, problem.subject) for problem in plan.problems] == [("NodeAddress", "externalIP 10.0.0.2")]


def test_load_balancer_addresses_are_served_in_the_range_for_them_alone() -> None:
    inside, outside = "198.51.100.1", "198.51.100.200"
    entries = tuple(map(LoadBalancerIngress, (inside, outside, "10.0.0.2")))
    status = ServiceStatus(LoadBalancerStatus(entries))
    item = msgspec.structs.replace(service(type="LoadBalancer", external_ips=(VIP,)), status=status)
    [plan] = planned(catalog(item, *NODES))
    assert ([vip.address for vip in plan.vips], plan.problems) == ([VIP], ()), "others may answer for them"
    [plan] = planned(catalog(item, *NODES, load_balancer_ip_ranges=("198.51.100.0/25",)))
    assert [vip.address for vip in plan.vips] == sorted([inside, VIP])
    assert real_servers(plan, inside) == real_servers(plan, VIP)
    subjects = {problem.subject for problem in plan.problems}
    assert subjects == {"loadBalancerIP 10.0.0.2", f"loadBalancerIP '{outside}'"}


RANGES = ("203.0.113.0/24", "2001:db8::/32")


@pytest.mark.parametrize(
    ("address", "settings", "says"),
    [
        ("8.8.8.8", {"external_ip_ranges": RANGES}, "is not in what --external-ip-range allows"),
        ("8.8.8.8", {"strict_external_ips": True}, "nothing, since --strict-external-ips is set"),
        ("10.96.0.2", {}, "is the ClusterIP of Service default/other"),
        ("10.96.7.7", {"service_cidrs": ("10.96.0.0/16",)}, "is in the Service range"),
        ("10.244.7.7", {"cluster_cidrs": ("10.244.0.0/16",)}, "is in the pods' networks"),
        ("169.254.169.254", {}, "is not a unicast IPv4 or IPv6 address"),
    ],
    ids=["out of range", "strict", "another Service's ClusterIP", "Service range", "pods", "link-local"],
)
def test_what_no_node_would_serve_no_director_takes(address: str, settings: dict[str, object], says: str) -> None:
    other = service(name="other", cluster_ip="10.96.0.2", external_ips=None)
    made = catalog(service(external_ips=(address,)), other, *NODES, **settings)
    plan = only(it for it in planned(made) if it.key == WEB)
    assert (plan.vips, plan.virtual_servers) == ((), ())
    [problem] = plan.problems
    assert says in problem.message


def test_what_is_refused_takes_nothing_from_the_rest() -> None:
    victim = service(name="victim", external_ips=("203.0.113.9",))
    greedy = service(external_ips=("8.8.8.8", VIP, "10.96.0.1"), cluster_ip="10.96.0.2")
    plans = {it.key.name: it for it in planned(catalog(victim, greedy, *NODES, external_ip_ranges=RANGES))}
    assert [vip.address for vip in plans["victim"].vips] == ["203.0.113.9"]
    assert [vip.address for vip in plans["web"].vips] == [VIP]
    assert plans["victim"].problems == ()


@pytest.mark.parametrize("own", ["192.0.2.5", "2001:db8::5"])
def test_no_service_has_the_machines_own_address(own: str) -> None:
    machine = NodeFacts("", interfaces=NodeInterfaces(frozenset({own})))
    plan = only(planned(catalog(service(external_ips=(own, VIP), port=22), *NODES, machine=machine)))
    assert [vip.address for vip in plan.vips] == [VIP]
    assert [it.key.address for it in plan.virtual_servers] == [VIP]
    [problem] = plan.problems
    assert problem.message.startswith(f"externalIP {own} is not served by the director: it is an address of this")


def test_where_it_is_allowed_a_service_has_the_machines_own_address_but_no_protected_port() -> None:
    ports = (ServicePort(22, "ssh"), ServicePort(80, "web"))
    item = service(external_ips=("192.0.2.5", VIP), ports=ports)
    plan = only(planned(catalog(item, *NODES, external_ips_on_node_addresses=True)))
    assert [vip.address for vip in plan.vips] == [VIP], "it is there already, and is not ours to bind"
    assert [it.key.port for it in plan.virtual_servers if it.key.address == "192.0.2.5"] == [80]
    assert [problem.reason for problem in plan.problems] == ["ProtectedPort"]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"interfaces": NodeInterfaces(gateways=frozenset({VIP}))}, "the gateway of a route"),
        ({"interfaces": NodeInterfaces(subnet_edges=frozenset({VIP}))}, "the network or broadcast address"),
        ({"interfaces": NodeInterfaces(dns_servers=frozenset({VIP}))}, "a DNS server"),
        ({"api": ApiFacts(servers=frozenset({VIP}))}, "an address of the API server"),
        ({"api": ApiFacts(service_ranges=("203.0.113.0/24",))}, "is in the Service range"),
    ],
    ids=["gateway", "subnet edge", "DNS server", "API server", "Service range"],
)
def test_no_service_has_what_the_machine_needs(facts: dict[str, object], says: str) -> None:
    machine = msgspec.structs.replace(MACHINE, **facts)
    made = catalog(service(), *NODES)
    assert [vip.address for vip in only(planned(made)).vips] == [VIP6, VIP]
    made.set_machine(machine)
    plan = only(planned(made))
    assert [vip.address for vip in plan.vips] == [VIP6]
    assert says in plan.problems[0].message


def test_no_service_has_the_address_of_an_api_server_behind_the_clusters_own_service() -> None:
    made = catalog(service(), *NODES)
    planned(made)
    of_api = EndpointSlice(
        ObjectMeta(name="kubernetes", namespace="default", labels={"kubernetes.io/service-name": "kubernetes"}),
        "IPv4",
        (Endpoint((VIP,)),),
        (EndpointPort("https", 6443, "TCP"),),
    )
    made.take([Applied(of_api)])
    assert [vip.address for vip in only(planned(made)).vips] == [VIP6]
    made.take([Deleted(EndpointSlice, of_api.key)])
    assert [vip.address for vip in only(planned(made)).vips] == [VIP6, VIP]


def test_what_a_kubelet_says_outside_the_nodes_range_takes_no_address_away() -> None:
    made = catalog(service(external_ips=("10.0.0.9",)), *NODES, node_address_ranges=("10.0.0.0/29",))
    made.take([Applied(node(9))])
    plan = only(planned(made))
    assert [vip.address for vip in plan.vips] == ["10.0.0.9"]
    assert [problem.reason for problem in plan.problems] == ["ClaimedByNode"]


def test_an_address_that_the_machine_comes_to_have_is_given_up() -> None:
    made = catalog(service(external_ips=(VIP,)), *NODES)
    assert only(planned(made)).vips
    made.set_machine(NodeFacts("", interfaces=NodeInterfaces(frozenset({VIP}))))
    assert not only(planned(made)).vips
    made.set_machine(MACHINE)
    assert only(planned(made)).vips


def test_a_cluster_ip_that_comes_later_takes_the_address_away() -> None:
    made = catalog(service(external_ips=("10.96.0.7",)), *NODES)
    assert only(planned(made)).vips
    made.take([Applied(service(name="late", cluster_ip="10.96.0.7", external_ips=None))])
    assert not only(planned(made)).vips
    made.take([Deleted(Service, ObjectKey("default", "late"))])
    assert only(planned(made)).vips


def test_a_machine_with_one_family_directs_both() -> None:
    machine = machine_facts(SETTINGS, NodeInterfaces(frozenset({"192.0.2.5"}), ("192.0.2.5",)))
    plan = only(planned(catalog(service(), *NODES, machine=machine)))
    assert [vip.address for vip in plan.vips] == [VIP6, VIP]


def test_a_node_that_comes_to_have_an_external_ip_takes_it_away() -> None:
    made = catalog(service(external_ips=("10.0.0.9",)), *NODES)
    assert only(planned(made)).vips
    made.take([Applied(node(9))])
    assert not only(planned(made)).vips


def test_of_two_services_with_one_address_and_port_the_older_has_it() -> None:
    made = catalog(service(), service(name="younger"), *NODES)
    plans = {plan.key.name: plan for plan in planned(made)}
    assert [problem.reason for problem in plans["younger"].problems] == ["AddressConflict"] * 2
    assert not plans["younger"].virtual_servers
    made.take([Deleted(Service, WEB)])
    plans = {plan.key.name: plan for plan in planned(made)}
    assert plans["web"].is_empty
    assert len(plans["younger"].virtual_servers) == 2


def test_a_service_without_external_ips_means_nothing() -> None:
    assert planned(catalog(service(external_ips=None, ports=(ServicePort(99999),)), *NODES)) == []


def test_a_heart_beat_of_a_node_changes_nothing() -> None:
    made = catalog(service(), *NODES)
    planned(made)
    made.take([Applied(node(1))])
    assert made.marked == {}
    made.take([Deleted(Node, ObjectKey("", "n1"))])
    assert real_servers(only(planned(made))).keys() == {"10.0.0.2", "10.0.0.3"}


def test_nothing_is_planned_before_everything_has_been_listed() -> None:
    made = DirectorCatalog(SETTINGS, MACHINE)
    made.take([Applied(service()), Applied(node(1)), Listed(Service), Listed(Node)])
    assert planned(made) == []


class TestWeights:
    """Nodes are weighed as real servers of a node are, but for locality."""

    @staticmethod
    def weights(annotations: dict[str, str], *nodes: Node) -> tuple[list[int], list[str]]:
        catalog = DirectorCatalog(SETTINGS, MACHINE)
        catalog.take([Applied(service(annotations)), *map(Applied, nodes)])
        catalog.take([Listed(Service), Listed(EndpointSlice), Listed(Node)])
        [plan] = planned(catalog)
        return [it.weight for it in plan.virtual_servers[0].real_servers], [it.subject for it in plan.problems]

    def test_of_the_node_and_of_the_service_multiply(self) -> None:
        labels = {"kroute.io/weight": "4", "topology.kubernetes.io/zone": "a"}
        weights, problems = self.weights(
            {"kroute.io/weights": "zone/a=3,node/n2=0"}, *(node(1, labels=labels), node(2), node(3))
        )
        assert (weights, problems) == ([12, 0, 1], [])

    def test_a_director_is_near_no_node(self) -> None:
        weights, problems = self.weights({"kroute.io/locality": "prefer-node"}, node(1), node(2))
        assert (weights, problems) == ([1, 1], ["annotation kroute.io/locality"])


def test_a_change_of_one_node_looks_at_no_other_node(monkeypatch: pytest.MonkeyPatch) -> None:
    made = catalog(service(), *slices("n1"))
    looked_at: list[str] = []

    def look(item: Node) -> object:
        looked_at.append(item.key.name)
        return director_node(item)

    monkeypatch.setattr("kroute.director.catalog.director_node", look)
    made.take([Applied(node(number)) for number in range(1, 101)])
    assert len(real_servers(only(planned(made)))) == 100
    made.take([Applied(node(7)), Applied(node(8, ready="False"))])
    assert len(real_servers(only(planned(made)))) == 99
    assert len(looked_at) == 102


def test_what_comes_while_many_services_are_planned_takes_no_address_of_another() -> None:
    before, after = service(name="late", external_ips=("203.0.113.9",)), service(name="late", external_ips=(VIP,))
    ports = tuple(ServicePort(number, f"p{number}") for number in range(1, 1001))
    large = service(name="large", external_ips=("203.0.113.8",), ports=ports)
    made = catalog(large, service(), before, *slices("n1"), *NODES)
    planned(made)
    made.take([Applied(node(1, ready="False"))])
    steps = made.planning_marked()
    next(steps)
    made.take([Applied(after)])
    plans = {plan.key.name: plan for plan in finish(steps)}
    assert plans.keys() == {"web", "late", "large"}
    assert not plans["late"].virtual_servers, "it has given up the one address, and not got the other"
    [plan] = planned(made)
    assert [it.reason for it in plan.problems] == ["AddressConflict"]
