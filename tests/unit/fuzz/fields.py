"""Hostile objects that the API server could store: odd values, many of each, and addresses that others have."""

from typing import Any

from hypothesis import strategies as st

from kroute.model.objects import (
    HEADLESS_LABEL,
    SERVICE_NAME_LABEL,
    SERVICE_PROXY_NAME_LABEL,
    WEIGHT,
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
    NodeMeta,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
    SessionAffinityConfig,
)
from kroute.planning.annotations.table import ANNOTATION_NAMES

ATTACKERS = "tenant"
"""The namespace of every hostile object."""

NAMES = ("a", "b", "c")

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
)
named = several(st.builds(NamedHint, texts))


@st.composite
def services(draw: st.DrawFn) -> Service:
    return Service(
        ObjectMeta(
            draw(st.sampled_from(NAMES)),
            ATTACKERS,
            creation_timestamp=draw(st.none() | st.sampled_from(("2020-01-01T00:00:00Z", "2027-01-01T00:00:00Z", ""))),
            labels=draw(st.none() | labels),
            annotations=draw(st.none() | st.dictionaries(annotation_names, texts, max_size=3)),
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


conditions = st.builds(EndpointConditions, *[st.none() | st.booleans()] * 3)
endpoints = st.one_of(
    several(
        st.builds(
            Endpoint,
            st.lists(addresses, max_size=2).map(tuple),
            conditions,
            st.none() | st.sampled_from(("node1", "node2")) | texts,
            st.none() | st.builds(EndpointHints, named, named),
        )
    ),
    st.builds(many_endpoints, st.integers(0, 5), counts, st.sampled_from(("node1", "node2"))),
)
backend_ports = st.one_of(
    several(st.builds(EndpointPort, st.none() | texts, st.none() | numbers, st.sampled_from(("TCP", "UDP", "x")))),
    st.builds(
        lambda first, count: tuple(EndpointPort(it.name, it.port) for it in many_ports(first, count)),
        st.integers(1, 100),
        counts,
    ),
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
nodes = st.builds(
    lambda name, networks, them, conditions: Node(
        NodeMeta(name), NodeSpec(pod_cidrs=networks), NodeStatus(them, conditions)
    ),
    st.sampled_from(("node2", "node3", "")),
    several(texts | st.sampled_from(("10.244.0.0/16", "0.0.0.0/0"))),
    several(
        st.builds(
            NodeAddress,
            st.sampled_from(("InternalIP", "ExternalIP", "Hostname", "")),
            addresses.filter(lambda it: not it.startswith("198.51.100.20")),
        )
    ),
    several(st.builds(NodeCondition, texts, texts)),
)
"""Other nodes than this one, with false statuses from their kubelets."""

objects: st.SearchStrategy[KubernetesObject] = st.one_of(services(), slices, nodes)
