"""A cluster of pods, Namespaces and NetworkPolicies, written as the API writes them, and the plan of one of its nodes.

`Cluster.allows` reads the plan. `oracle.py` beside it reads the objects.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

import msgspec

from kroute.model.addresses import family_of
from kroute.model.kinds import POLICY_KINDS
from kroute.model.objects import Applied, Deleted, KubernetesObject, Listed, Namespace, NetworkPolicy, ObjectKey, Pod
from kroute.model.plan import Problem, Protocol
from kroute.model.policy_plan import GroupKey, PodGroups, PolicyChange, PortElement
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.planning.policies.rules import DEFAULTS, Limits
from kroute.planning.policies.verdicts import Judgement
from tests.builders import finish

NODE = "node1"
KINDS: Mapping[str, type[KubernetesObject]] = {"Pod": Pod, "Namespace": Namespace, "NetworkPolicy": NetworkPolicy}

Object = dict[str, Any]


def pod(
    name: str,
    *addresses: str,
    namespace: str = "shop",
    on: str = NODE,
    ports: Iterable[Object] = (),
    phase: str = "Running",
    host: bool = False,
    created: str | None = None,
    deleted: str | None = None,
    **labels: str,
) -> Object:
    """A pod on the node, whose labels are the further arguments."""
    meta = {"name": name, "namespace": namespace, "labels": labels}
    stamps = {"creationTimestamp": created, "deletionTimestamp": deleted}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, **{key: value for key, value in stamps.items() if value}},
        "spec": {"nodeName": on, "hostNetwork": host, "containers": [{"name": "main", "ports": list(ports)}]},
        "status": {
            "phase": phase,
            "podIP": addresses[0] if addresses else "",
            "podIPs": [{"ip": it} for it in addresses],
        },
    }


def port(name: str, number: int, protocol: str | None = None) -> Object:
    """A container's port."""
    return {"name": name, "containerPort": number, **({"protocol": protocol} if protocol else {})}


def namespace(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def policy(name: str = "policy", *, namespace: str = "shop", selector: Object | None = None, **spec: Any) -> Object:
    """A policy for all pods of the namespace; `spec` are its further fields."""
    meta = {"name": name, "namespace": namespace}
    identity = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta}
    return {**identity, "spec": {"podSelector": selector or {}, **spec}}


def ingress(*peers: Object, ports: Iterable[Object] = (), **fields: Any) -> Object:
    """A policy that lets these peers in."""
    return policy(ingress=[{"from": list(peers), "ports": list(ports)}], **fields)


def egress(*peers: Object, ports: Iterable[Object] = (), **fields: Any) -> Object:
    """A policy that lets its pods talk to these peers."""
    return policy(policyTypes=["Egress"], egress=[{"to": list(peers), "ports": list(ports)}], **fields)


def pods_with(**labels: str) -> Object:
    return {"podSelector": {"matchLabels": labels}}


def block(cidr: str, *excepted: str) -> Object:
    return {"ipBlock": {"cidr": cidr, **({"except": list(excepted)} if excepted else {})}}


def key_of(item: Object) -> ObjectKey:
    return ObjectKey(item["metadata"].get("namespace", ""), item["metadata"]["name"])


