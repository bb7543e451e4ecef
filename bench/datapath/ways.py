"""The ways of a packet that are measured: from where, to which address of which Service; and the objects for them.

The node has a network namespace for each place of a client, and one for the endpoints, which are ten addresses of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bench.workload import NODE_ADDRESS, PORT, TARGET_PORT, Object, Workload

ENDPOINTS = [f"10.255.0.{number}" for number in range(10, 20)]
"""In the pods' network, all on the node."""
NODE_PORT = 30080
_EXTERNAL, _LOCAL, _RESTRICTED = "203.0.113.1", "203.0.113.2", "203.0.113.3"
_RANGES = ["198.51.100.0/24", "203.0.113.128/25", "192.0.2.0/24"]
"""The last one has the client."""


class Place(NamedTuple):
    """Where a client is: its namespace, none for the node itself; its address, and the node's on the wire to it."""

    namespace: str
    address: str
    beside: str = ""


POD = Place("bench-pod", "10.255.1.2", "10.255.1.1")
OUTSIDE = Place("bench-outside", "192.0.2.2", "192.0.2.1")
NODE = Place("", NODE_ADDRESS)
ENDPOINT_PLACE = Place("bench-endpoints", ENDPOINTS[0], "10.255.0.1")
_NAMESPACES = (POD, OUTSIDE, ENDPOINT_PLACE)
CLEANUP = "\n".join(f"ip netns delete {place.namespace}" for place in _NAMESPACES)
"""A script for the node that removes the namespaces."""


class Way(NamedTuple):
    """A client's way to a port. `floor` names the way from the same place that needs no Service; it has none itself."""

    title: str
    client: Place
    address: str
    port: int = PORT
    floor: str = ""


def _cluster_ip(number: int) -> str:
    return f"10.111.0.{number}"


WAYS: Mapping[str, Way] = {
    "pod": Way("a pod's address, from a pod", POD, ENDPOINTS[0], TARGET_PORT),
    "outside": Way("a pod's address, from outside", OUTSIDE, ENDPOINTS[0], TARGET_PORT),
    "node": Way("a pod's address, from the node", NODE, ENDPOINTS[0], TARGET_PORT),
    "cluster-ip": Way("ClusterIP, from a pod", POD, _cluster_ip(1), floor="pod"),
    "affinity": Way("ClusterIP with session affinity, from a pod", POD, _cluster_ip(2), floor="pod"),
    "own": Way("ClusterIP, from the node", NODE, _cluster_ip(1), floor="node"),
    "masqueraded": Way("ClusterIP, from outside, masqueraded", OUTSIDE, _cluster_ip(1), floor="outside"),
    "node-port": Way("node port, from outside, masqueraded", OUTSIDE, NODE_ADDRESS, NODE_PORT, floor="outside"),
    "external": Way("external address, from outside, masqueraded", OUTSIDE, _EXTERNAL, floor="outside"),
    "local": Way("external address, policy Local, from outside", OUTSIDE, _LOCAL, floor="outside"),
    "ranges": Way("external address with source ranges, from outside", OUTSIDE, _RESTRICTED, floor="outside"),
}
FLOORS = [name for name, way in WAYS.items() if not way.floor]


@dataclass(frozen=True)
class Measured(Workload):
    """The workload, whose endpoints nobody calls, and the Services that the ways lead to."""

    def objects(self) -> Iterator[Object]:
        yield from super().objects()
        first = self.services
        services = (
            {},
            {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}},
            _load_balancer(externalTrafficPolicy="Cluster"),
            _load_balancer(externalTrafficPolicy="Local", healthCheckNodePort=30999),
            _load_balancer(externalTrafficPolicy="Cluster", loadBalancerSourceRanges=_RANGES),
        )
        addresses = (None, None, _EXTERNAL, _LOCAL, _RESTRICTED)
        for number, (spec, address) in enumerate(zip(services, addresses, strict=True), 1):
            item = self.service(first + number)
            ip = _cluster_ip(number)
            item["spec"] |= {"clusterIP": ip, "clusterIPs": [ip], **spec}
            if number == 1:
                item["spec"] |= {"type": "NodePort", "externalTrafficPolicy": "Cluster"}
                item["spec"]["ports"][0]["nodePort"] = NODE_PORT
            if address:
                item["spec"]["ports"][0]["nodePort"] = NODE_PORT + number
                item["status"] = {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}
            yield item
            yield self._local_slice(first + number)

    def _local_slice(self, number: int) -> Object:
        item = self.slice(number)
        [endpoint, *_] = item["endpoints"]
        here = {"nodeName": "node-0", "zone": "zone-a"}
        item["endpoints"] = [{**endpoint, **here, "addresses": [address]} for address in ENDPOINTS]
        return item


def _load_balancer(**spec: object) -> Object:
    return {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": True, **spec}


def topology() -> str:
    """A script for the node that makes the namespaces. The node forwards, as every node does."""
    lines = ["set -e", "sysctl -qw net.ipv4.ip_forward=1"]
    for number, place in enumerate(_NAMESPACES):
        name, inside = f"to-{number}", f"ip -n {place.namespace}"
        lines += [
            f"ip netns add {place.namespace}",
            f"ip link add {name} type veth peer name eth0 netns {place.namespace}",
            f"ip address add {place.beside}/24 dev {name}",
            f"ip link set {name} up",
            f"{inside} link set lo up",
            f"{inside} link set eth0 up",
            f"{inside} address add {place.address}/24 dev eth0",
            f"{inside} route add default via {place.beside}",
        ]
    lines += [f"ip -n {ENDPOINT_PLACE.namespace} address add {address}/24 dev eth0" for address in ENDPOINTS[1:]]
    return "\n".join(lines)
