"""The objects that the bench serves: Services, their EndpointSlices, and the Nodes that the pods are on.

Everything follows from the counts, so that two runs, and the batch tools, have the same content. A Node has
`PODS_ON_A_NODE` pods, as many as a full node of a real cluster, unless the number of Nodes is given. So the node under
test has as many local endpoints in a cluster of 100 Services as in one of 10,000.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

Object = dict[str, Any]

NODE = "node-0"
"""The node that kroute runs on."""
NODE_ADDRESS = "192.168.250.2"
POD_NETWORK = "10.128.0.0/9"
PORT = 80
TARGET_PORT = 8080
PODS_ON_A_NODE = 100
NAMESPACES = 20
ZONES = ("zone-a", "zone-b", "zone-c")

_FIRST_CLUSTER_IP = int(IPv4Address("10.96.0.10"))
_FIRST_POD_IP = int(IPv4Address("10.128.0.2"))
_FIRST_NEW_POD_IP = int(IPv4Address("10.192.0.2"))
_FIRST_NODE_IP = int(IPv4Address("172.16.0.2"))
_SPREAD_NODE = "spread-"
_CREATED = "2026-01-01T00:00:00Z"
_UIDS = uuid.UUID("8a8e2d4c-35a2-4c0b-9a5e-0d3c2f8f0a11")


@dataclass(frozen=True)
class Workload:
    """`services` Services with one TCP port, each with `endpoints` endpoints in one slice, on so many `nodes`."""

    services: int
    endpoints: int = 10
    nodes: int = 0

    @property
    def pods(self) -> int:
        """The number of all endpoints."""
        return self.services * self.endpoints

    def objects(self) -> Iterator[Object]:
        """Every object, as the API server stores it."""
        for number in range(self.nodes or max(1, -(-self.pods // PODS_ON_A_NODE))):
            yield self.node(number)
        for number in range(self.services):
            yield self.service(number)
            yield self.slice(number)

    def cluster_ip(self, number: int) -> str:
        return str(IPv4Address(_FIRST_CLUSTER_IP + number))

    def pod_ips(self, number: int, replaced: int = 0) -> list[str]:
        """The addresses of a Service's endpoints after `replaced` of its pods were replaced in sequence."""
        addresses = [_FIRST_POD_IP + number * self.endpoints + index for index in range(self.endpoints)]
        for earlier in range(replaced):
            lap, index = divmod(earlier, self.endpoints)
            addresses[index] = _FIRST_NEW_POD_IP + lap * self.pods + number * self.endpoints + index
        return [str(IPv4Address(address)) for address in addresses]

    def local_pods(self) -> list[tuple[int, str]]:
        """The endpoints on the node under test: the number of the Service, and the address."""
        return [
            (number, address)
            for number in range(self.services)
            for index, address in enumerate(self.pod_ips(number))
            if self._node_of(number * self.endpoints + index) == 0
        ]

    def service(self, number: int) -> Object:
        address = self.cluster_ip(number)
        return {
            "kind": "Service",
            "apiVersion": "v1",
            "metadata": {
                **_names("service", number, f"service-{number}"),
                "labels": {"app": f"service-{number}"},
                "managedFields": [_managed("kubectl-client-side-apply", {"f:spec": {"f:ports": {}, "f:selector": {}}})],
            },
            "spec": {
                "ports": [{"name": "http", "protocol": "TCP", "port": PORT, "targetPort": TARGET_PORT}],
                "selector": {"app": f"service-{number}"},
                "clusterIP": address,
                "clusterIPs": [address],
                "type": "ClusterIP",
                "sessionAffinity": "None",
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "internalTrafficPolicy": "Cluster",
            },
            "status": {"loadBalancer": {}},
        }

    def slice(self, number: int, replaced: int = 0) -> Object:
        """A Service's EndpointSlice after `replaced` of its pods were replaced."""
        addresses = self.pod_ips(number, replaced)
        names = _names("slice", number, f"service-{number}-x7k2p")
        return {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {
                **names,
                "generateName": f"service-{number}-",
                "labels": {
                    "app": f"service-{number}",
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                    "kubernetes.io/service-name": f"service-{number}",
                },
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Service",
                        "name": f"service-{number}",
                        "uid": _uid("service", number),
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
                "managedFields": [
                    _managed("kube-controller-manager", {"f:addressType": {}, "f:endpoints": {}, "f:ports": {}})
                ],
            },
            "addressType": "IPv4",
            "endpoints": [
                self._endpoint(names["namespace"], number * self.endpoints + index, address)
                for index, address in enumerate(addresses)
            ],
            "ports": [{"name": "http", "protocol": "TCP", "port": TARGET_PORT}],
        }

    def spread_service(self, number: int, weight: int) -> Object:
        """A Service of `spread_slice` whose annotation gives one endpoint this weight, and the others 1."""
        item = self.service(number)
        item["metadata"]["annotations"] = {
            "kroute.io/scheduler": "wrr",
            "kroute.io/weights": f"node/{_SPREAD_NODE}1={weight}",
        }
        return item

    def spread_slice(self, number: int) -> Object:
        """The EndpointSlice of a Service that has one endpoint on each of several nodes."""
        item = self.slice(number)
        for index, endpoint in enumerate(item["endpoints"]):
            endpoint["nodeName"] = f"{_SPREAD_NODE}{index}"
        return item

    def node(self, number: int) -> Object:
        address = NODE_ADDRESS if number == 0 else str(IPv4Address(_FIRST_NODE_IP + number))
        return {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {
                "name": f"node-{number}",
                "uid": _uid("node", number),
                "creationTimestamp": _CREATED,
                "labels": {
                    "kubernetes.io/hostname": f"node-{number}",
                    "topology.kubernetes.io/zone": ZONES[number % len(ZONES)],
                },
            },
            "spec": {},
            "status": {
                "capacity": {"cpu": "16", "memory": "65536000Ki", "pods": "110"},
                "conditions": [
                    {"type": kind, "status": "True" if kind == "Ready" else "False", "lastHeartbeatTime": _CREATED}
                    for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
                ],
                "addresses": [
                    {"type": "InternalIP", "address": address},
                    {"type": "Hostname", "address": f"node-{number}"},
                ],
            },
        }

    def _node_of(self, pod: int) -> int:
        """The number of the Node that a pod is on."""
        return pod * self.nodes // self.pods if self.nodes else pod // PODS_ON_A_NODE

    def _endpoint(self, namespace: str, pod: int, address: str) -> Object:
        node = self._node_of(pod)
        return {
            "addresses": [address],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "targetRef": {"kind": "Pod", "namespace": namespace, "name": f"pod-{pod}", "uid": _uid("pod", pod)},
            "nodeName": f"node-{node}",
            "zone": ZONES[node % len(ZONES)],
        }


def _names(kind: str, number: int, name: str) -> Object:
    return {
        "name": name,
        "namespace": f"team-{number % NAMESPACES}",
        "uid": _uid(kind, number),
        "creationTimestamp": _CREATED,
    }


def _uid(kind: str, number: int) -> str:
    return str(uuid.uuid5(_UIDS, f"{kind} {number}"))


def _managed(manager: str, fields: Object) -> Object:
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": _CREATED,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
