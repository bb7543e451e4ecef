"""Ask every agent of a cluster, and find out which of them differ from the others."""

import asyncio
from collections.abc import Sequence

import msgspec

from kroute.cli.fleet.agents import AgentPod
from kroute.cli.fleet.answers import NodeStatus, ask_all_status, ask_shared
from kroute.cli.fleet.comparison import differences, lasting, server_differences, to_compare
from kroute.cli.fleet.kubectl import Kubectl

SECOND_LOOK = 1.5
"""Seconds after which a difference of virtual servers is looked at again: until then, changes are in every kernel."""
MOST_COMPARED = 10
"""Nodes of which the differences are named. Of further ones only that they differ is said."""


class Survey(msgspec.Struct):
    """The answers, by node, and for each node that differs from the others in what way."""

    nodes: list[NodeStatus]
    differences: dict[str, list[str]]


async def survey(kubectl: Kubectl, pods: Sequence[AgentPod], pause: float = SECOND_LOOK) -> Survey:
    """Ask these agents, and compare their answers. A difference counts if it is there `pause` seconds later as well."""
    nodes = await ask_all_status(kubectl, pods)
    right, wrong = to_compare(nodes)
    found = differences(nodes)
    if right is not None:
        named, others = wrong[:MOST_COMPARED], wrong[MOST_COMPARED:]
        by_node = {pod.node: pod for pod in pods}
        first = await _compare(kubectl, by_node[right], [by_node[it] for it in named])
        await asyncio.sleep(pause)
        second = await _compare(kubectl, by_node[right], [by_node[it] for it in named])
        for node, sentences in lasting(first, second).items():
            found.setdefault(node, []).extend(sentences)
        for node in others:
            found.setdefault(node, []).append(f"its virtual servers are not those of {right}")
    return Survey(nodes, found)


async def _compare(kubectl: Kubectl, right: AgentPod, pods: Sequence[AgentPod]) -> dict[str, list[str]]:
    """For each of the pods' nodes what it plans in another way than the node of `right`."""
    others, *states = await asyncio.gather(*(ask_shared(kubectl, pod) for pod in (right, *pods)))
    if others is None:
        return {}
    return {
        pod.node: server_differences(state, others)
        for pod, state in zip(pods, states, strict=True)
        if state is not None
    }
