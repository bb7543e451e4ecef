"""What kroute watches, and which objects of it concern a service proxy.

A `Resource` is one row of the table below: the selectors, which the API server applies, and `selects`, which says the
same of an object from any other source. Services with the label `service-proxy-name` are not selected away, which is
what kube-proxy does: no selector says "absent, or ours", so it is planning that leaves out the others'.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kroute.model.objects import (
    HEADLESS_LABEL,
    EndpointSlice,
    KubernetesObject,
    Node,
    ObjectMeta,
    Service,
)


@dataclass(frozen=True)
class Resource:
    """One resource of the API: the type it is decoded into, its path for all namespaces, and the objects wanted."""

    kind: type[KubernetesObject]
    path: str
    selects: Callable[[KubernetesObject], bool]
    label_selector: str = ""
    field_selector: str = ""

    @property
    def selectors(self) -> dict[str, str]:
        """The selectors as query parameters."""
        parameters = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in parameters.items() if value}


def _is_served_service(item: KubernetesObject) -> bool:
    return isinstance(item, Service) and not _is_headless(item.metadata) and item.spec.cluster_ip != "None"


def _is_served_slice(item: KubernetesObject) -> bool:
    return isinstance(item, EndpointSlice) and not _is_headless(item.metadata)


def _is_headless(metadata: ObjectMeta) -> bool:
    return HEADLESS_LABEL in (metadata.labels or {})


SERVICES = Resource(
    kind=Service,
    path="/api/v1/services",
    selects=_is_served_service,
    label_selector=f"!{HEADLESS_LABEL}",
    field_selector="spec.clusterIP!=None",
)
ENDPOINT_SLICES = Resource(
    kind=EndpointSlice,
    path="/apis/discovery.k8s.io/v1/endpointslices",
    selects=_is_served_slice,
    label_selector=f"!{HEADLESS_LABEL}",
)
NODES = Resource(
    kind=Node,
    path="/api/v1/nodes",
    selects=lambda item: isinstance(item, Node),
)

WATCHED = (SERVICES, ENDPOINT_SLICES, NODES)
"""Everything that an agent watches. The other Nodes' addresses are those that no Service may have."""
