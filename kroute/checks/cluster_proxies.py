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
from typing import TYPE_CHECKING, TypeVar

from kroute.checks.cluster_objects import (
    ClusterNode,
    ClusterPod,
    ConfigMap,
    DaemonSet,
    NodeSelectorTerm,
    PodSpec,
    Requirement,
    Taint,
    Toleration,
)
from kroute.checks.other_proxies import KUBE_PROXY, KUBE_ROUTER
from kroute.checks.running_proxies import ANTREA, CILIUM, ROUTER_ONLY
from kroute.model.kinds import NODES
from kroute.model.objects import List
from kroute.watchers.kubernetes.decoding import read_answer
from kroute.watchers.kubernetes.errors import ApiError

if TYPE_CHECKING:
    from kroute.watchers.kubernetes.api import Api

NAMESPACE = "kube-system"
ENDED = frozenset({"Succeeded", "Failed"})
"""The phases of Pods that have ended."""
T = TypeVar("T")
MOST = 500
"""Objects of one list that are looked at. A node has at most some hundred Pods."""
PROGRAMS = {"kube-proxy": KUBE_PROXY, "kube-router": KUBE_ROUTER, "cilium-agent": CILIUM, "antrea-agent": ANTREA}
"""Proxies by the container that runs them. Calico is left out: its links say whether it serves Services."""
CONFIGURED: Mapping[str, tuple[str, str, re.Pattern[str]]] = {
    CILIUM: ("cilium-config", "kube-proxy-replacement", re.compile(r"^(true|strict)$")),
    ANTREA: ("antrea-config", "antrea-agent.conf", re.compile(r"^\s*proxyAll:\s*true\b", re.MULTILINE)),
}
"""The ConfigMap, its key, and what the value contains if the program replaces kube-proxy."""


async def proxies_of_node(api: "Api", node_name: str) -> dict[str, str]:
    """The proxies that are to run on the node and to serve Services there; the values say by which object, as a clause.

    Raises ApiError: the server does not answer, does not allow it, or answers something else.
    """
    limit = {"limit": str(MOST)}
    on_node = {"fieldSelector": f"spec.nodeName={node_name}", **limit}
    pods = await _listed(api, ClusterPod, f"/api/v1/namespaces/{NAMESPACE}/pods", on_node)
    sets = await _listed(api, DaemonSet, f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets", limit)
    nodes = await _listed(api, ClusterNode, NODES.path, {"fieldSelector": f"metadata.name={node_name}"})
    meant = _meant(pods, sets, nodes[0] if nodes else None)
    for proxy in meant.keys() & CONFIGURED.keys():
        if not await _is_configured(api, proxy):
            del meant[proxy]
    return meant


async def _listed(api: "Api", kind: type[T], path: str, params: Mapping[str, str]) -> list[T]:
    return read_answer(List[kind], await api.get(path, params)).items or []  # type: ignore[valid-type]


def _meant(pods: Sequence[ClusterPod], sets: Sequence[DaemonSet], node: ClusterNode | None) -> dict[str, str]:
    meant: dict[str, str] = {}
    living = [found for found in sets if found.metadata.deletion_timestamp is None]
    wanting = [found for found in living if node is not None and wants_pod_on(found.pod, node)]
    there = [pod for pod in pods if pod.metadata.deletion_timestamp is None and pod.status.phase not in ENDED]
    wanted = [(f"DaemonSet {NAMESPACE}/{found.metadata.name} wants a Pod on this node", found.pod) for found in wanting]
    bound = [(f"Pod {NAMESPACE}/{pod.metadata.name} is bound to this node", pod.spec) for pod in there]
    for why, spec in (*wanted, *bound):
        for program, proxy in PROGRAMS.items():
            container = spec.container(program)
            if container is not None and not ROUTER_ONLY & set(container.arguments):
                meant.setdefault(proxy, why)
    return meant


def wants_pod_on(spec: PodSpec, node: ClusterNode) -> bool:
    """Whether a DaemonSet with this template wants a Pod on the node."""
    labels = node.labels
    if any(labels.get(key) != value for key, value in (spec.node_selector or {}).items()):
        return False
    terms = spec.required_terms
    if terms is not None and not any(_matches(term, labels, {"metadata.name": node.metadata.name}) for term in terms):
        return False
    return all(
        any(_tolerates(toleration, taint) for toleration in spec.tolerations or ())
        for taint in node.spec.taints or ()
        if taint.effect in {"NoSchedule", "NoExecute"} and not TOLERATED.fullmatch(taint.key)
    )


_CONDITIONS = "not-ready|unreachable|disk-pressure|memory-pressure|pid-pressure|unschedulable|network-unavailable"
TOLERATED = re.compile(rf"node\.kubernetes\.io/({_CONDITIONS})")
"""Taints that the Pods of a DaemonSet tolerate, the last one if they are in the host's network, as all proxies are."""


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in {"", taint.key}
    return (toleration.key, toleration.value) == (taint.key, taint.value)


def _matches(term: NodeSelectorTerm, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """Whether the node matches a term. A term without any requirement matches no node."""
    requirements = [(each, labels) for each in term.match_expressions or ()]
    requirements += [(each, fields) for each in term.match_fields or ()]
    return bool(requirements) and all(_meets(each, values) for each, values in requirements)


def _meets(requirement: Requirement, values: Mapping[str, str]) -> bool:
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


async def _is_configured(api: "Api", proxy: str) -> bool:
    """Whether the ConfigMap says that the program replaces kube-proxy. Not if it may not be read."""
    name, key, pattern = CONFIGURED[proxy]
    try:
        answer = await api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}", {})
    except ApiError:
        return False
    value = (read_answer(ConfigMap, answer).data or {}).get(key, "")
    return pattern.search(value) is not None
