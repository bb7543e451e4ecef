"""The objects of Kubernetes as kroute reads them.

The structs mirror the JSON of the Kubernetes API (`v1`, EndpointSlice of `discovery.k8s.io/v1`, NetworkPolicy of
`networking.k8s.io/v1`, ClusterNetworkPolicy of `policy.networking.k8s.io/v1alpha2`), so that msgspec decodes a
response's bytes straight into them; fields that kroute does not read are skipped by the decoder. Go encodes an empty
list as `null` in places, so lists may be None.
"""

from sys import intern
from typing import Annotated, Generic, NamedTuple, Self, TypeVar

import msgspec

T = TypeVar("T")

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
HEADLESS_LABEL = "service.kubernetes.io/headless"
SERVICE_PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"
ZONE_LABEL = "topology.kubernetes.io/zone"
WEIGHT = "kroute.io/weight"
"""The label or annotation of a Node or a Pod that has its weight."""

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""A 32-bit number, as the API has it. Numbers in JSON and in Python have no bound."""

ProtocolName = str
"""`TCP`, `UDP` or `SCTP`. Decoding accepts any text: planning refuses the port alone, not the whole object."""


class ObjectKey(NamedTuple):
    """The name of an object of one kind. The namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAMESPACE/NAME`, or `NAME` for a cluster-scoped object."""
        namespace, _, name = text.rpartition("/")
        return cls(namespace, name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A part of an API object: immutable, camelCase on the wire.

    No struct can be part of a cycle, so the garbage collector need not visit the hundreds of thousands of them.
    """


class ObjectMeta(_Struct, frozen=True):
    """`metadata`. `creation_timestamp` is RFC 3339 in UTC, so its text sorts by age.

    An object with a `deletion_timestamp` is being deleted.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None

    @property
    def key(self) -> ObjectKey:
        """The object's namespace and name."""
        return ObjectKey(self.namespace, self.name)


class _Object(_Struct, frozen=True):
    """An object of the API, with its namespace and name; a Node has no namespace."""

    metadata: ObjectMeta

    @property
    def key(self) -> ObjectKey:
        """The object's own namespace, of which there is one text for all objects, and name."""
        return ObjectKey(intern(self.metadata.namespace), self.metadata.name)


class List(msgspec.Struct, Generic[T]):
    """A list of objects, decoded as a whole: each has to be sound."""

    items: list[T] | None = None


class ServicePort(_Struct, frozen=True):
    """One of `spec.ports`. `targetPort` is not read: EndpointSlices carry the resolved number."""

    port: Int32
    name: str = ""
    protocol: ProtocolName = "TCP"
    node_port: Int32 = 0


class ClientIPConfig(_Struct, frozen=True):
    """`sessionAffinityConfig.clientIP`; the timeout is in seconds."""

    timeout_seconds: Int32 | None = None


class SessionAffinityConfig(_Struct, frozen=True):
    """`spec.sessionAffinityConfig`."""

    client_ip: ClientIPConfig | None = msgspec.field(name="clientIP", default=None)


class ServiceSpec(_Struct, frozen=True):
    """`spec` of a Service."""

    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    cluster_ips: tuple[str, ...] | None = msgspec.field(name="clusterIPs", default=None)
    ports: tuple[ServicePort, ...] | None = None
    session_affinity: str = "None"
    session_affinity_config: SessionAffinityConfig | None = None
    external_ips: tuple[str, ...] | None = msgspec.field(name="externalIPs", default=None)
    internal_traffic_policy: str | None = None
    external_traffic_policy: str | None = None
    load_balancer_source_ranges: tuple[str, ...] | None = None
    health_check_node_port: Int32 = 0


class LoadBalancerIngress(_Struct, frozen=True):
    """One of `status.loadBalancer.ingress`. Host names are not read. An absent `ipMode` means VIP."""

    ip: str = ""
    ip_mode: str | None = None


class LoadBalancerStatus(_Struct, frozen=True):
    """`status.loadBalancer`."""

    ingress: tuple[LoadBalancerIngress, ...] | None = None


class ServiceStatus(_Struct, frozen=True):
    """`status` of a Service."""

    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class Service(_Object, frozen=True):
    """A `v1` Service."""

    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class EndpointConditions(_Struct, frozen=True):
    """`conditions` of an endpoint. The API's defaults for absent ones: ready, serving, not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class NamedHint(_Struct, frozen=True):
    """One of `forZones` or `forNodes`."""

    name: str


class EndpointHints(_Struct, frozen=True):
    """`hints` of an endpoint: where its traffic should come from."""

    for_zones: tuple[NamedHint, ...] | None = None
    for_nodes: tuple[NamedHint, ...] | None = None


class TargetRef(_Struct, frozen=True):
    """`targetRef` of an endpoint: the Pod behind it. Only Pods of the slice's own namespace count."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Endpoint(_Struct, frozen=True):
    """One of `endpoints`. Only the first address counts, as in kube-proxy."""

    addresses: tuple[str, ...]
    conditions: EndpointConditions = EndpointConditions()
    node_name: str | None = None
    hints: EndpointHints | None = None
    target_ref: TargetRef | None = None


class EndpointPort(_Struct, frozen=True):
    """One of a slice's `ports`. A port without a number is not served."""

    name: str | None = None
    port: Int32 | None = None
    protocol: ProtocolName = "TCP"


class EndpointSlice(_Object, frozen=True):
    """A `discovery.k8s.io/v1` EndpointSlice."""

    address_type: str
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None

    @property
    def service_key(self) -> ObjectKey | None:
        """The Service that the slice belongs to, or None if it has no `kubernetes.io/service-name` label."""
        name = (self.metadata.labels or {}).get(SERVICE_NAME_LABEL)
        return ObjectKey(intern(self.metadata.namespace), name) if name else None


class NodeAddress(_Struct, frozen=True):
    """One of `status.addresses`."""

    type: str
    address: str


class Taint(_Struct, frozen=True):
    """One of `spec.taints`."""

    key: str


class NodeSpec(_Struct, frozen=True):
    """`spec` of a Node."""

    taints: tuple[Taint, ...] | None = None
    pod_cidrs: tuple[str, ...] | None = msgspec.field(name="podCIDRs", default=None)


class NodeCondition(_Struct, frozen=True):
    """One of `status.conditions`. `status` is `True`, `False` or `Unknown`."""

    type: str
    status: str


class NodeStatus(_Struct, frozen=True):
    """`status` of a Node."""

    addresses: tuple[NodeAddress, ...] | None = None
    conditions: tuple[NodeCondition, ...] | None = None


class Node(_Object, frozen=True):
    """A `v1` Node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ContainerPort(_Struct, frozen=True):
    """One of a container's `ports`."""

    container_port: int = 0
    name: str = ""
    protocol: ProtocolName = "TCP"


class Container(_Struct, frozen=True):
    """One of a Pod's containers. An init container with restart policy `Always` is a sidecar, and runs on."""

    ports: tuple[ContainerPort, ...] | None = None
    restart_policy: str | None = None


class PodSpec(_Struct, frozen=True):
    """`spec` of a Pod."""

    node_name: str = ""
    host_network: bool = False
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None


class PodIP(_Struct, frozen=True):
    """One of `status.podIPs`."""

    ip: str = ""


class PodCondition(_Struct, frozen=True):
    """One of the conditions of a Pod. The time is RFC 3339, in whole seconds of the kubelet's clock."""

    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class PodStatus(_Struct, frozen=True):
    """`status` of a Pod. `conditions` are its JSON: only those of a node's own pods are read."""

    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    pod_ips: tuple[PodIP, ...] | None = msgspec.field(name="podIPs", default=None)
    conditions: msgspec.Raw = msgspec.Raw()


class Pod(_Object, frozen=True):
    """A `v1` Pod. For its weight the metadata alone are asked for (`PartialObjectMetadata` of `meta.k8s.io`)."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Namespace(_Object, frozen=True):
    """A `v1` Namespace. It has no namespace itself, and only its labels are of interest."""


class LabelSelectorRequirement(_Struct, frozen=True):
    """One of `matchExpressions`."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelector(_Struct, frozen=True):
    """A selector of objects by their labels. Without any condition it selects all."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[LabelSelectorRequirement, ...] | None = None


class IPBlock(_Struct, frozen=True):
    """`ipBlock` of a peer: a network without some parts of it."""

    cidr: str = ""
    excepted: tuple[str, ...] | None = msgspec.field(name="except", default=None)


class NetworkPolicyPeer(_Struct, frozen=True):
    """One of `from` or `to`."""

    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IPBlock | None = None


class NetworkPolicyPort(_Struct, frozen=True):
    """One of a rule's `ports`. An absent protocol means TCP, an absent port all of them; text is a port's name."""

    protocol: ProtocolName | None = None
    port: int | str | None = None
    end_port: int | None = None


class NetworkPolicyRule(_Struct, frozen=True):
    """One of `ingress`, which has `from`, or `egress`, which has `to`."""

    ports: tuple[NetworkPolicyPort, ...] | None = None
    sources: tuple[NetworkPolicyPeer, ...] | None = msgspec.field(name="from", default=None)
    destinations: tuple[NetworkPolicyPeer, ...] | None = msgspec.field(name="to", default=None)


class NetworkPolicySpec(_Struct, frozen=True):
    """`spec` of a NetworkPolicy."""

    pod_selector: LabelSelector | None = None
    policy_types: tuple[str, ...] | None = None
    ingress: tuple[NetworkPolicyRule, ...] | None = None
    egress: tuple[NetworkPolicyRule, ...] | None = None


class NetworkPolicy(_Object, frozen=True):
    """A `networking.k8s.io/v1` NetworkPolicy."""

    spec: NetworkPolicySpec = NetworkPolicySpec()


class NamespacedPods(_Struct, frozen=True):
    """Pods of the Namespaces that a selector selects: without one, of all."""

    namespace_selector: LabelSelector | None = None
    pod_selector: LabelSelector | None = None


class ClusterPeer(_Struct, frozen=True):
    """One of `from` or `to`, and `subject`, which has no `networks`: one of the fields. Another one than these is None
    here, too: `nodes` and `domainNames` of the experimental channel, and what a newer API has.
    """

    namespaces: LabelSelector | None = None
    pods: NamespacedPods | None = None
    networks: tuple[str, ...] | None = None


class PortNumbers(_Struct, frozen=True):
    """`range` of a port, both ends included."""

    start: int = 0
    end: int = 0


class ClusterPort(_Struct, frozen=True):
    """`destinationPort`: one of the fields."""

    number: int | None = None
    range: PortNumbers | None = None


class ClusterProtocolPorts(_Struct, frozen=True):
    """`tcp`, `udp` or `sctp`. Another field than this one is None here, too."""

    destination_port: ClusterPort | None = None


class ClusterProtocol(_Struct, frozen=True):
    """One of `protocols`: one of the fields. A port's name is of any protocol."""

    tcp: ClusterProtocolPorts | None = None
    udp: ClusterProtocolPorts | None = None
    sctp: ClusterProtocolPorts | None = None
    destination_named_port: str | None = None


class ClusterPolicyRule(_Struct, frozen=True):
    """One of `ingress`, which has `from`, or `egress`, which has `to`."""

    name: str = ""
    action: str = ""
    sources: tuple[ClusterPeer, ...] | None = msgspec.field(name="from", default=None)
    destinations: tuple[ClusterPeer, ...] | None = msgspec.field(name="to", default=None)
    protocols: tuple[ClusterProtocol, ...] | None = None


class ClusterNetworkPolicySpec(_Struct, frozen=True):
    """`spec` of a ClusterNetworkPolicy. Of two policies the one with the lower priority comes first."""

    tier: str = ""
    priority: int = 0
    subject: ClusterPeer = ClusterPeer()
    ingress: tuple[ClusterPolicyRule, ...] | None = None
    egress: tuple[ClusterPolicyRule, ...] | None = None


class ClusterNetworkPolicy(_Object, frozen=True):
    """A `policy.networking.k8s.io/v1alpha2` ClusterNetworkPolicy."""

    spec: ClusterNetworkPolicySpec = ClusterNetworkPolicySpec()


class SelectedPods(_Struct, frozen=True):
    """`spec` of a NetworkPolicy or a ClusterNetworkPolicy without its rules."""

    pod_selector: LabelSelector | None = None
    subject: ClusterPeer = ClusterPeer()


class UnreadablePolicy(_Struct, frozen=True):
    """What counts of a policy that is malformed: the pods that it selects must not be open because of that."""

    spec: SelectedPods = SelectedPods()

    def closed(self, kind: type["KubernetesObject"], key: ObjectKey, version: str = "") -> "KubernetesObject | None":
        """The policy that allows these pods nothing, in both directions; None: the kind is not that of a policy."""
        metadata = ObjectMeta(key.name, key.namespace, resource_version=version)
        if kind is NetworkPolicy:
            return NetworkPolicy(metadata, NetworkPolicySpec(self.spec.pod_selector, ("Ingress", "Egress")))
        if kind is ClusterNetworkPolicy:
            everything = (ClusterPolicyRule(action="Deny"),)  # that names no peer denies all
            spec = ClusterNetworkPolicySpec("Admin", 0, self.spec.subject, everything, everything)
            return ClusterNetworkPolicy(metadata, spec)
        return None


KubernetesObject = Service | EndpointSlice | Node | Pod | Namespace | NetworkPolicy | ClusterNetworkPolicy


class Applied(msgspec.Struct, frozen=True):
    """A watcher saw this object, new or changed.

    `triggered` is when the pod or Service changed that caused this change of an EndpointSlice, in Unix time, if known.
    """

    item: KubernetesObject
    triggered: float | None = None


class Deleted(msgspec.Struct, frozen=True):
    """A watcher saw that this object was deleted."""

    kind: type[KubernetesObject]
    key: ObjectKey


class Listed(msgspec.Struct, frozen=True):
    """A watcher has passed on every object of this kind that exists. Sent once for each kind."""

    kind: type[KubernetesObject]


Change = Applied | Deleted | Listed
