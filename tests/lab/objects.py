"""Kubernetes objects for the lab, in the form in which the API and `kubectl get -o yaml` give them."""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.lab.hosts import Host

Object = dict[str, Any]


def service(
    name: str,
    *cluster_ips: str,
    ports: Mapping[str, int] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A Service; `ports` are by protocol name, `{"TCP": 8080}` by default. `spec` takes any further field."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": name, "annotations": dict(annotations or {})},
        "spec": {
            "clusterIP": cluster_ips[0],
            "clusterIPs": list(cluster_ips),
            "ports": [
                {"name": protocol.lower(), "port": port, "protocol": protocol}
                for protocol, port in (ports or {"TCP": 8080}).items()
            ],
            **spec,
        },
    }


def endpoint_slices(
    service_name: str, hosts: Iterable[Host], ports: Mapping[str, int] | None = None, **conditions: bool
) -> list[Object]:
    """One slice for each family, with an endpoint for each of `hosts`, all in the same `conditions`."""
    members = list(hosts)
    return [
        _slice(
            service_name,
            family,
            [(host.ip, host.ip6)[family == "IPv6"] for host in members],
            members,
            ports,
            conditions,
        )
        for family in ("IPv4", "IPv6")
    ]


def _slice(
    service_name: str,
    family: str,
    addresses: list[str],
    hosts: list[Host],
    ports: Mapping[str, int] | None,
    conditions: Mapping[str, bool],
) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": f"{service_name}-{family.lower()}",
            "labels": {"kubernetes.io/service-name": service_name},
        },
        "addressType": family,
        "endpoints": [
            {"addresses": [address], "conditions": dict(conditions), "nodeName": getattr(host, "node", host).name}
            for address, host in zip(addresses, hosts, strict=True)
        ],
        "ports": [
            {"name": protocol.lower(), "port": port, "protocol": protocol}
            for protocol, port in (ports or {"TCP": 8080}).items()
        ],
    }


def node(host: Host) -> Object:
    """The Node object of a node of the lab."""
    addresses = [{"type": "InternalIP", "address": address} for address in (host.ip, host.ip6)]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": host.name, "labels": {"kubernetes.io/hostname": host.name}},
        "status": {"addresses": [*addresses, {"type": "Hostname", "address": host.name}]},
    }


def identity(item: Object) -> tuple[str, str, str]:
    """Kind, namespace and name."""
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]
