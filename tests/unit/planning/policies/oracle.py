"""What the API's text says of a packet, read from the objects as they are written.

As one node judges it, or, without a node, as all nodes together: the one of the source and the one of the destination.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from tests.unit.planning.policies.cluster import NODE, Object

Labels = Mapping[str, str]


def allows(objects: Iterable[Object], source: str, destination: str, number: int, protocol: str) -> bool:
    """Whether policies let the packet pass on the node."""
    return World(objects).allows(source, destination, number, protocol)


def alone(objects: Iterable[Object], policy: Object) -> "World":
    """The same objects without all other policies."""
    return World([item for item in objects if item["kind"] != "NetworkPolicy" or item is policy])


def ends(source: str, destination: str) -> tuple[tuple[str, str, str], ...]:
    """The two ends that judge a packet: the pod's address, its peer's, and the direction. A pod reaches itself."""
    both = (destination, source, "Ingress"), (source, destination, "Egress")
    return () if source == destination else both


class World:
    def __init__(self, objects: Iterable[Object], node: str | None = NODE) -> None:
        self._node = node
        all_of = list(objects)
        self.policies = [item for item in all_of if item["kind"] == "NetworkPolicy"]
        self.namespaces = {
            it["metadata"]["name"]: it["metadata"]["labels"] for it in all_of if it["kind"] == "Namespace"
        }
        self.pods = {
            address["ip"]: item
            for item in sorted((item for item in all_of if item["kind"] == "Pod"), key=self._rank)
            if item["status"]["phase"] not in {"Succeeded", "Failed"} and not item["spec"]["hostNetwork"]
            for address in item["status"]["podIPs"]
        }

    def allows(self, source: str, destination: str, number: int, protocol: str) -> bool:
        return all(self.permits(*end, number, protocol) for end in ends(source, destination))

    def permits(self, address: str, peer: str, direction: str, number: int, protocol: str) -> bool:
        """Whether one end of a packet, the pod with this address, lets it pass."""
        pod = self.pods.get(address)
        if pod is None or self._node not in {None, pod["spec"]["nodeName"]}:
            return True
        isolating = [
            item
            for item in self.policies
            if item["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and direction in _types(item["spec"])
            and selects(item["spec"]["podSelector"], pod["metadata"]["labels"])
        ]
        served = self.pods.get(address if direction == "Ingress" else peer)
        return not isolating or any(
            (not rule.get("ports") or any(_is_port(port, number, protocol, served) for port in rule["ports"]))
            if not (peers := rule.get("from" if direction == "Ingress" else "to"))
            else any(
                self._is_peer(one, peer, item["metadata"]["namespace"])
                and (not rule.get("ports") or any(_is_port(port, number, protocol, known) for port in rule["ports"]))
                for one in peers
                for known in [None if "ipBlock" in one and direction == "Egress" else served]
            )
            for item in isolating
            for rule in item["spec"].get(direction.lower()) or ()
        )

    def _is_peer(self, peer: Object, address: str, own: str) -> bool:
        if "ipBlock" in peer:
            return len(peer) == 1 and _is_in_block(address, **peer["ipBlock"])
        pod, in_namespaces = self.pods.get(address), peer.get("namespaceSelector")
        if pod is None or not peer:
            return False
        namespace, labels = pod["metadata"]["namespace"], pod["metadata"]["labels"]
        is_there = namespace == own
        if in_namespaces is not None:
            is_there = namespace in self.namespaces and selects(in_namespaces, self.namespaces[namespace])
        return is_there and selects(peer.get("podSelector", {}), labels)

    def _rank(self, pod: Object) -> tuple[Any, ...]:
        """Of several pods with one address the last one counts."""
        meta = pod["metadata"]
        is_local = pod["spec"]["nodeName"] == self._node
        created = meta.get("creationTimestamp", "")
        return "deletionTimestamp" not in meta, is_local, created, meta["namespace"], meta["name"]


def _types(spec: Object) -> list[str]:
    return spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def selects(selector: Object, labels: Labels) -> bool:
    held = [labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()]
    for one in selector.get("matchExpressions", ()):
        key, operator, values = one["key"], one["operator"], one.get("values", [])
        if operator not in {"In", "NotIn", "Exists", "DoesNotExist"} or bool(values) != operator.endswith("In"):
            return False
        has_it = labels.get(key) in values if values else key in labels
        held.append(has_it == (operator in {"In", "Exists"}))
    return all(held)


def _is_port(port: Object, number: int, protocol: str, served: Object | None) -> bool:
    first, last = port.get("port"), port.get("endPort")
    if port.get("protocol", "TCP") != protocol or protocol not in {"TCP", "UDP", "SCTP"}:
        return False
    if isinstance(first, str):
        ports = served["spec"]["containers"][0]["ports"] if served is not None and last is None else []
        of_name = [it["containerPort"] for it in ports if (it["name"], it.get("protocol", "TCP")) == (first, protocol)]
        return of_name[:1] == [number]
    if first is None:
        return last is None
    return bool(1 <= first <= number <= (last or first) <= 65535)


def _is_in_block(address: str, cidr: str, **excepted: list[str]) -> bool:
    try:
        whole, *holes = (ip_network(text, strict=False) for text in (cidr, *excepted.get("except", ())))
    except ValueError:
        return False
    if not all(hole.version == whole.version and hole.subnet_of(whole) for hole in holes):  # type: ignore[arg-type]
        return False
    return ip_address(address) in whole and not any(ip_address(address) in hole for hole in holes)
