"""Ask every agent of a cluster, and find out which of them differ from the others, and in what.

Compared is what must be the same: the version of kroute, the backend of the firewall, the problems of Services, and the
virtual servers and real servers of `inspect.shared_state`, which leaves out what each node has for itself. What most
nodes have counts as right. If two values are equally frequent, every node is marked with its own.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from kroute.base.wording import host_port
from kroute.cli.fleet.agents import AgentPod, FleetNode, ask_all_status, ask_shared
from kroute.cli.fleet.kubectl import Kubectl
from kroute.inspect.shared_state import SharedServer, SharedState
from kroute.inspect.status import State, Status

SECOND_LOOK = 1.5
"""Seconds after which a difference of virtual servers is looked at again: until then, changes are in every kernel."""
MOST_COMPARED = 10
"""Nodes of which the differences are named. Of further ones only that they differ is said."""
MOST_NAMED = 5
"""How many objects one sentence names."""

T = TypeVar("T", bound=Hashable)


async def survey(kubectl: Kubectl, pods: Sequence[AgentPod]) -> list[FleetNode]:
    """Ask these agents, and compare their answers. A difference counts if it is there SECOND_LOOK later as well."""
    nodes = await ask_all_status(kubectl, pods)
    right, wrong = to_compare(nodes)
    found = differences(nodes)
    if right is not None:
        named, others = wrong[:MOST_COMPARED], wrong[MOST_COMPARED:]
        by_node = {pod.node: pod for pod in pods}
        first = await _compare(kubectl, by_node[right], [by_node[node] for node in named])
        await asyncio.sleep(SECOND_LOOK)
        second = await _compare(kubectl, by_node[right], [by_node[node] for node in named])
        for node, sentences in lasting(first, second).items():
            found.setdefault(node, []).extend(sentences)
        for node in others:
            found.setdefault(node, []).append(f"its virtual servers are not those of {right}")
    for answer in nodes:
        answer.differences = found.get(answer.node, [])
    return nodes


async def _compare(kubectl: Kubectl, right: AgentPod, pods: Sequence[AgentPod]) -> dict[str, list[str]]:
    """For each of the pods' nodes what it plans in another way than the node of `right`."""
    others, *states = await asyncio.gather(*(ask_shared(kubectl, pod) for pod in (right, *pods)))
    answers = [(pod.node, state) for pod, state in zip(pods, states, strict=True) if state is not None]
    return {} if others is None else {node: server_differences(state, others) for node, state in answers}


def usual(values: Iterable[T]) -> T | None:
    """The most frequent value; None without any, and if two are equally frequent."""
    ranked = Counter(values).most_common(2)
    if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]


def differences(nodes: Sequence[FleetNode]) -> dict[str, list[str]]:
    """For each node that differs in version, backend or problems: sentences about it."""
    statuses = {node.node: node.status for node in nodes if node.status is not None}
    answered = {node: status for node, status in statuses.items() if status.state is not State.NO_AGENT}
    if len(answered) < 2:
        return {}
    found: dict[str, list[str]] = defaultdict(list)
    for what in ("version", "firewall"):
        values: dict[str, str] = {node: getattr(status, what) for node, status in answered.items()}
        most = usual(values.values())
        for node, value in values.items():
            if value != most:
                found[node].append(f"{what} {value}" + (f", others have {most}" if most else ""))
    for node, sentences in _problems(answered).items():
        found[node] += sentences
    return found


def _problems(answered: Mapping[str, Status]) -> dict[str, list[str]]:
    """The problems of Services that less than half of the nodes have."""
    having: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node, status in answered.items():
        for problem in {(problem.service, problem.reason): None for problem in status.problems if problem.service}:
            having[problem].append(node)
    found: dict[str, list[str]] = defaultdict(list)
    for (service, reason), nodes in having.items():
        for node in nodes if 2 * len(nodes) < len(answered) else ():
            found[node].append(f"problem {reason} of {service}, which most others do not have")
    return {node: _shortened(sentences) for node, sentences in found.items()}


def to_compare(nodes: Sequence[FleetNode]) -> tuple[str | None, list[str]]:
    """A node that plans what most do, and the nodes that plan something else.

    Without a majority the node that has the most Services is the first one, and all others differ from it.
    """
    statuses = {node.node: node.status for node in nodes if node.status is not None}
    digests = {node: status.shared for node, status in statuses.items() if status.shared}
    if len(set(digests.values())) < 2:
        return None, []
    most = usual(digests.values())
    right = [node for node, digest in digests.items() if digest == most]
    right = right or [max(digests, key=lambda node: statuses[node].served.services)]
    return right[0], [node for node, digest in digests.items() if digest != digests[right[0]]]


def server_differences(mine: SharedState, others: SharedState) -> list[str]:
    """What a node plans in another way than the others, a sentence for each virtual server."""
    here, there = (_by_key(state) for state in (mine, others))
    found = [f"lacks the virtual server {_name(there[key])}" for key in there.keys() - here.keys()]
    found += [f"has the virtual server {_name(here[key])}, others have not" for key in here.keys() - there.keys()]
    for key in here.keys() & there.keys():
        found += _one_difference(here[key], there[key])
    return sorted(found)


def _one_difference(here: SharedServer, there: SharedServer) -> list[str]:
    found = []
    if here.service != there.service:
        found.append(f"{_name(here)} is of {here.service}, elsewhere of {there.service}")
    if here.options != there.options:
        found.append(f"{_name(here)} has the options {here.options}, elsewhere {there.options}")
    if here.real_servers is not None and there.real_servers is not None:
        mine, others = set(here.real_servers), set(there.real_servers)
        for word, some in (("lacks", others - mine), ("has in addition", mine - others)):
            if some:
                found.append(f"{_name(here)} {word} the real servers {', '.join(_shortened(sorted(some)))}")
    return found


def lasting(first: Mapping[str, Sequence[str]], second: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The sentences of each node that both looks have: a change that was on its way is in one of them only."""
    kept = {node: [sentence for sentence in second.get(node, ()) if sentence in first[node]] for node in first}
    return {node: _shortened(sentences) for node, sentences in kept.items() if sentences}


def _by_key(state: SharedState) -> dict[tuple[str, str, int], SharedServer]:
    return {(server.protocol, server.address, server.port): server for server in state.virtual_servers}


def _name(server: SharedServer) -> str:
    return f"{server.protocol} {host_port(server.address, server.port)} ({server.service})"


def _shortened(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - MOST_NAMED
    return [*sentences[:MOST_NAMED], f"and {more} more"] if more > 0 else list(sentences)
