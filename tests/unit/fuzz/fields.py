"""Hostile objects that the API server could store: odd values, many of each, and addresses that others have."""

from typing import Any

from hypothesis import strategies as st

from kroute.base.schedulers import SCHEDULER_FLAGS, SCHEDULERS
from kroute.model.objects import (
    HEADLESS_LABEL,
    SERVICE_NAME_LABEL,
    SERVICE_PROXY_NAME_LABEL,
    WEIGHT,
    ZONE_LABEL,
    ClientIPConfig,
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    KubernetesObject,
    LoadBalancerIngress,
    LoadBalancerStatus,
    NamedHint,
    Node,
    NodeAddress,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
    SessionAffinityConfig,
    TargetRef,
)
from kroute.planning.features import ANNOTATION_NAMES

ATTACKERS = "tenant"
"""The namespace of every hostile object."""

NAMES = ("a", "b", "c")

PODS = ("p1", "p2", "p3")
ZONES = ("a", "b", "c")
"""This node is in the first one."""
NODES = ("node1", "node2", "node3", "node4")
"""This node is the first one, and victims' endpoints are on the second. The second has no weight: what a Node weighs
counts for all Services that have endpoints there."""

ODD_TEXTS = (
    *("", " ", "None", "\0", "\x1b[2J", "a" * 300, "-1", "0", "1e9", "\u0663", "\u202e", "1.2.3.4/33", "::/0"),
    *("Local", "Cluster", "TCP", "UDP", "SCTP", "tcp", "on", "off", "rr", "mh", "sh-port,flag-1", "0.0.0.0/0"),
)
ODD_NUMBERS = (-(2**31), -1, 0, 1, 80, 443, 8080, 30080, 30081, 65535, 65536, 2**31 - 1)
CLASHING = (
    *("10.96.0.20", "10.96.0.21", "192.168.123.238", "192.168.123.239", "10.244.1.9", "198.51.100.1", "198.51.100.20"),
    *("fd00:96::20", "fd00:123::238", "::ffff:10.96.0.20", "127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0"),
    *("255.255.255.255", "fe80::1", "::", "010.96.0.20", "10.96.0.20 ", "1.2.3", "10.96.0.256"),
)
"""Addresses of victims, nodes and pods, addresses that no Service may have, and text that is no address."""

texts = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=8))
numbers = st.one_of(st.sampled_from(ODD_NUMBERS), st.integers(-(2**31), 2**31 - 1))
addresses = st.one_of(
    st.sampled_from(CLASHING), st.ip_addresses().map(str), texts, st.integers(0, 9).map(lambda it: f"198.51.100.{it}")
)
own_names = st.builds(str.__add__, st.sampled_from(("kroute.io/", "Kroute.IO/")), texts)
annotation_names = st.one_of(st.sampled_from(sorted(ANNOTATION_NAMES)), st.just(WEIGHT), own_names)


def separated(*values: st.SearchStrategy[str], most: int = 4) -> st.SearchStrategy[str]:
    return st.lists(st.one_of(*values), max_size=most).map(", ".join)


weights = st.sampled_from(("0", "1", "2", "7", "50", "65535")) | st.integers(0, 65535).map(str)
durations = st.builds("{}{}".format, st.integers(0, 400), st.sampled_from(("", "s", "m", "h")))
valid_annotations: st.SearchStrategy[dict[str, str]] = st.fixed_dictionaries(
    {},
    optional={
        "kroute.io/scheduler": st.sampled_from(SCHEDULERS),
        "kroute.io/scheduler-flags": separated(st.sampled_from(sorted(SCHEDULER_FLAGS))),
        "kroute.io/persistence-timeout": st.integers(0, 2678400).map(str),
        "kroute.io/weights": separated(
            st.builds("zone/{}={}".format, st.sampled_from(ZONES), weights),
            st.builds("node/{}={}".format, st.sampled_from(NODES), weights),
        ),
        "kroute.io/locality": st.builds(
            "prefer-{}{}".format,
            st.sampled_from(("node", "zone")),
            st.just("") | st.integers(0, 100).map(", spill {}%".format),
        ),
        "kroute.io/slow-start": durations,
        "kroute.io/ejection": st.sampled_from(("on", "off"))
        | separated(durations.map("after {}".format), durations.map("hold {}".format), most=2),
        "kroute.io/direct-return": st.just("tunnel"),
        "kroute.io/advertise-cluster-ip": st.sampled_from(("on", "off")),
        "kroute.io/advertise-external-ip": st.sampled_from(("on", "off")),
        "kroute.io/advertise-loadbalancer-ip": st.sampled_from(("on", "off")),
        "kroute.io/director-weight": st.sampled_from(("endpoints", "equal")),
        "kroute.io/local": st.sampled_from(("on", "off")),
        "kroute.io/hairpin": st.sampled_from(("on", "off")),
        "kroute.io/skip-load-balancer-ips": st.sampled_from(("on", "off")),
    },
)
"""All that kroute reads, with values that it obeys for the most part: only these lead to what obeys them."""
annotations = valid_annotations | st.none() | st.dictionaries(annotation_names, texts, max_size=3)


