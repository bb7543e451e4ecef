"""kroute's pods on the cluster: what their status, their logs and the Events say."""

import json
from typing import Any

from tests.cluster.machines import Cluster

SYSTEM = ("--namespace", "kube-system")
SELECTOR = (*SYSTEM, "--selector", "app.kubernetes.io/name=kroute")
PROCESS = "[k]route run"
"""What pgrep and pkill find an agent by, and not the shell that calls them."""
CHANGES = (".added", ".removed", ".edited", ".set", ".bound", ".unbound", ".written", ".deleted")
"""How events of the log end that tell of a change of the kernel."""
Object = dict[str, Any]


def agents(cluster: Cluster) -> dict[str, Object]:
    """kroute's container on each node, as its pod's status has it, with the name of the `pod` and its `uid`."""
    pods = json.loads(cluster.kubectl("get", "pods", *SELECTOR, "-o", "json"))["items"]
    return {
        pod["spec"]["nodeName"]: {
            **pod["status"]["containerStatuses"][0],
            "pod": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        }
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and "containerStatuses" in pod["status"]
    }


def containers(cluster: Cluster) -> dict[str, str]:
    """The container on each node: another one if it was started again."""
    return {node: agent["containerID"] for node, agent in agents(cluster).items()}


def said(cluster: Cluster) -> list[Object]:
    """What the agents have logged since they were started."""
    logs = [cluster.kubectl(*SYSTEM, "logs", agent["pod"]) for agent in agents(cluster).values()]
    return [json.loads(line) for log in logs for line in log.splitlines() if line.startswith("{")]


def written(cluster: Cluster) -> list[str]:
    """The changes of the kernel that the agents tell of in their logs, since they were started."""
    return [line["event"] for line in said(cluster) if line["event"].endswith(CHANGES)]


def events(cluster: Cluster, *selectors: str) -> list[Object]:
    """The Events of all namespaces; with field selectors those alone."""
    selected = ("--field-selector", ",".join(selectors)) if selectors else ()
    items = json.loads(cluster.kubectl("get", "events", "--all-namespaces", *selected, "-o", "json"))["items"]
    return list(items)


def warnings(cluster: Cluster) -> dict[str, str]:
    """Warnings about kroute's pods, and those that kroute writes: a name and version each, and the reason."""
    return {
        f"{event['metadata']['name']} {event['metadata']['resourceVersion']}": event["reason"]
        for event in events(cluster, "type=Warning")
        if event["involvedObject"].get("name", "").startswith("kroute")
        or event.get("reportingComponent") == "kroute.io/kroute"
    }


def are_ready(cluster: Cluster) -> bool:
    """Whether there is an agent on each node, and each serves."""
    found = agents(cluster)
    return set(found) == set(cluster.nodes) and all(agent["ready"] for agent in found.values())


def evict(cluster: Cluster, node: str) -> None:
    """Ask the API for the eviction of the pod on a node, as `kubectl drain` does for pods of no DaemonSet."""
    metadata = {"name": agents(cluster)[node]["pod"], "namespace": "kube-system"}
    eviction = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})
    path = f"/api/v1/namespaces/kube-system/pods/{metadata['name']}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", content=eviction)
