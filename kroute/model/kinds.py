"""The kinds of objects that kroute watches, in one list.

A row of `WATCHED` is all that the watchers need to know of a kind. They follow it in the API and in manifests, the
initial sync waits for it, and its changes are counted. `deploy/kustomize/base/rbac.yaml` allows the same list; a test
compares the two. `planning/` decides what a kind means.

kube-proxy excludes Services with the label `service-proxy-name` by a selector. kroute cannot: no selector says "absent,
or ours". So planning leaves out the Services of other proxies. The label `headless` is for EndpointSlices only, as in
kube-proxy since 1.36: the API server's own controller puts it on those of a Service without a ClusterIP.
"""

from collections.abc import Callable, Iterable

import msgspec

from kroute.model.objects import (
    HEADLESS_LABEL,
    WEIGHT,
    ClusterNetworkPolicy,
    EndpointSlice,
    KubernetesObject,
    Namespace,
    NetworkPolicy,
    Node,
    Pod,
    Service,
)
from kroute.settings import Settings


class WatchedKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of object: the type that it is decoded into, its place in the API, and which objects are watched.

    `group` is empty for the core API. `plural` is the kind's name in paths and RBAC rules. The API server applies the
    selectors; `selects` applies the same conditions to an object from any other source. `only_metadata`: the API
    server is asked for `PartialObjectMetadata` instead of whole objects. `is_optional`: an API server that does not
    serve the kind has no objects of it.
    """

    type: type[KubernetesObject]
    group: str = ""
    version: str = "v1"
    plural: str
    selects: Callable[[KubernetesObject], bool]
    is_namespaced: bool = True
    label_selector: str = ""
    field_selector: str = ""
    only_metadata: bool = False
    is_optional: bool = False

    @property
    def name(self) -> str:
        """The kind as an object's `kind` field gives it: `Service`."""
        return self.type.__name__

    @property
    def api_version(self) -> str:
        """The group and version as an object's `apiVersion` field gives them: `v1`, `discovery.k8s.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """The API path that lists this kind in all namespaces."""
        return f"/{'apis' if self.group else 'api'}/{self.api_version}/{self.plural}"

    @property
    def selectors(self) -> dict[str, str]:
        """The selectors as query parameters."""
        parameters = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in parameters.items() if value}


SERVICES = WatchedKind(
    type=Service,
    plural="services",
    selects=lambda item: isinstance(item, Service) and item.spec.cluster_ip != "None",
    field_selector="spec.clusterIP!=None",
)
ENDPOINT_SLICES = WatchedKind(
    type=EndpointSlice,
    group="discovery.k8s.io",
    plural="endpointslices",
    selects=lambda item: isinstance(item, EndpointSlice) and HEADLESS_LABEL not in (item.metadata.labels or {}),
    label_selector=f"!{HEADLESS_LABEL}",
)
NODES = WatchedKind(
    type=Node,
    plural="nodes",
    selects=lambda item: isinstance(item, Node),
    is_namespaced=False,
)

PODS = WatchedKind(
    type=Pod,
    plural="pods",
    selects=lambda item: isinstance(item, Pod) and WEIGHT in (item.metadata.labels or {}),
    label_selector=WEIGHT,
    field_selector="status.phase!=Failed,status.phase!=Succeeded",
    only_metadata=True,
)

NAMESPACES = WatchedKind(
    type=Namespace,
    plural="namespaces",
    selects=lambda item: isinstance(item, Namespace),
    is_namespaced=False,
)
NETWORK_POLICIES = WatchedKind(
    type=NetworkPolicy,
    group="networking.k8s.io",
    plural="networkpolicies",
    selects=lambda item: isinstance(item, NetworkPolicy),
)
CLUSTER_NETWORK_POLICIES = WatchedKind(
    type=ClusterNetworkPolicy,
    group="policy.networking.k8s.io",
    version="v1alpha2",
    plural="clusternetworkpolicies",
    selects=lambda item: isinstance(item, ClusterNetworkPolicy),
    is_namespaced=False,
    is_optional=True,
)
ALL_PODS = WatchedKind(
    type=Pod,
    plural="pods",
    selects=lambda item: isinstance(item, Pod),
    field_selector=PODS.field_selector,
)
POLICY_KINDS = (NAMESPACES, NETWORK_POLICIES, CLUSTER_NETWORK_POLICIES, ALL_PODS)
"""What network policies need: each may name the pods of any namespace, on any node."""

WATCHED = (SERVICES, ENDPOINT_SLICES, NODES)
"""Everything that an agent watches. All Nodes are watched because no Service may have another Node's address."""


def of_services(settings: Settings) -> tuple[WatchedKind, ...]:
    """What Services need with these settings: Pods with a weight only if they are asked for."""
    return (*WATCHED, PODS) if settings.pod_weights else WATCHED


def watched(settings: Settings) -> tuple[WatchedKind, ...]:
    """What an agent with these settings watches. The Pods of NetworkPolicies are all, also those with a weight."""
    return (*WATCHED, *POLICY_KINDS) if settings.network_policies else of_services(settings)


class InitialSync:
    """The kinds that have not been listed completely yet. No plan is complete before every kind has been listed."""

    def __init__(self, kinds: Iterable[WatchedKind] = WATCHED) -> None:
        self._missing = {kind.type for kind in kinds}

    def listed(self, kind: type[KubernetesObject]) -> None:
        """Record that a watcher has passed on every object of this kind."""
        self._missing.discard(kind)

    @property
    def is_complete(self) -> bool:
        return not self._missing

    @property
    def missing(self) -> list[str]:
        """The names of the kinds that are not listed yet, sorted."""
        return sorted(kind.__name__ for kind in self._missing)
