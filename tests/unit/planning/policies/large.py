"""A large cluster: its pods, Namespaces and NetworkPolicies, and a catalog that has planned them."""

from collections.abc import Iterator
from itertools import islice

import msgspec

from kroute.model.kinds import POLICY_KINDS
from kroute.model.objects import Applied, KubernetesObject, Listed
from kroute.planning.policies.catalog import PolicyCatalog
from tests.unit.planning.policies import cluster
from tests.unit.planning.policies.cluster import KINDS, NODE, Object, block, pods_with

APPS = 5
"""Deployments of a namespace."""
HTTP, METRICS = {"port": "http", "protocol": "TCP"}, {"port": "metrics", "protocol": "TCP"}
DNS = {"namespaceSelector": {"matchLabels": {"team": "n0"}}} | pods_with(app="a0")


def read(item: Object) -> KubernetesObject:
    return msgspec.json.decode(msgspec.json.encode(item), type=KINDS[item["kind"]])


def pod(number: int, namespaces: int, on: str, **labels: str) -> Object:
    """A pod of one of the namespaces, in turn, and of one of its Deployments."""
    app = f"a{number // namespaces % APPS}"
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    ports = [cluster.port("http", 8080, "TCP"), cluster.port("metrics", 9090, "TCP")]
    named = {"app": app, "pod-template-hash": f"{app}-x", "version": "1", **labels}
    made = cluster.pod(f"p{number}", address, namespace=f"n{number % namespaces}", on=on, ports=ports)
    made["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "labels": named}
    return made


def policies_of(namespace: str) -> Iterator[Object]:
    """What a careful tenant writes: a default, its own pods, the ingress controller's, its monitoring, and egress.

    Each port has its protocol, as the API server adds it.
    """
    yield cluster.policy("default-deny", namespace=namespace, policyTypes=["Ingress", "Egress"])
    yield cluster.ingress({"podSelector": {}}, namespace=namespace, name="same-namespace")
    front, web = {"namespaceSelector": {"matchLabels": {"team": "n1"}}}, {"matchLabels": {"app": "a0"}}
    yield cluster.ingress(front, ports=[HTTP], namespace=namespace, name="front", selector=web)
    everywhere: Object = {"namespaceSelector": {}} | pods_with(app="a1")
    yield cluster.ingress(everywhere, ports=[METRICS], namespace=namespace, name="monitoring")
    rules = [
        {"to": [{"podSelector": {}}]},
        {"to": [DNS], "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
        {"to": [block("0.0.0.0/0", "10.0.0.0/8", "169.254.0.0/16")], "ports": [{"port": 443, "protocol": "TCP"}]},
    ]
    yield cluster.policy("out", namespace=namespace, policyTypes=["Egress"], egress=rules)


def objects(pods: int, local: int, policies: int, node: str = NODE) -> Iterator[Object]:
    """So many of each; five policies a namespace, and the node's pods spread over the namespaces."""
    namespaces = policies // 5
    for number in range(namespaces):
        yield cluster.namespace(f"n{number}", team=f"n{number}")
    for number in range(pods):
        yield pod(number, namespaces, node if number < local else f"node{number % 100 + 2}")
    every = (item for number in range(namespaces) for item in policies_of(f"n{number}"))
    yield from islice(every, policies)


def catalog(pods: int, local: int = 110, policies: int = 1000) -> PolicyCatalog:
    """A catalog that has taken all that, and planned nothing yet."""
    made = PolicyCatalog(NODE)
    made.take(Applied(read(item)) for item in objects(pods, local, policies))
    made.take([Listed(kind.type) for kind in POLICY_KINDS])
    return made
