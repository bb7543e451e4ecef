"""The program `kubectl-kroute`, which kubectl runs as `kubectl kroute` wherever it is in PATH."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from kroute import __version__
from kroute.cli.kubectl import printing
from kroute.cli.parameters.options import DURATION
from kroute.cli.terminal import output
from kroute.cli.terminal.formats import FOR_PROGRAMS, output_option, show
from kroute.cli.terminal.output import DONE, FAILURE, complain
from kroute.fleet.agents import NAMESPACE, AgentPod, find
from kroute.fleet.answers import run
from kroute.fleet.kubectl import Kubectl, KubectlError
from kroute.fleet.survey import Survey, survey

NOBODY = 2
"""The exit code if no agent was found, or kubectl does not reach the cluster."""
EVERY_NODE = "all"
AT_ONCE = 8
"""Calls of kubectl that run at the same time."""

Command = TypeVar("Command", bound=Callable[..., Any])
_FLAGS = ("context", "cluster", "user", "kubeconfig", "as", "as_group")

OPTIONS = (
    click.option(
        "--node", default=EVERY_NODE, show_default=True, help="The node whose agent is asked; all: every one."
    ),
    click.option("-n", "--namespace", default=NAMESPACE, show_default=True, help="Where the agents' pods are."),
    click.option(
        "--timeout", type=DURATION, default="15s", show_default=True, help="How long one node's agent may take."
    ),
    click.option("--context", default=None, help="As kubectl has it."),
    click.option("--cluster", default=None, help="As kubectl has it."),
    click.option("--user", default=None, help="As kubectl has it."),
    click.option("--kubeconfig", default=None, help="As kubectl has it."),
    click.option("--as", "as_", default=None, help="As kubectl has it."),
    click.option("--as-group", default=None, help="As kubectl has it."),
)


def cluster_options(command: Command) -> Command:
    """The options of every command: whom to ask, and kubectl's own for how to reach the cluster."""
    for each in reversed(OPTIONS):
        command = each(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="kubectl kroute")
def plugin() -> None:
    """Ask the kroute agents of a cluster, and mark the nodes that differ from the others.

    Agents are asked through the API server: by its pod proxy where the metrics port is bound to the node's address,
    else by running `kroute` in the agent's pod. Exit codes: 0 all right, 1 problems, differences or a node that does
    not answer, 2 no agent found.
    """


@plugin.command()
@output_option
@cluster_options
def status(*, output: str, **options: Any) -> int:
    """Show for each node what it serves, what is wrong there, and in what it differs from the others."""
    return _answered(options, lambda kubectl, pods: _status(kubectl, pods, output))


@plugin.command(name="show")
@click.argument("what", nargs=-1, metavar="[services | service NAMESPACE/NAME]")
@output_option
@cluster_options
def show_(what: tuple[str, ...], *, output: str, **options: Any) -> int:
    """Show what each node serves, as `kroute show` does there."""
    return _answered(options, lambda kubectl, pods: _run(kubectl, pods, ("show", *what), output))


@plugin.command()
@click.argument("frontend", metavar="ADDRESS:PORT[/udp]")
@click.option("--from", "client", default=None, help="The packet's source, as with `kroute explain`.")
@output_option
@cluster_options
def explain(frontend: str, *, client: str | None, output: str, **options: Any) -> int:
    """Say for each node why a packet to ADDRESS:PORT goes where it goes, as `kroute explain` does there."""
    source = ("--from", client) if client is not None else ()
    return _answered(options, lambda kubectl, pods: _run(kubectl, pods, ("explain", *source, frontend), output))


def _answered(options: dict[str, Any], act: Callable[[Kubectl, list[AgentPod]], Any]) -> int:
    """Find the agents' pods and do something with them. Returns the exit code."""
    names = {name: options["as_" if name == "as" else name] for name in _FLAGS}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in names.items() if value is not None]
    kubectl = Kubectl(flags, at_once=AT_ONCE, seconds=options["timeout"])

    async def find_and_act() -> int:
        pods = await find(kubectl, options["namespace"])
        if options["node"] != EVERY_NODE:
            pods = [pod for pod in pods if pod.node == options["node"]]
        if not pods:
            where = f"on node {options['node']}" if options["node"] != EVERY_NODE else "on any node"
            complain(f"no pod of kroute {where} in the namespace {options['namespace']}: give its own with --namespace")
            return NOBODY
        code: int = await act(kubectl, pods)
        return code

    try:
        return asyncio.run(find_and_act())
    except KubectlError as error:
        complain(error)
        return NOBODY


async def _status(kubectl: Kubectl, pods: Sequence[AgentPod], how: str) -> int:
    found = await survey(kubectl, pods)
    show(printing.document(found), how, printing.print_fleet)
    return exit_code(found)


def exit_code(found: Survey) -> int:
    """DONE if every node answers, has no problem, and differs from no other."""
    healthy = all(it.status is not None and not it.status.problems_total for it in found.nodes)
    return DONE if healthy and not found.differences else FAILURE


async def _run(kubectl: Kubectl, pods: Sequence[AgentPod], words: Sequence[str], how: str) -> int:
    """Run a command on every node, and print the outputs one below the other, with the marks of the survey."""
    remote = "json" if how in FOR_PROGRAMS else how
    found, *outputs = await asyncio.gather(
        survey(kubectl, pods), *(_output(kubectl, pod, [*words, "--output", remote]) for pod in pods)
    )
    answers = [
        printing.answer(pod.node, each, found.differences.get(pod.node, []))
        for pod, each in zip(pods, outputs, strict=True)
    ]
    show(printing.Answers(items=printing.marked(answers)), how, printing.print_answers)
    return DONE if not found.differences and not any(it.error or it.exit_code for it in answers) else FAILURE


async def _output(kubectl: Kubectl, pod: AgentPod, words: Sequence[str]) -> Any:
    try:
        return await run(kubectl, pod, words)
    except KubectlError as error:
        return error


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(output.run(plugin, arguments, "kubectl kroute"))
