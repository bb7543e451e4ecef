"""The resources that the stand-in serves."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, eq=False)
class ResourceType:
    kind: str
    plural: str
    version: str
    group: str = ""
    namespaced: bool = True
    fields: frozenset[str] = frozenset()
    """Field labels that a fieldSelector may name, beside metadata.name and metadata.namespace."""
    zero: Object = field(default_factory=dict)
    """What Go writes for an object of this kind that only has metadata: the rest of a BOOKMARK."""
    zero_annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations that the conversion to this version adds even to a BOOKMARK."""

    core_inside: bool = False
    """Whether the API server's own type is in the core group, as it then says in what it refuses."""

    created_on_update: bool = False
    """Whether PUT makes an object that is not there."""
    unconditional_update: bool = True
    """Whether PUT replaces an object without a resourceVersion."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def collection(self, namespace: str | None) -> str:
        """The path of a collection of objects of this type."""
        root = f"/apis/{self.group}" if self.group else "/api"
        return f"{root}/{self.version}{f'/namespaces/{namespace}' if namespace else ''}/{self.plural}"

    @property
    def internal_group(self) -> str:
        return "" if self.core_inside else self.group

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


SERVICES = ResourceType(
    "Service",
    "services",
    "v1",
    fields=frozenset({"spec.clusterIP", "spec.type"}),
    zero={"spec": {}, "status": {"loadBalancer": {}}},
)
ENDPOINT_SLICES = ResourceType(
    "EndpointSlice",
    "endpointslices",
    "v1",
    "discovery.k8s.io",
    zero={"addressType": "", "endpoints": None, "ports": None},
)
NODES = ResourceType("Node", "nodes", "v1", namespaced=False, zero={"spec": {}, "status": {}})
PODS = ResourceType(
    "Pod",
    "pods",
    "v1",
    fields=frozenset({"spec.nodeName", "spec.restartPolicy", "status.phase"}),
    zero={"spec": {"containers": None}, "status": {}},
)
LEASES = ResourceType(
    "Lease",
    "leases",
    "v1",
    "coordination.k8s.io",
    zero={"spec": {}},
    created_on_update=True,
    unconditional_update=False,
)
EVENTS = ResourceType("Event", "events", "v1", "events.k8s.io", zero={"eventTime": None}, core_inside=True)

CONFIG_MAPS = ResourceType("ConfigMap", "configmaps", "v1")
NAMESPACES = ResourceType("Namespace", "namespaces", "v1", namespaced=False, zero={"spec": {}, "status": {}})
NETWORK_POLICIES = ResourceType(
    "NetworkPolicy", "networkpolicies", "v1", "networking.k8s.io", zero={"spec": {"podSelector": {}}}
)
CLUSTER_NETWORK_POLICIES = ResourceType(
    "ClusterNetworkPolicy", "clusternetworkpolicies", "v1alpha2", "policy.networking.k8s.io", namespaced=False
)
SERVICE_CIDRS = ResourceType("ServiceCIDR", "servicecidrs", "v1", "networking.k8s.io", namespaced=False)
IP_POOLS = ResourceType("IPPool", "ippools", "v1", "crd.projectcalico.org", namespaced=False)
FELIX_CONFIGURATIONS = ResourceType(
    "FelixConfiguration", "felixconfigurations", "v1", "crd.projectcalico.org", namespaced=False
)

DAEMON_SETS = ResourceType(
    "DaemonSet",
    "daemonsets",
    "v1",
    "apps",
    zero={
        "spec": {"selector": None, "template": {"metadata": {}, "spec": {"containers": None}}, "updateStrategy": {}},
        "status": {"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0},
    },
    zero_annotations={"deprecated.daemonset.template.generation": "0"},
)

TYPES = (
    *(SERVICES, ENDPOINT_SLICES, NODES, LEASES, EVENTS, PODS, CONFIG_MAPS, NAMESPACES, DAEMON_SETS, SERVICE_CIDRS),
    *(NETWORK_POLICIES, CLUSTER_NETWORK_POLICIES, IP_POOLS, FELIX_CONFIGURATIONS),
)
BY_KIND = {type_.kind: type_ for type_ in TYPES}

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?P<status>/status)?)?"
)


@dataclass(frozen=True)
class Target:
    """What a request's path names: a collection, or one object of it, or only that object's status."""

    type: ResourceType
    namespace: str | None
    name: str | None
    is_status: bool = False

    @property
    def resource(self) -> str:
        """As RBAC rules name it."""
        return f"{self.type.plural}/status" if self.is_status else self.type.plural

    @property
    def key(self) -> str:
        return object_key(self.namespace or "", self.name or "")


def parse_path(path: str) -> Target | None:
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    for type_ in TYPES:
        if (type_.group, type_.version, type_.plural) == (match["group"] or "", match["version"], match["plural"]):
            target = Target(type_, match["namespace"], match["name"], is_status=match["status"] is not None)
            return None if target.is_status and type_ is not SERVICES else target
    return None


def object_key(namespace: str, name: str) -> str:
    """The end of the path under which etcd keeps an object: the order of lists is the order of these."""
    return f"{namespace}/{name}" if namespace else name


def key_of(item: Object) -> str:
    metadata = item["metadata"]
    return object_key(metadata.get("namespace", ""), metadata["name"])