class Cluster:
    """The objects, a catalog that follows them, and a node that has made every change of the plan."""

    def __init__(self, *items: Object, limits: Limits = DEFAULTS) -> None:
        self.objects: dict[tuple[str, ObjectKey], Object] = {}
        self.catalog = PolicyCatalog(NODE, limits)
        self.limits = limits
        self.node = Node()
        self.apply(*items)
        self.catalog.take([Listed(kind.type) for kind in POLICY_KINDS])
        self.change = self.plan()

    def apply(self, *items: Object) -> None:
        for item in items:
            self.objects[item["kind"], key_of(item)] = item
            self.catalog.take([Applied(msgspec.json.decode(msgspec.json.encode(item), type=KINDS[item["kind"]]))])

    def delete(self, *items: Object) -> None:
        for item in items:
            self.objects.pop((item["kind"], key_of(item)), None)
            self.catalog.take([Deleted(KINDS[item["kind"]], key_of(item))])

    def plan(self, work: int | None = None) -> PolicyChange | None:
        """Plan until the plan is made, in pieces if `work` says so; make the changes."""
        change = None
        while self.catalog.has_marked:
            change = self.catalog.plan_marked(work)
            if change is not None:
                self.node.make(change)
        return change

    def after(self, *items: Object) -> PolicyChange:
        """Apply objects and plan."""
        self.apply(*items)
        return self.plan() or PolicyChange({}, {})

    def fresh(self) -> "Cluster":
        """Another one with the same objects."""
        return Cluster(*self.objects.values(), limits=self.limits)

    def problems(self) -> dict[str, tuple[Problem, ...]]:
        return {str(key): problems for key, problems in self.catalog.problems.items()}

    def messages(self) -> list[str]:
        return [problem.message for problems in self.problems().values() for problem in problems]

    def allows(self, source: str, destination: str, number: int = 80, protocol: str = "TCP") -> bool:
        return self.node.allows(source, destination, number, protocol)

    def judged(self, source: str, destination: str, number: int = 80, protocol: str = "TCP") -> Judgement:
        """What the catalog says of a connection."""
        return finish(self.catalog.judging(source, destination, Protocol.__members__.get(protocol), number))


class Node:
    """What the kernel has: the sets of each group, and the groups of each address.

    Like sets of nf_tables it refuses an element that is there already, one that overlaps with another one, and to
    delete one that is not there; a group that does not exist cannot be used, nor deleted while it is used.
    """

    def __init__(self) -> None:
        self.networks: dict[GroupKey, set[str]] = {}
        self.ports: dict[GroupKey, set[PortElement]] = {}
        self.pods: dict[str, PodGroups] = {}

    def make(self, change: PolicyChange) -> None:
        for key, made in change.groups.items():
            assert made.is_new == (key not in self.networks)
            networks, ports = self.networks.setdefault(key, set()), self.ports.setdefault(key, set())
            for network in made.networks_removed:
                networks.remove(network)
            for element in made.ports_removed:
                ports.remove(element)
            for network in made.networks_added:
                assert not any(overlap(network, other) for other in networks), network
                networks.add(network)
            for element in made.ports_added:
                assert not any(collide(element, other) for other in ports), element
                ports.add(element)
        for address, groups in change.pods.items():
            assert self.pods.pop(address, None) != groups
            if groups is not None:
                self.pods[address] = groups
        for key in change.gone:
            del self.networks[key], self.ports[key]
        used = {key for groups in self.pods.values() for key in groups if key is not None}
        assert used == set(self.networks)

    def allows(self, source: str, destination: str, number: int, protocol: str) -> bool:
        if source == destination:
            return True
        nobody = PodGroups(None, None)
        keys = [
            (self.pods.get(destination, nobody).ingress, source),
            (self.pods.get(source, nobody).egress, destination),
        ]
        return all(key is None or self._has(key, peer, number, protocol) for key, peer in keys)

    def _has(self, key: GroupKey, peer: str, number: int, protocol: str) -> bool:
        return any(is_in(peer, network) for network in self.networks[key]) or any(
            is_in(peer, one.network)
            and one.protocol == Protocol.__members__.get(protocol)
            and one.first <= number <= one.last
            for one in self.ports[key]
        )


def is_in(address: str, network: str) -> bool:
    return ip_address(address) in ip_network(network)


def overlap(one: str, other: str) -> bool:
    return family_of(one) == family_of(other) and ip_network(one).overlaps(ip_network(other))


def collide(one: PortElement, other: PortElement) -> bool:
    """Whether a packet may match both."""
    assert isinstance(one.protocol, Protocol)
    is_apart = one.protocol != other.protocol or one.last < other.first or other.last < one.first
    return not is_apart and overlap(one.network, other.network)
