"""Ask agents, each within its own time: what one does not answer costs only itself."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from kroute.cli.fleet.agents import AgentPod
from kroute.cli.fleet.kubectl import Kubectl, KubectlError, Output
from kroute.inspect.shared_state import SharedState
from kroute.inspect.status import Status

PROXY, EXEC = "pods/proxy", "pods/exec"
OTHER_VERSION = "its answer is of another version of kroute: upgrade it, or this command"


class NodeStatus(msgspec.Struct):
    """One node's answer. `via` says how it was asked. `error` says why there is no status, or is empty."""

    node: str
    pod: str
    via: str = ""
    status: Status | None = None
    error: str = ""


async def ask_status(kubectl: Kubectl, pod: AgentPod) -> NodeStatus:
    """The status of one agent, with the digest of what it shares with others."""
    found = NodeStatus(pod.node, pod.name)
    try:
        found.via, answer = await _ask(kubectl, pod, "status", ("status", "--output", "json"))
        found.status = msgspec.json.decode(answer, type=Status)
    except KubectlError as error:
        found.error = str(error)
    except msgspec.DecodeError:
        found.error = OTHER_VERSION
    return found


async def ask_shared(kubectl: Kubectl, pod: AgentPod) -> SharedState | None:
    """What the agent plans and others should, or None if it does not answer."""
    try:
        _, answer = await _ask(kubectl, pod, "shared", ("status", "--shared"))
        return msgspec.json.decode(answer, type=SharedState)
    except (KubectlError, msgspec.DecodeError):
        return None


async def ask_all_status(kubectl: Kubectl, pods: Sequence[AgentPod]) -> list[NodeStatus]:
    """The status of every agent, in the order of the pods."""
    return list(await asyncio.gather(*(ask_status(kubectl, pod) for pod in pods)))


async def run(kubectl: Kubectl, pod: AgentPod, words: Sequence[str]) -> Output:
    """Run `kroute WORDS...` in the agent's pod. Raises KubectlError if it was not run at all."""
    if pod.trouble:
        raise KubectlError(pod.trouble)
    where = ("-n", pod.namespace, pod.name, "-c", pod.container)
    output = await kubectl.call("exec", *where, "--", "kroute", *words)
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


def decoded(output: bytes) -> Any:
    """The JSON value that a command has written, or None."""
    try:
        return msgspec.json.decode(output)
    except msgspec.DecodeError:
        return None
