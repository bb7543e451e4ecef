"""Ask the API server which other service proxies are meant to run on this node.

A proxy that is silent may be restarted, upgraded or in a crash loop: it has not ended as long as one of its Pods is
bound to the node (a static Pod's mirror included), or one of its DaemonSets wants one there. Whether a DaemonSet does,
is decided by the rules of its controller: node selector, required node affinity, and taints
(kubernetes pkg/controller/daemon/daemon_controller.go, NodeShouldRunDaemonPod).

Pods and DaemonSets are read in one namespace, in which clusters keep their proxies, and ConfigMaps by their names. So
a Role in that namespace is enough (`deploy/kustomize/base/rbac.yaml`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from kroute.checks.known_proxies import KUBE_PROXY, KUBE_ROUTER
from kroute.checks.running_proxies import ANTREA, CILIUM, ROUTER_ONLY
from kroute.model.kinds import NODES
from kroute.watchers.json_text import decoded
from kroute.watchers.kubernetes.errors import ApiError

NAMESPACE = "kube-system"
MOST = 500
"""Objects of one list that are looked at. A node has at most some hundred Pods."""
IMAGES = {
    "kube-proxy": KUBE_PROXY,
    "kube-router": KUBE_ROUTER,
    "cilium": CILIUM,
    "antrea-agent": ANTREA,
    "antrea-agent-ubuntu": ANTREA,
}
"""Proxies by the last part of their image's name. Calico is left out: its links say whether it serves Services."""
CONFIGURED: Mapping[str, tuple[str, str, re.Pattern[str]]] = {
    CILIUM: ("cilium-config", "kube-proxy-replacement", re.compile(r"^(true|strict)$")),
    ANTREA: ("antrea-config", "antrea-agent.conf", re.compile(r"^\s*proxyAll:\s*true\b", re.MULTILINE)),
}
"""The ConfigMap, its key, and what the value contains if the program replaces kube-proxy."""


class ClusterProxies(msgspec.Struct, frozen=True):
    """What the cluster says of this node.

    `meant`: by proxy, the object by which the proxy is to run here and to serve Services, as a clause. `idle`: programs
    that are to run here, and to leave Services alone.
    """

    meant: Mapping[str, str] = {}
    idle: frozenset[str] = frozenset()


class Reader(Protocol):
    """The part of an API client that is needed (`kroute.watchers.kubernetes.api.Api`)."""

    async def get(self, path: str, params: Mapping[str, str]) -> bytes:
        """The body of an answer. Raises ApiError."""


class _Container(msgspec.Struct):
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None


class _Requirement(msgspec.Struct):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class _Term(msgspec.Struct, rename="camel"):
    match_expressions: list[_Requirement] | None = None
    match_fields: list[_Requirement] | None = None


class _Terms(msgspec.Struct, rename="camel"):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(msgspec.Struct):
    required: _Terms | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _Toleration(msgspec.Struct):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container] = []
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None


