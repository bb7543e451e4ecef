"""A cluster of pods, Namespaces and network policies, written as the API writes them, and the plan of one of its nodes.

`Cluster.allows` reads the plan. `oracle.py` beside it reads the objects.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

import msgspec

from kroute.model.addresses import family_of
from kroute.model.kinds import POLICY_KINDS
from kroute.model.objects import (
    Applied,
    ClusterNetworkPolicy,
    Deleted,
    KubernetesObject,
    Listed,
    Namespace,
    NetworkPolicy,
    ObjectKey,
    Pod,
)
from kroute.model.plan import Problem, Protocol
from kroute.model.policy_plan import (
    NO_GROUPS,
    Action,
    Direction,
    GroupKey,
    PodGroups,
    PolicyChange,
    PortElement,
    Tier,
)
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.planning.policies.rules import DEFAULTS, Limits
from kroute.planning.policies.verdicts import Judgement
from tests.builders import finish

NODE = "node1"
KINDS: Mapping[str, type[KubernetesObject]] = {
    "Pod": Pod,
    "Namespace": Namespace,
    "NetworkPolicy": NetworkPolicy,
    "ClusterNetworkPolicy": ClusterNetworkPolicy,
}

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


def cluster_policy(
    name: str = "cluster", *, tier: str = "Admin", priority: int = 0, subject: Object | None = None, **rules: Any
) -> Object:
    """A policy of the cluster for all pods; `rules` are its `ingress` and `egress`."""
    identity = {"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy"}
    spec = {"tier": tier, "priority": priority, "subject": subject or {"namespaces": {}}, **rules}
    return {**identity, "metadata": {"name": name}, "spec": spec}


def every(**labels: str) -> Object:
    """A peer of a ClusterNetworkPolicy: the pods with these labels, of all Namespaces."""
    return {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": labels}}}


def tiers() -> list[Object]:
    """Policies of both tiers, one after another: every action, for pods and networks, with ports, ranges and without.

    The first is changed by the third, which has other parts, and by the fourth, which has the same.
    """
    nine, client = {"tcp": {"destinationPort": {"range": {"start": 1, "end": 9}}}}, every(app="client")
    everywhere, single = {"networks": ["0.0.0.0/0", "::/0"]}, {"udp": {"destinationPort": {"number": 53}}}
    deny, leave = (
        {"action": "Deny", "from": [client]},
        {"action": "Pass", "from": [client], "protocols": [nine, single]},
    )
    out = [
        {"action": "Accept", "to": [{"networks": ["10.0.0.0/8", "fd00::/16"]}], "protocols": [nine, single]},
        {"action": "Pass", "to": [client]},
        {"action": "Deny", "to": [everywhere]},
    ]
    return [
        cluster_policy("admin", ingress=[deny]),
        cluster_policy("baseline", tier="Baseline", ingress=[leave, deny], egress=out),
        cluster_policy("admin", ingress=[leave, deny], egress=out),
        cluster_policy("admin", ingress=[{**leave, "protocols": [nine]}, deny], egress=out),
    ]


def pods_with(**labels: str) -> Object:
    return {"podSelector": {"matchLabels": labels}}


def block(cidr: str, *excepted: str) -> Object:
    return {"ipBlock": {"cidr": cidr, **({"except": list(excepted)} if excepted else {})}}


def key_of(item: Object) -> ObjectKey:
    return ObjectKey(item["metadata"].get("namespace", ""), item["metadata"]["name"])


class Cluster:
    """The objects, a catalog that follows them, and a node that has made every change of the plan."""

    def __init__(self, *items: Object, limits: Limits = DEFAULTS, all_pods: bool = False) -> None:
        self.objects: dict[tuple[str, ObjectKey], Object] = {}
        self.catalog = PolicyCatalog(NODE, limits, all_pods=all_pods)
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
    """What the kernel has: the sets of each part of a group, and the groups of each address.

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
        assert {part for key in used for part in key.of_parts()} == set(self.networks)

    def allows(self, source: str, destination: str, number: int, protocol: str) -> bool:
        ends = ((destination, source, Direction.INGRESS), (source, destination, Direction.EGRESS))
        return all(self._accepts(*end, number, protocol) for end in ends)

    def _accepts(self, pod: str, peer: str, direction: Direction, number: int, protocol: str) -> bool:
        for key in self.pods.get(pod, NO_GROUPS).of(direction):
            if key.tier is Tier.NETWORK_POLICY and pod == peer:
                return True
            action = self._action(key, peer, number, protocol)
            if action is not Action.PASS:
                return action is Action.ACCEPT
        return True

    def _action(self, key: GroupKey, peer: str, number: int, protocol: str) -> Action:
        """What the group does with a packet. Whatever is asked at the same time, at most one has the packet."""
        for of_pods in (True, False):
            parts = [part for part in key.of_parts() if key.parts[part.part].of_pods == of_pods]
            with_port = [part for part in parts if self._has_port(part, peer, number, protocol)]
            for found in (with_port, [part for part in parts if self._has_network(part, peer)]):
                if found:
                    [part] = found
                    return key.parts[part.part].action
        return Action.DENY if key.tier is Tier.NETWORK_POLICY else Action.PASS

    def _has_network(self, key: GroupKey, peer: str) -> bool:
        return any(is_in(peer, network) for network in self.networks[key])

    def _has_port(self, key: GroupKey, peer: str, number: int, protocol: str) -> bool:
        return any(
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
