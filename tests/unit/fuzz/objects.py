"""Objects of each watched kind, as the API server sends them."""

from typing import Any

SERVICE: dict[str, Any] = {
    "kind": "Service",
    "apiVersion": "v1",
    "metadata": {
        "name": "attacker",
        "namespace": "tenant",
        "uid": "367746c7-2a1b-46aa-9008-5dab010e80da",
        "resourceVersion": "3378",
        "creationTimestamp": "2026-11-21T23:01:01Z",
        "labels": {"app": "web"},
        "annotations": {"kroute.io/scheduler": "lc"},
        "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {
        "type": "LoadBalancer",
        "clusterIP": "10.96.49.203",
        "clusterIPs": ["10.96.49.203"],
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80, "nodePort": 30080}],
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "externalIPs": ["198.51.100.1"],
        "internalTrafficPolicy": "Cluster",
        "externalTrafficPolicy": "Local",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
        "healthCheckNodePort": 31000,
    },
    "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.2", "ipMode": "VIP"}]}},
}
SLICE: dict[str, Any] = {
    "kind": "EndpointSlice",
    "apiVersion": "discovery.k8s.io/v1",
    "metadata": {
        "name": "attacker-1",
        "namespace": "tenant",
        "resourceVersion": "3379",
        "labels": {"kubernetes.io/service-name": "attacker"},
        "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-21T23:01:01Z"},
    },
    "addressType": "IPv4",
    "endpoints": [
        {
            "addresses": ["172.20.1.1"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": "node1",
            "zone": "a",
            "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "node1"}]},
        }
    ],
    "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
}
NODE: dict[str, Any] = {
    "kind": "Node",
    "apiVersion": "v1",
    "metadata": {"name": "attacker", "resourceVersion": "3380", "labels": {"topology.kubernetes.io/zone": "a"}},
    "spec": {"podCIDRs": ["172.20.1.0/24"], "taints": [{"key": "k", "effect": "NoSchedule"}]},
    "status": {
        "addresses": [{"type": "InternalIP", "address": "192.168.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
LEASE: dict[str, Any] = {
    "kind": "Lease",
    "apiVersion": "coordination.k8s.io/v1",
    "metadata": {"name": "kroute-director", "namespace": "kube-system", "resourceVersion": "3381"},
    "spec": {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 1,
    },
}
