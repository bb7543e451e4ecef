"""Builders of objects for tests. Each makes a plain, valid object, so that a test names only what it tests."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from kroute.director.catalog import DirectorCatalog
from kroute.model.kinds import PODS, WATCHED
from kroute.model.node_facts import NodeFacts, NodeInterfaces
from kroute.model.objects import (
    SERVICE_NAME_LABEL,
    WEIGHT,
    ClientIPConfig,
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    Listed,
    LoadBalancerIngress,
    LoadBalancerStatus,
    NamedHint,
    Node,
    NodeAddress,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    ObjectKey,
    ObjectMeta,
    Pod,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
    SessionAffinityConfig,
    TargetRef,
)
from kroute.model.plan import (
    AddressSet,
    Protocol,
    RealServer,
    ServicePlan,
    SetEntry,
    Vip,
    VirtualServer,
    VirtualServerKey,
)
from kroute.model.steps import Steps
from kroute.planning.backend_slices import BackendSlice, read_slice
from kroute.planning.plan_service import planning
from kroute.reconcile.stage_gate import GOING_LIVE, Revision, Stage, StageGate
from kroute.settings import Settings

T = TypeVar("T")

NODE = "node1"
LISTED = tuple(Listed(kind.type) for kind in WATCHED)
"""The changes that complete the initial sync."""
LISTED_WITH_PODS = (*LISTED, Listed(PODS.type))
"""The same where pods are weighed."""
NODE_IPV4 = "192.168.123.250"
NODE_IPV6 = "fd00:123::250"


def settings(**changes: object) -> Settings:
    return Settings(**{"node_name": NODE, **changes})  # type: ignore[arg-type]


def facts(
    ipv4: str | None = NODE_IPV4,
    ipv6: str | None = NODE_IPV6,
    *,
    name: str = NODE,
    zone: str | None = None,
    pod_cidrs: tuple[str, ...] = (),
    own: Iterable[str] = (),
) -> NodeFacts:
    """Facts of a node, with node ports served on all of its `own` addresses."""
    interfaces = NodeInterfaces(frozenset(own), tuple(filter(None, (ipv4, ipv6))))
    return NodeFacts(name, ipv4, ipv6, zone, pod_cidrs, tuple(sorted(own)), interfaces)


def node(
    *addresses: tuple[str, str],
    name: str = NODE,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    pod_cidrs: tuple[str, ...] | None = None,
    ready: bool | None = None,
) -> Node:
    """A Node. Each address is a pair of its type and itself. `ready` None: it says nothing of that."""
    conditions = () if ready is None else (NodeCondition("Ready", str(ready)),)
    return Node(
        ObjectMeta(name=name, labels=dict(labels or {}), annotations=dict(annotations) if annotations else None),
        NodeSpec(pod_cidrs=pod_cidrs),
        NodeStatus(tuple(NodeAddress(*pair) for pair in addresses), conditions),
    )


def pod(name: str, weight: str, *, uid: str = "", namespace: str = "default", annotation: str | None = None) -> Pod:
    """A Pod whose label says what it weighs, and whose annotation may say something else."""
    annotations = {WEIGHT: annotation} if annotation is not None else None
    return Pod(ObjectMeta(name=name, namespace=namespace, uid=uid, labels={WEIGHT: weight}, annotations=annotations))


def port(number: int = 80, name: str = "", protocol: str = "TCP", node_port: int = 0) -> ServicePort:
    return ServicePort(port=number, name=name, protocol=protocol, node_port=node_port)


def service(
    name: str = "web",
    *cluster_ips: str,
    namespace: str = "default",
    ports: Iterable[ServicePort | int] = (80,),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    created: str | None = "2026-01-01T00:00:00Z",
    kind: str = "ClusterIP",
    affinity: str = "None",
    affinity_timeout: int | None = None,
    balanced: Iterable[LoadBalancerIngress | str] = (),
    **spec: object,
) -> Service:
    """A Service. Without addresses it has ClusterIP 10.96.0.10. A bare number is an unnamed TCP port.

    `balanced` are the addresses of its load balancer. `spec` takes any further field.
    """
    ips = cluster_ips or ("10.96.0.10",)
    config = SessionAffinityConfig(ClientIPConfig(affinity_timeout)) if affinity_timeout is not None else None
    return Service(
        ObjectMeta(
            name=name,
            namespace=namespace,
            creation_timestamp=created,
            labels=dict(labels) if labels else None,
            annotations=dict(annotations) if annotations else None,
        ),
        ServiceSpec(
            type=kind,
            cluster_ip=ips[0],
            cluster_ips=ips,
            ports=tuple(it if isinstance(it, ServicePort) else port(it) for it in ports),
            session_affinity=affinity,
            session_affinity_config=config,
            **spec,  # type: ignore[arg-type]
        ),
        ServiceStatus(
            LoadBalancerStatus(
                tuple(it if isinstance(it, LoadBalancerIngress) else LoadBalancerIngress(it) for it in balanced)
            )
        ),
    )


def endpoint(
    address: str = "10.244.1.5",
    *,
    ready: bool | None = None,
    serving: bool | None = None,
    terminating: bool | None = None,
    on: str | None = "node2",
    zones: Iterable[str] = (),
    nodes: Iterable[str] = (),
    pod: str = "",
    uid: str = "",
) -> Endpoint:
    """An endpoint on another node, with the API's default conditions, and with hints if any are given.

    `pod` and `uid` are of the Pod that it is.
    """
    ref = TargetRef("Pod", pod, uid) if pod else None
    hints = EndpointHints(tuple(map(NamedHint, zones)), tuple(map(NamedHint, nodes))) if zones or nodes else None
    return Endpoint(
        (address,), EndpointConditions(ready, serving, terminating), node_name=on, hints=hints, target_ref=ref
    )


def endpoint_slice(
    name: str = "web-1",
    *endpoints: Endpoint | str,
    of: str | None = "web",
    namespace: str = "default",
    ports: Iterable[EndpointPort | int] = (8080,),
    address_type: str = "IPv4",
    labels: Mapping[str, str] | None = None,
) -> EndpointSlice:
    """A slice of the Service `of`. A bare address is an endpoint, a bare number an unnamed TCP port."""
    owner = {SERVICE_NAME_LABEL: of} if of is not None else {}
    return EndpointSlice(
        ObjectMeta(name=name, namespace=namespace, labels={**owner, **(labels or {})}),
        address_type,
        tuple(endpoint(it) if isinstance(it, str) else it for it in endpoints),
        tuple(EndpointPort(name="", port=it) if isinstance(it, int) else it for it in ports),
    )


def read(*slices: EndpointSlice) -> list[BackendSlice]:
    """The slices in the form that planning keeps."""
    return [read_slice(it) for it in slices]


def virtual_server(
    address: str = "10.96.0.10",
    number: int = 80,
    *real_servers: RealServer,
    protocol: Protocol = Protocol.TCP,
    scheduler: str = "rr",
) -> VirtualServer:
    return VirtualServer(VirtualServerKey(protocol, address, number), scheduler, 0, None, real_servers)


def plan(
    name: str = "web", *virtual_servers: VirtualServer, generation: int = 1, source: str = NODE_IPV4
) -> ServicePlan:
    """The plan of a Service with these virtual servers, by default with one on 10.96.0.10:80."""
    servers = virtual_servers or (virtual_server(),)
    return ServicePlan(
        ObjectKey("default", name),
        generation=generation,
        virtual_servers=servers,
        vips=tuple(Vip(address, source) for address in sorted({it.key.address for it in servers})),
        set_entries=tuple(
            SetEntry(
                AddressSet.CLUSTER_IP if it.real_servers else AddressSet.NO_ENDPOINT,
                (it.key.address, int(it.key.protocol), it.key.port),
            )
            for it in servers
        ),
    )


def stage_gate() -> StageGate:
    """A stage gate that a test must open: no plan passes a stage of going live until the test says so."""
    gate = StageGate()
    gate.join(asyncio.Event(), says=dict.fromkeys(GOING_LIVE, lambda _: False))
    return gate


def say(gate: StageGate, stage: Stage, revisions: Iterable[Revision]) -> None:
    """Let these pass the stage, as `StageGate.advance` does with candidates that the stage's controller finds ready."""
    gate._wake(stage, gate._note(stage, tuple(revisions)))


def finish(steps: Steps[T]) -> T:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def planned(catalog: DirectorCatalog) -> list[ServicePlan]:
    """Plan at once what is marked for a director."""
    return finish(catalog.planning_marked())


def plan_service(*arguments: Any, **named: Any) -> ServicePlan:
    """Plan a Service at once; the arguments are those of `planning`."""
    return finish(planning(*arguments, **named))
