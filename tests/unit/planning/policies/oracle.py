"""What the APIs' text says of a packet, read from the objects as they are written.

As one node judges it, or, without a node, as all nodes together: the one of the source and the one of the destination.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from tests.unit.planning.policies.cluster import NODE, Object

Labels = Mapping[str, str]
Packet = tuple[int, str]
"""The number of its port, and its protocol."""


def alone(objects: Iterable[Object], policy: Object) -> "World":
    """The same objects without all other policies."""
    kinds = {"NetworkPolicy", "ClusterNetworkPolicy"}
    return World([item for item in objects if item["kind"] not in kinds or item is policy])


def ends(source: str, destination: str) -> tuple[tuple[str, str, str], ...]:
    """The two ends that judge a packet: the pod's address, its peer's, and the direction."""
    return (destination, source, "Ingress"), (source, destination, "Egress")


class World:
    def __init__(self, objects: Iterable[Object], node: str | None = NODE) -> None:
        self._node = node
        all_of = list(objects)
        self.policies = [item for item in all_of if item["kind"] == "NetworkPolicy"]
        cluster = [item for item in all_of if item["kind"] == "ClusterNetworkPolicy"]
        self.of_cluster = sorted(cluster, key=lambda it: (it["spec"]["priority"], it["metadata"]["name"]))
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
        """Whether policies let the packet pass."""
        return all(self.permits(*end, number, protocol) for end in ends(source, destination))

    def permits(self, address: str, peer: str, direction: str, number: int, protocol: str) -> bool:
        """Whether one end of a packet, the pod with this address, lets it pass."""
        action, _ = self.deciding(address, peer, direction, number, protocol)
        isolating = self._isolating(address, direction)
        if action or not isolating or address == peer:
            return action != "Deny"
        served = self.pods.get(address if direction == "Ingress" else peer)
        return any(
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

    def deciding(self, address: str, peer: str, direction: str, number: int, protocol: str) -> tuple[str, str]:
        """Accept or Deny, and the rule of a ClusterNetworkPolicy that says it; nothing if none decides."""
        for tier in ("Admin", "Baseline"):
            if tier == "Baseline" and self._isolating(address, direction):
                break
            action, rule = self._first(tier, address, peer, direction, (number, protocol))
            if action == "Pass" and tier == "Baseline":
                return "Accept", rule
            if action in {"Accept", "Deny"}:
                return action, rule
        return "", ""

    def _local(self, address: str) -> Object | None:
        pod = self.pods.get(address)
        return pod if pod is not None and self._node in {None, pod["spec"]["nodeName"]} else None

    def _isolating(self, address: str, direction: str) -> list[Object]:
        pod = self._local(address)
        return [
            item
            for item in self.policies
            if pod is not None
            and item["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and direction in _types(item["spec"])
            and selects(item["spec"]["podSelector"], pod["metadata"]["labels"])
        ]

    def _first(self, tier: str, address: str, peer: str, direction: str, packet: Packet) -> tuple[str, str]:
        """The action of the first rule of the tier that matches, and the rule."""
        served = self.pods.get(address if direction == "Ingress" else peer)
        for item in self.of_cluster:
            spec, is_known = item["spec"], item["spec"]["tier"] in {"Admin", "Baseline"}
            if (spec["tier"] if is_known else "Admin") != tier or self._local(address) is None:
                continue
            if not _is_sound(spec["subject"], "") or not self._is_of_cluster(spec["subject"], address):
                continue
            for place, rule in enumerate(spec.get(direction.lower()) or ()):
                action = self._says(rule, peer, direction, packet, served)
                if action == "Deny" or (action and is_known):
                    return action, f"{item['metadata']['name']} {direction.lower()}[{place}]"
        return "", ""

    def _says(self, rule: Object, peer: str, direction: str, packet: Packet, served: Object | None) -> str:
        peers, protocols = rule.get("from" if direction == "Ingress" else "to") or (), rule.get("protocols") or ()
        has_networks = any("networks" in one for one in peers)
        if (
            rule["action"] not in {"Accept", "Deny", "Pass"}
            or not peers
            or not all(_is_sound(one, direction) for one in peers)
            or not all(map(_is_sound_protocol, protocols))
            or (has_networks and any("destinationNamedPort" in one for one in protocols))
        ):
            return "" if rule["action"] == "Accept" else "Deny"
        is_about = any(self._is_of_cluster(one, peer) for one in peers)
        is_its = not protocols or any(_is_protocol(one, *packet, served) for one in protocols)
        return str(rule["action"]) if is_about and is_its else ""

    def _is_of_cluster(self, peer: Object, address: str) -> bool:
        if "networks" in peer:
            return any(ip_address(address) in ip_network(text) for text in peer["networks"])
        pod = self.pods.get(address)
        if pod is None or pod["metadata"]["namespace"] not in self.namespaces:
            return False
        of_namespace = self.namespaces[pod["metadata"]["namespace"]]
        if "namespaces" in peer:
            return selects(peer["namespaces"], of_namespace)
        pods = peer["pods"]
        is_there = selects(pods.get("namespaceSelector", {}), of_namespace)
        return is_there and selects(pods["podSelector"], pod["metadata"]["labels"])

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


def _is_sound(peer: Object, direction: str) -> bool:
    """Whether a peer or a subject can be understood."""
    if len(peer.keys() & {"namespaces", "pods", "networks"}) != 1:
        return False
    if "networks" in peer:
        return direction == "Egress" and bool(peer["networks"]) and all(map(_is_network, peer["networks"]))
    if "namespaces" in peer:
        return _is_sound_selector(peer["namespaces"])
    selectors = [peer["pods"].get("namespaceSelector", {}), peer["pods"].get("podSelector")]
    return all(one is not None and _is_sound_selector(one) for one in selectors)


def _is_network(text: str) -> bool:
    try:
        return bool(ip_network(text))
    except ValueError:
        return False


def _is_sound_selector(selector: Object) -> bool:
    return all(
        one["operator"] in {"In", "NotIn", "Exists", "DoesNotExist"}
        and bool(one.get("values")) == one["operator"].endswith("In")
        for one in selector.get("matchExpressions", ())
    )


def _is_sound_protocol(written: Object) -> bool:
    if len(written.keys() & {"tcp", "udp", "sctp", "destinationNamedPort"}) != 1:
        return False
    if "destinationNamedPort" in written:
        return True
    [fields] = written.values()
    port = fields.get("destinationPort", {})
    first, last = _ends(port) if len(port) == 1 else (0, 0)
    return bool(1 <= first <= last <= 65535)


def _ends(port: Object) -> tuple[int, int]:
    if "range" in port:
        return port["range"]["start"], port["range"]["end"]
    return port["number"], port["number"]


def _is_protocol(written: Object, number: int, protocol: str, served: Object | None) -> bool:
    if "destinationNamedPort" in written:
        return _is_port({"protocol": protocol, "port": written["destinationNamedPort"]}, number, protocol, served)
    [(name, fields)] = written.items()
    first, last = _ends(fields["destinationPort"])
    return protocol == name.upper() and first <= number <= last
