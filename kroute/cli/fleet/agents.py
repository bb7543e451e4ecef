"""Find the agents' pods by the labels of the DaemonSet (deploy/kustomize/base), and how each can be asked.

An agent's answers are on its metrics port. Where that port is bound to the node's address, the API server's pod proxy
reaches it. On loopback, the default, nobody does, and the command `kroute` is run in the pod instead. Nothing is opened
for either. Each agent is asked within its own time: what one does not answer costs only itself.
"""

import asyncio
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import quote

import msgspec

from kroute.checks.cluster_objects import ClusterPod, Container, DaemonSet, PodSpec
from kroute.cli.fleet.kubectl import Kubectl, KubectlError, Output
from kroute.inspect.shared_state import SharedState
from kroute.inspect.status import Status
from kroute.model.document import View
from kroute.model.objects import List

LABELS = "app.kubernetes.io/name=kroute"
NAMESPACE = "kube-system"
"""Where deploy/kustomize/base puts the DaemonSet."""
PROXY, EXEC = "pods/proxy", "pods/exec"
OTHER_VERSION = "its answer is of another version of kroute: upgrade it, or this command"
_VARIABLE, _FLAG = "KROUTE_METRICS_BIND_ADDRESS", "metrics-bind-address"


class AgentPod(msgspec.Struct, frozen=True, order=True):
    """The pod of one node's agent. `port`: that of the metrics, if it is bound to the node's address; else None.

    `trouble` says why the pod cannot be asked, or is empty.
    """

    node: str
    namespace: str
    name: str
    container: str
    port: int | None
    trouble: str = ""

    @property
    def proxy(self) -> str:
        """The path of the API server under which the pod proxy is."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}:{self.port}/proxy"


async def find(kubectl: Kubectl, namespace: str) -> list[AgentPod]:
    """The agents' pods, by node. Raises KubectlError."""
    answer = await kubectl.get(f"/api/v1/namespaces/{quote(namespace)}/pods?labelSelector={quote(LABELS)}")
    try:
        pods = msgspec.json.decode(answer, type=_Pods).items
    except msgspec.DecodeError as error:
        raise KubectlError(f"the API server has not answered with a list of pods: {error}") from None
    agents = [(pod, container) for pod in pods if (container := _agent_of(pod.spec)) is not None]
    names = {name for _, container in agents for name in container.config_maps}
    maps = dict(await asyncio.gather(*(_config_map(kubectl, namespace, name) for name in sorted(names))))
    return sorted(_pod(pod, container, maps) for pod, container in agents)


async def without_pod(kubectl: Kubectl, namespace: str) -> list[str]:
    """A sentence for each DaemonSet of agents that has no pod on some node, as where a quota refuses it.

    Empty also if the DaemonSets may not be read.
    """
    try:
        answer = await kubectl.get(
            f"/apis/apps/v1/namespaces/{quote(namespace)}/daemonsets?labelSelector={quote(LABELS)}"
        )
        daemon_sets = msgspec.json.decode(answer, type=List[DaemonSet]).items or ()
    except (KubectlError, msgspec.DecodeError):
        return []
    sentences = []
    for daemon_set in daemon_sets:
        name, wanted = daemon_set.metadata.name, daemon_set.status.desired_number_scheduled
        lacking = wanted - daemon_set.status.current_number_scheduled
        if lacking > 0 and _agent_of(daemon_set.pod) is not None:
            next_step = f"`kubectl -n {namespace} describe daemonset {name}` says why"
            sentences.append(f"{lacking} of {wanted} nodes without a pod of DaemonSet {name}: {next_step}")
    return sentences


class _Pod(ClusterPod, kw_only=True):
    spec: PodSpec


class _Pods(msgspec.Struct):
    items: list[_Pod]


def _agent_of(pod: PodSpec) -> Container | None:
    """The container that runs `kroute run`, or None: pods of the uninstaller have the same label."""
    return next((container for container in pod.containers or () if "run" in container.arguments), None)


async def _config_map(kubectl: Kubectl, namespace: str, name: str) -> tuple[str, Mapping[str, str]]:
    """A ConfigMap's name and data; no data if it may not be read, or does not exist."""
    try:
        answer = await kubectl.get(f"/api/v1/namespaces/{quote(namespace)}/configmaps/{quote(name)}")
        return name, msgspec.json.decode(answer).get("data") or {}
    except (KubectlError, msgspec.DecodeError, AttributeError):
        return name, {}