def several(values: st.SearchStrategy[Any], most: int = 5) -> st.SearchStrategy[tuple[Any, ...] | None]:
    """Return None, a few values, or one sequence of values repeated many times."""
    few = st.lists(values, max_size=most).map(tuple)
    return st.one_of(st.none(), few, st.builds(lambda them, times: them * times, few, st.sampled_from((2, 40, 400))))


def many_addresses(first: int, count: int) -> tuple[str, ...]:
    return tuple(f"203.{it >> 16 & 255}.{it >> 8 & 255}.{it & 255}" for it in range(first, first + count))


def many_ports(first: int, count: int) -> tuple[ServicePort, ...]:
    return tuple(ServicePort(it, f"p{it}", node_port=20000 + it) for it in range(first, first + count))


counts = st.sampled_from((1, 30, 300, 1500))
labels = st.dictionaries(st.sampled_from((HEADLESS_LABEL, SERVICE_PROXY_NAME_LABEL, "app")), texts, max_size=1)
ports = st.one_of(
    several(st.builds(ServicePort, numbers, texts, texts | st.sampled_from(("TCP", "UDP", "SCTP")), numbers)),
    st.builds(many_ports, st.integers(1, 100), counts),
    st.just((ServicePort(80),)),
)
named = several(st.builds(NamedHint, texts | st.sampled_from((*ZONES, *NODES))))


@st.composite
def services(draw: st.DrawFn) -> Service:
    return Service(
        ObjectMeta(
            draw(st.sampled_from(NAMES)),
            ATTACKERS,
            creation_timestamp=draw(st.none() | st.sampled_from(("2020-01-01T00:00:00Z", "2027-01-01T00:00:00Z", ""))),
            labels=draw(st.none() | labels),
            annotations=draw(annotations),
        ),
        ServiceSpec(
            type=draw(st.sampled_from(("ClusterIP", "NodePort", "LoadBalancer", "ExternalName", ""))),
            cluster_ips=draw(several(st.sampled_from(("10.96.1.1", "10.96.1.2", "fd00:96::101")), 2)),
            ports=draw(ports),
            session_affinity=draw(st.sampled_from(("None", "ClientIP"))),
            session_affinity_config=draw(
                st.none() | st.builds(SessionAffinityConfig, st.builds(ClientIPConfig, st.none() | numbers))
            ),
            external_ips=draw(several(addresses) | st.builds(many_addresses, st.integers(0, 5), counts)),
            internal_traffic_policy=draw(st.none() | st.sampled_from(("Local", "Cluster", "x"))),
            external_traffic_policy=draw(st.none() | st.sampled_from(("Local", "Cluster", "x"))),
            load_balancer_source_ranges=draw(several(addresses | st.sampled_from(("10.0.0.0/8", "::/0")))),
            health_check_node_port=draw(numbers),
        ),
        ServiceStatus(
            LoadBalancerStatus(
                draw(several(st.builds(LoadBalancerIngress, addresses, st.none() | st.sampled_from(("VIP", "Proxy")))))
            )
        ),
    )


def many_endpoints(first: int, count: int, node: str) -> tuple[Endpoint, ...]:
    return tuple(Endpoint((address,), node_name=node) for address in many_addresses(first, count))


@st.composite
def alike(draw: st.DrawFn) -> tuple[Endpoint, ...]:
    """Ready endpoints with the same hints: these count only if all have them."""
    zones, on = draw(st.lists(st.sampled_from(ZONES), max_size=2)), draw(st.lists(st.sampled_from(NODES), max_size=2))
    hints = EndpointHints(tuple(map(NamedHint, zones)), tuple(map(NamedHint, on))) if zones or on else None
    each = st.tuples(st.integers(1, 99), st.sampled_from(NODES), st.sampled_from(PODS))
    return tuple(
        Endpoint((f"10.244.9.{number}",), node_name=node, hints=hints, target_ref=TargetRef("Pod", pod))
        for number, node, pod in draw(st.lists(each, max_size=9))
    )


