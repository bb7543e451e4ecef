"""Random Pods, Namespaces and NetworkPolicies, as the API server takes them, of the pods of `reachability.py`."""

import itertools
import random
from collections.abc import Sequence
from ipaddress import ip_network
from typing import TypeVar

from tests.lab.objects import Object, identity
from tests.lab.reachability import HOMES, NAMESPACES, PODS, PORTS, PROTOCOLS, namespace_object, pod_object, port_name
from tests.unit.planning.policies.cluster import block, policy

T = TypeVar("T")
Objects = dict[tuple[str, str, str], Object]

NAMES = ("first", "second", "third")
"""Of the policies of a namespace."""
LABELS = {"pod": "abc", "tier": "pq"}
LABELS_OF_NAMESPACES = {"ns": "xyz", "team": "pq"}
PORT_NAMES = [port_name(protocol, port) for protocol in PROTOCOLS for port in PORTS]
KINDS = ("Pod", "Namespace", "NetworkPolicy")


class RandomPolicies:
    """Draws by a seed. `objects` are those of now: every pod and Namespace, and at most nine policies."""

    def __init__(self, by: str) -> None:
        self._random = random.Random(by)
        self.objects: Objects = {}
        self.draw()

    def draw(self) -> None:
        """Draw everything anew."""
        drawn = [self._namespace(name) for name in NAMESPACES] + [self._pod(pod) for pod in PODS]
        of_policies = self._some(list(itertools.product(NAMESPACES, NAMES)), 1, 5)
        self.objects = {identity(item): item for item in (*drawn, *(self._policy(*each) for each in of_policies))}

    def edit(self, kind: str) -> tuple[Object | None, Object | None]:
        """Change one object of this kind; returns what it was and what it is. Policies come and go, too."""
        item = {"Pod": self._any_pod, "Namespace": self._any_namespace, "NetworkPolicy": self._any_policy}[kind]()
        before = self.objects.pop(identity(item), None)
        if before is not None and kind == "NetworkPolicy" and self._is(35):
            return before, None
        self.objects[identity(item)] = item
        return before, item

    def _any_pod(self) -> Object:
        return self._pod(self._random.choice(PODS))

    def _any_namespace(self) -> Object:
        return self._namespace(self._random.choice(NAMESPACES))

    def _any_policy(self) -> Object:
        return self._policy(self._random.choice(NAMESPACES), self._random.choice(NAMES))

    # ---- objects -------------------------------------------------------------------------------------------------

    def _namespace(self, name: str) -> Object:
        return namespace_object(name, **(self._labels(LABELS_OF_NAMESPACES) if self._is(50) else {}))

    def _pod(self, pod: str) -> Object:
        """Now and then a port has no name, or the name that is usual for another number."""
        numbers = list(itertools.product(PROTOCOLS, PORTS))
        ports = {each: port_name(*each) for each in numbers if self._is(90)}
        if self._is(20):
            ports = {(protocol, port): port_name(protocol, sum(PORTS) - port) for protocol, port in numbers}
        return pod_object(pod, ports, **(self._labels(LABELS) if self._is(50) else {}))

    def _labels(self, known: dict[str, str]) -> dict[str, str]:
        return {key: self._random.choice(values) for key, values in known.items() if self._is(80)}

    def _policy(self, namespace: str, name: str) -> Object:
        types = self._random.choice([["Ingress"], ["Egress"], ["Ingress", "Egress"], None])
        spec = {"ingress": self._rules("from"), "egress": self._rules("to")}
        written = {field: rules for field, rules in spec.items() if rules or self._is(30)}
        if types:
            written["policyTypes"] = types
        return policy(f"{name}-{namespace}", namespace=namespace, selector=self._selector(LABELS), **written)

    # ---- their parts ---------------------------------------------------------------------------------------------

    def _rules(self, field: str) -> list[Object]:
        return [self._rule(field) for _ in range(self._random.choice([0, 1, 1, 2]))]

    def _rule(self, field: str) -> Object:
        """A rule for an ipBlock has no names of ports: with these it allows nothing, which is said as a problem."""
        peers = [self._peer() for _ in range(self._random.choice([0, 1, 1, 2, 3]))]
        are_named = not any("ipBlock" in peer for peer in peers)
        ports = [self._port(are_named=are_named) for _ in range(self._random.choice([0, 0, 1, 1, 2]))]
        return {**({field: peers} if peers else {}), **({"ports": ports} if ports else {})}

    def _peer(self) -> Object:
        if self._is(30):
            return self._block()
        pods, namespaces = {"podSelector": self._selector(LABELS)}, {"namespaceSelector": self._of_namespaces()}
        return self._random.choice([pods, namespaces, pods | namespaces])

    def _block(self) -> Object:
        """A network around a pod, which may have exceptions around others of it."""
        address = self._random.choice(HOMES[self._random.choice(PODS)][1:])
        longest = 128 if ":" in address else 32
        whole = ip_network(f"{address}/{longest - self._random.choice([0, 1, 2, 3, 8, 16, longest])}", strict=False)
        others = [other for pod in PODS for other in HOMES[pod][1:] if (":" in other) == (":" in address)]
        excepted = [
            str(hole)
            for other in self._some(others, 0, 2)
            if (hole := ip_network(f"{other}/{longest - self._random.choice([0, 0, 1, 2])}", strict=False)) != whole
            and hole.subnet_of(whole)  # type: ignore[arg-type]  # of one version
        ]
        return block(str(whole), *excepted)

    def _port(self, *, are_named: bool) -> Object:
        protocol = self._random.choice([*PROTOCOLS, None])
        of_protocol = {"protocol": protocol} if protocol else {}
        kind = self._random.choice(["any", "number", "number", "range", "name" if are_named else "number"])
        if kind == "any":
            return of_protocol
        if kind == "range":
            first = self._random.choice([1, 79, 80, 81])
            return {**of_protocol, "port": first, "endPort": self._random.choice([81, 82, 65535])}
        if kind == "name":
            return {**of_protocol, "port": self._random.choice(PORT_NAMES)}
        return {**of_protocol, "port": self._random.choice([*PORTS, 79])}

    def _selector(self, known: dict[str, str]) -> Object:
        """It selects everything, a label, or by an expression."""
        key, values = self._random.choice(list(known.items()))
        kind = self._random.choice(["all", "label", "label", "values", "key"])
        if kind == "all":
            return {}
        if kind == "label":
            return {"matchLabels": {key: self._random.choice(values)}}
        if kind == "values":
            operator, some = self._random.choice(["In", "NotIn"]), self._some(values, 1, 2)
            return {"matchExpressions": [{"key": key, "operator": operator, "values": some}]}
        return {"matchExpressions": [{"key": key, "operator": self._random.choice(["Exists", "DoesNotExist"])}]}

    def _of_namespaces(self) -> Object:
        return self._selector(LABELS_OF_NAMESPACES)

    def _is(self, percent: int) -> bool:
        return self._random.randrange(100) < percent

    def _some(self, values: Sequence[T], least: int, most: int) -> list[T]:
        return self._random.sample(values, self._random.randint(least, most))