def _pod(pod: ClusterPod, container: Container, maps: Mapping[str, Mapping[str, str]]) -> AgentPod:
    metadata, phase = pod.metadata, pod.status.phase or "Unknown"
    trouble = "" if phase == "Running" else f"its pod {metadata.name} is {phase}"
    if metadata.deletion_timestamp:
        trouble = f"its pod {metadata.name} is being deleted"
    port = _reachable_port(_bind_address(container, maps))
    node = pod.spec.node_name or "(no node yet)"
    return AgentPod(node, metadata.namespace, metadata.name, container.name, port, trouble)


def _bind_address(container: Container, maps: Mapping[str, Mapping[str, str]]) -> str:
    """The metrics' bind address as the pod is configured; empty for the default. Flags win, then `env`, `envFrom`."""
    variables: dict[str, str] = {}
    for name in container.config_maps:
        variables |= maps.get(name, {})
    variables |= {variable.name: variable.value for variable in container.env or ()}
    given = container.flag(_FLAG)
    return variables.get(_VARIABLE, "") if given is None else given


def _reachable_port(bound: str) -> int | None:
    """The port, if others than the node itself reach it there."""
    host, _, port = bound.rpartition(":")
    if not port.isdecimal():
        return None
    try:
        return None if ip_address(host.strip("[]") or "0.0.0.0").is_loopback else int(port)
    except ValueError:
        return None


class FleetNode(View):
    """One node's answer. `via` says how it was asked. `error` says why there is no status, or is empty.

    `differences` are sentences about what it has differently from the others.
    """

    node: str
    pod: str
    via: str
    status: Status | None
    error: str
    differences: list[str]


async def ask_status(kubectl: Kubectl, pod: AgentPod) -> FleetNode:
    """The status of one agent, with the digest of what it shares with others."""
    found = FleetNode(pod.node, pod.name, "", None, "", [])
    try:
        found.via, answer = await _ask(kubectl, pod, "status", ("status", "--output", "json"))
        found.status = msgspec.json.decode(answer, type=Status)
    except (KubectlError, msgspec.DecodeError) as error:
        found.error = str(error) if isinstance(error, KubectlError) else OTHER_VERSION
    return found


async def ask_shared(kubectl: Kubectl, pod: AgentPod) -> SharedState | None:
    """What the agent plans and others should, or None if it does not answer."""
    try:
        _, answer = await _ask(kubectl, pod, "shared", ("status", "--shared"))
        return msgspec.json.decode(answer, type=SharedState)
    except (KubectlError, msgspec.DecodeError):
        return None


async def ask_all_status(kubectl: Kubectl, pods: Sequence[AgentPod]) -> list[FleetNode]:
    """The status of every agent, in the order of the pods."""
    return list(await asyncio.gather(*(ask_status(kubectl, pod) for pod in pods)))


async def run(kubectl: Kubectl, pod: AgentPod, words: Sequence[str]) -> Output:
    """Run `kroute WORDS...` in the agent's pod. Raises KubectlError if it was not run at all.

    It may take as long there as kubectl here: what kubectl has begun in a container does not end with kubectl.
    """
    if pod.trouble:
        raise KubectlError(pod.trouble)
    where = ("-n", pod.namespace, pod.name, "-c", pod.container)
    output = await kubectl.call("exec", *where, "--", "timeout", f"{kubectl.seconds:g}", "kroute", *words)
    if output.code and not output.out:
        raise KubectlError(output.complaint or f"kubectl exec ended with {output.code}")
    return output


async def _ask(kubectl: Kubectl, pod: AgentPod, answer: str, words: Sequence[str]) -> tuple[str, bytes]:
    """How the agent was asked, and its answer: by the pod proxy where it leads to the port, else by the command."""
    if pod.trouble:
        raise KubectlError(pod.trouble)
    if pod.port is None:
        return EXEC, (await run(kubectl, pod, words)).out
    try:
        return PROXY, await kubectl.get(f"{pod.proxy}/answers/{answer}")
    except KubectlError as refusal:
        try:
            return EXEC, (await run(kubectl, pod, words)).out
        except KubectlError as error:
            raise KubectlError(f"{PROXY}: {refusal}; {EXEC}: {error}") from None