conditions = st.builds(EndpointConditions, *[st.none() | st.booleans()] * 3)
endpoints = st.one_of(
    several(
        st.builds(
            Endpoint,
            st.lists(addresses, max_size=2).map(tuple),
            conditions,
            st.none() | st.sampled_from(NODES) | texts,
            st.none() | st.builds(EndpointHints, named, named),
            st.none() | st.builds(TargetRef, st.just("Pod"), st.sampled_from(PODS), st.sampled_from(("", "u1", "u2"))),
        )
    ),
    alike(),
    st.builds(many_endpoints, st.integers(0, 5), counts, st.sampled_from(NODES)),
)
backend_ports = st.one_of(
    several(st.builds(EndpointPort, st.none() | texts, st.none() | numbers, st.sampled_from(("TCP", "UDP", "x")))),
    st.builds(
        lambda first, count: tuple(EndpointPort(it.name, it.port) for it in many_ports(first, count)),
        st.integers(1, 100),
        counts,
    ),
    st.just((EndpointPort("", 8080),)),
)
slices = st.builds(
    lambda name, of, family, them, ports: EndpointSlice(
        ObjectMeta(name, ATTACKERS, labels={SERVICE_NAME_LABEL: of}), family, them, ports
    ),
    st.sampled_from(("s1", "s2", "s3")),
    st.sampled_from((*NAMES, "victim", "")),
    st.sampled_from(("IPv4", "IPv6", "FQDN", "")),
    endpoints,
    backend_ports,
)
labels_of_nodes = st.fixed_dictionaries(
    {}, optional={ZONE_LABEL: st.sampled_from(ZONES) | texts, WEIGHT: weights | texts}
)
nodes = st.builds(
    lambda name, labels, networks, them, conditions: Node(
        ObjectMeta(name, labels={key: it for key, it in labels.items() if key != WEIGHT or name != "node2"}),
        NodeSpec(pod_cidrs=networks),
        NodeStatus(them, conditions),
    ),
    st.sampled_from((*NODES[1:], "")),
    labels_of_nodes,
    several(texts | st.sampled_from(("10.244.0.0/16", "0.0.0.0/0"))),
    several(
        st.builds(
            NodeAddress,
            st.sampled_from(("InternalIP", "ExternalIP", "Hostname", "")),
            addresses.filter(lambda it: not it.startswith("198.51.100.20")),
        )
    ),
    several(st.builds(NodeCondition, texts, texts) | st.builds(NodeCondition, st.just("Ready"), st.just("True"))),
)
"""Other nodes than this one, with false statuses from their kubelets."""

pods = st.builds(
    lambda name, uid, labels, annotations: Pod(
        ObjectMeta(name, ATTACKERS, uid, labels=labels, annotations=annotations)
    ),
    st.sampled_from(PODS),
    st.sampled_from(("", "u1", "u2")),
    st.fixed_dictionaries({}, optional={WEIGHT: weights | texts}),
    st.fixed_dictionaries({}, optional={WEIGHT: weights | texts}),
)

objects: st.SearchStrategy[KubernetesObject] = st.one_of(services(), slices, nodes, pods)


@st.composite
def weighed_services(draw: st.DrawFn) -> list[KubernetesObject]:
    """A Service that is served, with annotations that are obeyed, its endpoints, and the Nodes and Pods of these."""
    service = Service(
        ObjectMeta("a", ATTACKERS, annotations=draw(valid_annotations)),
        ServiceSpec(
            type="LoadBalancer",
            cluster_ips=("10.96.1.1",),
            ports=(ServicePort(80, node_port=30090),),
            external_ips=("198.51.100.7",),
            external_traffic_policy=draw(st.sampled_from(("Local", "Cluster"))),
        ),
    )
    meta = ObjectMeta("s1", ATTACKERS, labels={SERVICE_NAME_LABEL: "a"})
    ready = (NodeCondition("Ready", "True"),)
    zones = st.sampled_from(draw(st.sampled_from((ZONES[:1], ZONES))))
    found = [
        Node(ObjectMeta(name, labels={ZONE_LABEL: draw(zones)}), status=NodeStatus((), ready))
        for name in draw(st.sampled_from((NODES[1:], NODES[1:2], ())))
    ]
    several_pods = draw(st.lists(pods, max_size=3))
    return [service, EndpointSlice(meta, "IPv4", draw(alike()), (EndpointPort("", 8080),)), *found, *several_pods]


histories: st.SearchStrategy[list[KubernetesObject]] = st.lists(objects, max_size=4) | st.builds(
    list.__add__, weighed_services(), st.lists(objects, max_size=3)
)
"""What comes one after the other."""
