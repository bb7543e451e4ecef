"""`kroute show policies`: the pods of this node that network policies isolate, and what these have refused."""

import asyncio
from pathlib import Path

import msgspec

from kroute.cli.terminal.formats import show
from kroute.cli.terminal.output import DONE, NO_AGENT, complain, refusing
from kroute.cli.terminal.screen import Screen, TextTable
from kroute.inspect import agent_socket, policies
from kroute.inspect.policies import PolicyGroup, PolicyGroupList
from kroute.inspect.refusals import RefusedPacket

_HEADINGS = ("Group", "Policies", "Refused packets")


def main(state_dir: Path, how: str, only: str = "") -> int:
    """Print what this node's agent enforces; `only` is a part of the names of pods, policies or addresses."""
    hint = "only the agent knows policies: the firewall's own tools show what the kernel has"
    with refusing(agent_socket.AgentUnreachableError, code=NO_AGENT, hint=hint):
        found = asyncio.run(agent_socket.ask_for(state_dir, policies.GROUPS, policies.decode_groups))
    if found is None:
        complain("the agent enforces no network policies: `kroute run --network-policies` does")
        return NO_AGENT
    show(narrowed(found, only.lower()), how, print_policies)
    return DONE


def narrowed(found: PolicyGroupList, text: str) -> PolicyGroupList:
    """The groups with pods, and the problems, that have the text in a pod's or policy's name or in an address."""
    groups = []
    for group in found.items:
        is_policy = any(text in f"{group.namespace}/{name}" for name in group.policies)
        pods = [it for it in group.pods if is_policy or text in it.pod or text in it.address]
        if pods:
            groups.append(msgspec.structs.replace(group, pods=pods))
    problems = [problem for problem in found.problems if text in problem.policy]
    return msgspec.structs.replace(found, items=groups, problems=problems)


def print_policies(found: PolicyGroupList, screen: Screen) -> None:
    """Print one line for each isolated pod, with its group, and below them the problems of policies."""
    table = TextTable(*_HEADINGS, "Pod", "Address", numbers=("Refused packets",), outer=len(_HEADINGS))
    for group in found.items:
        for pod in group.pods:
            table.add(group.name, policy_names(group), group.refused_packets, pod.pod or "-", pod.address)
    screen.table(table)
    listed = len({pod.pod for group in found.items for pod in group.pods})
    screen.line(f"isolated pods: {found.isolated_pods}{f', {listed} listed' if listed < found.isolated_pods else ''}")
    for problem in found.problems:
        screen.line(f"{problem.policy}: {problem.reason}: {problem.message}", hang=4, fg="yellow")


def policy_names(found: PolicyGroup | RefusedPacket) -> str:
    """The policies of a group, or of that for which a packet was refused."""
    more = found.policies_total - len(found.policies)
    namespace = f"{found.namespace}: " if found.namespace else ""
    return f"{namespace}{', '.join(found.policies)}{f' and {more} more' if more else ''}"