class _PodStatus(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _Template(msgspec.Struct):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


class _DaemonSetSpec(msgspec.Struct):
    template: _Template = msgspec.field(default_factory=_Template)


class _DaemonSet(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _DaemonSetSpec = msgspec.field(default_factory=_DaemonSetSpec)


class _Taint(msgspec.Struct):
    key: str = ""
    value: str = ""
    effect: str = ""


class _NodeSpec(msgspec.Struct):
    taints: list[_Taint] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)


class _Pods(msgspec.Struct):
    items: list[_Pod] | None = None


class _DaemonSets(msgspec.Struct):
    items: list[_DaemonSet] | None = None


class _Nodes(msgspec.Struct):
    items: list[_Node] | None = None


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


_decode_pods = msgspec.json.Decoder(_Pods).decode
_decode_sets = msgspec.json.Decoder(_DaemonSets).decode
_decode_nodes = msgspec.json.Decoder(_Nodes).decode
_decode_map = msgspec.json.Decoder(_ConfigMap).decode


async def proxies_of_node(api: Reader, node_name: str) -> ClusterProxies:
    """Ask. Raises ApiError: the server does not answer, does not allow it, or answers something else."""
    limit = {"limit": str(MOST)}
    try:
        pods = decoded(
            _decode_pods,
            await api.get(
                f"/api/v1/namespaces/{NAMESPACE}/pods", {"fieldSelector": f"spec.nodeName={node_name}", **limit}
            ),
        ).items
        sets = decoded(_decode_sets, await api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets", limit)).items
        nodes = decoded(_decode_nodes, await api.get(NODES.path, {"fieldSelector": f"metadata.name={node_name}"})).items
        meant, idle = _meant(pods or (), sets or (), nodes[0] if nodes else None)
        for proxy in [proxy for proxy in meant if proxy in CONFIGURED]:
            if not await _is_configured(api, proxy):
                del meant[proxy]
                idle.add(proxy)
    except msgspec.DecodeError as error:
        raise ApiError(0, "", f"the API server's answer cannot be read: {error}") from error
    return ClusterProxies(meant, frozenset(idle - meant.keys()))


def _meant(pods: Sequence[_Pod], sets: Sequence[_DaemonSet], node: _Node | None) -> tuple[dict[str, str], set[str]]:
    meant: dict[str, str] = {}
    idle: set[str] = set()
    wanted = [
        (f"DaemonSet {NAMESPACE}/{each.metadata.name} wants a Pod on this node", each.spec.template.spec)
        for each in sets
        if each.metadata.deletion_timestamp is None and node is not None and wants_pod_on(each.spec.template.spec, node)
    ]
    bound = [
        (f"Pod {NAMESPACE}/{pod.metadata.name} is bound to this node", pod.spec)
        for pod in pods
        if pod.metadata.deletion_timestamp is None and pod.status.phase not in {"Succeeded", "Failed"}
    ]
    for why, spec in (*wanted, *bound):
        for container in spec.containers:
            if (proxy := _proxy_of(container)) is None:
                continue
            if ROUTER_ONLY & {*(container.command or ()), *(container.args or ())}:
                idle.add(proxy)
            else:
                meant.setdefault(proxy, why)
    return meant, idle


def _proxy_of(container: _Container) -> str | None:
    """The proxy that a container runs, by its image or else its program."""
    image = container.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    if (proxy := IMAGES.get(image)) is not None:
        return proxy
    program = container.command[0].rpartition("/")[2] if container.command else ""
    return program if program in {KUBE_PROXY, KUBE_ROUTER} else None


def wants_pod_on(spec: _PodSpec, node: _Node) -> bool:
    """Whether a DaemonSet with this template wants a Pod on the node."""
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in (spec.node_selector or {}).items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is not None and affinity.required is not None:
        fields = {"metadata.name": node.metadata.name}
        terms = affinity.required.node_selector_terms or ()
        if not any(_matches(term, labels, fields) for term in terms):
            return False
    return all(
        any(_tolerates(toleration, taint) for toleration in spec.tolerations or ())
        for taint in node.spec.taints or ()
        if taint.effect in {"NoSchedule", "NoExecute"} and taint.key not in TOLERATED
    )


TOLERATED = frozenset(
    f"node.kubernetes.io/{name}"
    for name in (
        "not-ready",
        "unreachable",
        "disk-pressure",
        "memory-pressure",
        "pid-pressure",
        "unschedulable",
        "network-unavailable",
    )
)
"""Taints that the Pods of a DaemonSet tolerate, the last one if they are in the host's network, as all proxies are."""


def _tolerates(toleration: _Toleration, taint: _Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in {"", taint.key}
    return (toleration.key, toleration.value) == (taint.key, taint.value)


def _matches(term: _Term, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """Whether the node matches a term. A term without any requirement matches no node."""
    requirements = [(each, labels) for each in term.match_expressions or ()]
    requirements += [(each, fields) for each in term.match_fields or ()]
    return bool(requirements) and all(_meets(each, values) for each, values in requirements)


def _meets(requirement: _Requirement, values: Mapping[str, str]) -> bool:
    value, allowed = values.get(requirement.key), requirement.values or []
    met = {
        "In": value in allowed,
        "NotIn": value not in allowed,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    if requirement.operator in met:
        return met[requirement.operator]
    try:
        number, bound = int(value or ""), int(allowed[0])
    except (ValueError, IndexError):
        return False
    return {"Gt": number > bound, "Lt": number < bound}.get(requirement.operator, False)


async def _is_configured(api: Reader, proxy: str) -> bool:
    """Whether the ConfigMap says that the program replaces kube-proxy. Not if it may not be read."""
    name, key, pattern = CONFIGURED[proxy]
    try:
        answer = await api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}", {})
    except ApiError:
        return False
    value = (decoded(_decode_map, answer).data or {}).get(key, "")
    return pattern.search(value) is not None
