"""Kubernetes objects for the lab, as the API and `kubectl get -o yaml` return them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tests.lab.hosts import Host
from tests.lab.topology import NODES

Object = dict[str, Any]

Ports = Mapping[str, int] | Iterable[Object]
"""Ports by the name of their protocol, or a list of results of `port`."""

_HTTP = {"TCP": 8080}


class Endpoint(NamedTuple):
    """An endpoint of a slice: its host, its conditions, its zone, and its hints."""

    host: Host
    conditions: Mapping[str, bool]
    zone: str | None = None
    for_zones: tuple[str, ...] = ()
    for_nodes: tuple[str, ...] = ()


def port(name: str, number: int, protocol: str = "TCP", *, node_port: int = 0) -> Object:
    """A port of a Service or of a slice. A slice's port has no `node_port`."""
    made: Object = {"name": name, "port": number, "protocol": protocol}
    return {**made, "nodePort": node_port} if node_port else made


def service(
    name: str,
    *cluster_ips: str,
    ports: Ports = _HTTP,
    node_ports: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    ingress: Iterable[str] = (),
    **spec: Any,
) -> Object:
    """A Service. `node_ports` are by protocol name and make it a NodePort Service, `ingress` a LoadBalancer Service.

    `ingress` are the addresses that a load balancer's controller has written into the status. `spec` takes any further
    field, and overrides the others.
    """
    metadata = {"namespace": "default", "name": name, "labels": labels, "annotations": annotations}
    addresses = list(ingress)
    made: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {key: dict(it) if isinstance(it, Mapping) else it for key, it in metadata.items() if it},
        "spec": {
            "type": "LoadBalancer" if addresses else "NodePort" if node_ports else "ClusterIP",
            "clusterIP": cluster_ips[0] if cluster_ips else "None",
            "clusterIPs": list(cluster_ips) or ["None"],
            "ipFamilies": ["IPv6" if ":" in it else "IPv4" for it in cluster_ips] or ["IPv4"],
            "ports": [_with_node_port(it, node_ports or {}) for it in _ports(ports)],
            **spec,
        },
    }
    if addresses:
        made["status"] = {"loadBalancer": {"ingress": [{"ip": it, "ipMode": "VIP"} for it in addresses]}}
    return made


def external_name(name: str, target: str) -> Object:
    """A Service of type ExternalName, which only DNS serves."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"type": "ExternalName", "externalName": target},
    }


def endpoint_slices(
    service_name: str,
    hosts: Iterable[Host | Endpoint],
    ports: Ports = _HTTP,
    *,
    name: str = "",
    **conditions: bool,
) -> list[Object]:
    """One slice for each family, with an endpoint for each of `hosts`.

    `conditions` apply to every Host among them; an Endpoint has its own. `name` begins the slices' names, if a Service
    has several of a family.
    """
    members = [it if isinstance(it, Endpoint) else Endpoint(it, conditions) for it in hosts]
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default",
                "name": f"{name or service_name}-{family.lower()}",
                "labels": {"kubernetes.io/service-name": service_name},
            },
            "addressType": family,
            "endpoints": [_endpoint(it, family) for it in members],
            "ports": _ports(ports),
        }
        for family in ("IPv4", "IPv6")
    ]


def node(host: Host, zone: str | None = None) -> Object:
    """The Node object of a node of the lab."""
    addresses = [{"type": "InternalIP", "address": address} for address in (host.ip, host.ip6)]
    labels = {"kubernetes.io/hostname": host.name, "kubernetes.io/os": "linux"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": host.name,
            "labels": {**labels, "topology.kubernetes.io/zone": zone} if zone else labels,
        },
        "spec": {"podCIDRs": list(NODES[host.name].pod_networks)},
        "status": {"addresses": [*addresses, {"type": "Hostname", "address": host.name}]},
    }


def identity(item: Object) -> tuple[str, str, str]:
    """Kind, namespace and name."""
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _ports(ports: Ports) -> list[Object]:
    if isinstance(ports, Mapping):
        return [port(protocol.lower(), number, protocol) for protocol, number in ports.items()]
    return list(ports)


def _with_node_port(made: Object, node_ports: Mapping[str, int]) -> Object:
    return {**made, "nodePort": node_ports[made["protocol"]]} if made["protocol"] in node_ports else made


def _endpoint(endpoint: Endpoint, family: str) -> Object:
    """An entry of a slice. A server in a node's own network is on that node."""
    hints = {"forZones": endpoint.for_zones, "forNodes": endpoint.for_nodes}
    made: Object = {
        "addresses": [endpoint.host.ip6 if family == "IPv6" else endpoint.host.ip],
        "conditions": dict(endpoint.conditions),
        "nodeName": getattr(endpoint.host, "node", endpoint.host).name,
    }
    if endpoint.zone:
        made["zone"] = endpoint.zone
    if any(hints.values()):
        made["hints"] = {field: [{"name": it} for it in names] for field, names in hints.items() if names}
    return made
