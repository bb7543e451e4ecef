"""The options of every command of `kubectl kroute`, and what a shell may complete in place of a node or a Service."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from kroute.cli.parameters.options import DURATION
from kroute.fleet.agents import NAMESPACE, AgentPod, find
from kroute.fleet.answers import run
from kroute.fleet.kubectl import Kubectl, KubectlError
from kroute.printable import printable

COMPLETION_SECONDS = 5.0
"""How long a completion may ask the cluster, one call of kubectl."""

EVERY_NODE = "all"
AT_ONCE = 8
"""Calls of kubectl that run at the same time."""

_FLAGS = ("context", "cluster", "user", "kubeconfig", "as", "as_group")

Command = TypeVar("Command", bound=Callable[..., Any])


def complete_node(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The nodes with agents that begin so."""

    async def nodes(_kubectl: Kubectl, pods: Sequence[AgentPod]) -> list[str]:
        return [pod.node for pod in pods]

    return _ask(context, incomplete, nodes)


def complete_target(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The Services that begin so, as the first agent that can be asked knows them."""

    async def services(kubectl: Kubectl, pods: Sequence[AgentPod]) -> list[str]:
        for pod in [it for it in pods if not it.trouble][:1]:
            return (await run(kubectl, pod, ("show", "services", "-o", "name"))).out.decode().split()
        return []

    return _ask(context, incomplete, services)


def _ask(
    context: click.Context, incomplete: str, act: Callable[[Kubectl, Sequence[AgentPod]], Awaitable[list[str]]]
) -> list[str]:
    """What begins so, of what the cluster answers; nothing if it does not answer at once."""
    kubectl = kubectl_of(context.params, COMPLETION_SECONDS)

    async def ask() -> list[str]:
        return await act(kubectl, await find(kubectl, context.params.get("namespace") or NAMESPACE))

    try:
        return [printable(it) for it in asyncio.run(ask()) if it.startswith(incomplete)]
    except (KubectlError, UnicodeDecodeError):
        return []


def kubectl_of(options: Mapping[str, Any], seconds: float) -> Kubectl:
    """kubectl with the flags that the user has given."""
    names = {name: options.get("as_" if name == "as" else name) for name in _FLAGS}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in names.items() if value is not None]
    return Kubectl(flags, at_once=AT_ONCE, seconds=seconds)


OPTIONS = (
    click.option(
        "--node",
        default=EVERY_NODE,
        show_default=True,
        shell_complete=complete_node,
        help="The node whose agent is asked; all: every one.",
    ),
    click.option("-n", "--namespace", default=NAMESPACE, show_default=True, help="Where the agents' pods are."),
    click.option("--context", default=None, help="As kubectl has it."),
    click.option("--cluster", default=None, help="As kubectl has it."),
    click.option("--user", default=None, help="As kubectl has it."),
    click.option("--kubeconfig", type=click.Path(), default=None, help="As kubectl has it."),
    click.option("--as", "as_", default=None, help="As kubectl has it."),
    click.option("--as-group", default=None, help="As kubectl has it."),
)


def cluster_options(command: Command, timeout: str = "15s") -> Command:
    """The options of every command: which agents to ask, and kubectl's own for how to reach the cluster."""
    patience = click.option(
        "--timeout", type=DURATION, default=timeout, show_default=True, help="How long one node's agent may take."
    )
    for each in reversed((*OPTIONS[:2], patience, *OPTIONS[2:])):
        command = each(command)
    return command
