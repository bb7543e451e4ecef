"""The program `kubectl-kroute`, which kubectl runs as `kubectl kroute` wherever it is in PATH."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click
from click.shell_completion import ShellComplete

from kroute import __version__
from kroute.base.printable import printable
from kroute.base.wording import with_path
from kroute.cli.fleet.agents import NAMESPACE, AgentPod, FleetNode, ask_all_status, find, run, without_pod
from kroute.cli.fleet.kubectl import Kubectl, KubectlError, Output
from kroute.cli.fleet.survey import survey
from kroute.cli.kubectl import printing
from kroute.cli.parameters.arguments import SHOWN, TARGET, complete_shown
from kroute.cli.parameters.options import DURATION, FILTER, SORT_BY
from kroute.cli.terminal import output
from kroute.cli.terminal.formats import FOR_PROGRAMS, output_option, show
from kroute.cli.terminal.output import (
    DIFFERENT,
    DONE,
    FAILURE,
    NO_AGENT,
    NOT_SERVED,
    CommandRefusedError,
    SectionGroup,
    complain,
    refusing,
)

COMPLETION_SECONDS = 5.0
"""How long a completion may ask the cluster, one call of kubectl."""

EVERY_NODE = "all"
AT_ONCE = 8
"""Calls of kubectl that run at the same time."""

Act = Callable[[Kubectl, Sequence[AgentPod]], Awaitable[int]]
Command = TypeVar("Command", bound=Callable[..., Any])


def complete_node(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The nodes with agents that begin so."""

    async def nodes(_kubectl: Kubectl, pods: Sequence[AgentPod]) -> list[str]:
        return [pod.node for pod in pods]

    return _ask(context, incomplete, nodes)


def complete_target(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The Services that begin so, as the first agent that can be asked knows them."""

    async def services(kubectl: Kubectl, pods: Sequence[AgentPod]) -> list[str]:
        for pod in [pod for pod in pods if not pod.trouble][:1]:
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
        return [printable(word) for word in asyncio.run(ask()) if word.startswith(incomplete)]
    except (KubectlError, UnicodeDecodeError):
        return []


_FLAGS = {"context": None, "cluster": None, "user": None, "kubeconfig": click.Path(), "as": None, "as-group": None}
"""kubectl's own flags, with the types of those that are no plain text."""
OPTIONS = (
    click.option(
        "--node",
        default=EVERY_NODE,
        show_default=True,
        shell_complete=complete_node,
        help="The node whose agent is asked; all: every one.",
    ),
    click.option("-n", "--namespace", default=NAMESPACE, show_default=True, help="Where the agents' pods are."),
    *(click.option(f"--{flag}", type=kind, default=None, help="As kubectl has it.") for flag, kind in _FLAGS.items()),
)


def kubectl_of(options: Mapping[str, Any], seconds: float) -> Kubectl:
    """kubectl with the flags that the user has given."""
    values = {flag: options.get(flag.replace("-", "_")) for flag in _FLAGS}
    flags = [f"--{flag}={value}" for flag, value in values.items() if value is not None]
    return Kubectl(flags, at_once=AT_ONCE, seconds=seconds)


def cluster_options(command: Command, timeout: str = "15s") -> Command:
    """The options of every command: which agents to ask, and kubectl's own for how to reach the cluster."""
    patience = click.option(
        "--timeout", type=DURATION, default=timeout, show_default=True, help="How long one node's agent may take."
    )
    for each in reversed((*OPTIONS[:2], patience, *OPTIONS[2:])):
        command = each(command)
    return command


PROGRAM = "kubectl kroute"
_DIRECTIVES = {"plain": 4, "dir": 16, "file": 0}
"""What the shell may add to completions of a kind, as cobra's ShellCompDirective: nothing, directories, files."""
_GZIP = b"\x1f\x8b"
_BUNDLE_SECONDS = "90s"
"""An agent may take 60 s for its bundle, and the network has to bring it."""


class PluginGroup(SectionGroup):
    """The commands of the plugin, in the sections of its help."""

    sections: ClassVar = {
        "Before the installation": ("check", "values"),
        "The whole cluster": ("status", "top", "version"),
        "Node by node": ("show", "explain", "plan", "bundle"),
    }


@click.group(
    cls=PluginGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name=PROGRAM)
def plugin() -> None:
    """Ask the kroute agents of a cluster, and mark the nodes that differ from the others.

    Agents are asked through the API server: by its pod proxy where the metrics port is bound to the node's address,
    else by running `kroute` in the agent's pod. Exit codes: 0 all right, 1 problems, differences or a node that does
    not answer, 2 a wrong command line, 6 no agent found; else that of the command on the nodes.
    """


@plugin.command()
@output_option
@cluster_options
def status(*, output: str, **options: Any) -> int:
    """Show for each node what it serves, what is wrong there, and in what it differs from the others."""
    of_all = options["node"] == EVERY_NODE
    return _answered(options, lambda kubectl, pods: _status(kubectl, pods, output, of_all=of_all))


@plugin.command()
@click.argument("by", type=click.Choice(("nodes", "services")), default="nodes", metavar="[nodes | services]")
@click.option(
    "--interval", type=DURATION, default="2s", show_default=True, help="The time over which rates are measured."
)
@SORT_BY
@FILTER
@output_option
@cluster_options
def top(by: str, *, interval: float, sort_by: str | None, only: str, output: str, **options: Any) -> int:
    """Show connections, packets and bytes a second of each node, or of each Service on all nodes."""
    from kroute.cli.kubectl import top as rates  # noqa: PLC0415  it imports rich

    if interval <= 0 or interval >= options["timeout"]:
        raise click.UsageError("--interval must be above 0s, and less than --timeout")

    async def show_top(kubectl: Kubectl, pods: Sequence[AgentPod]) -> int:
        found = await rates.top(kubectl, pods, by, interval=interval, order=sort_by, only=only)
        show(found, output, rates.print_totals)
        return FAILURE if found.unanswered else DONE

    return _answered(options, show_top)


@plugin.command()
@click.option("--client", is_flag=True, help="The version of this command alone; the cluster is not asked.")
@output_option
@cluster_options
def version(*, client: bool, output: str, **options: Any) -> int:
    """Show the version of this command, and those of the agents with their nodes."""

    def show_versions(answers: Sequence[FleetNode]) -> int:
        found = printing.versions(answers)
        show(found, output, printing.print_versions)
        return FAILURE if found.unanswered else DONE

    async def ask(kubectl: Kubectl, pods: Sequence[AgentPod]) -> int:
        return show_versions(await ask_all_status(kubectl, pods))

    if client:
        return show_versions([])
    try:
        return _answered(options, ask)
    except CommandRefusedError:
        show_versions([])
        raise


@plugin.command(name="show")
@click.argument(
    "what",
    nargs=-1,
    metavar=SHOWN,
    shell_complete=partial(complete_shown, services=complete_target),
)
@output_option
@cluster_options
def show_(what: tuple[str, ...], *, output: str, **options: Any) -> int:
    """Show what each node serves, as `kroute show` does there."""
    return _answered(options, lambda kubectl, pods: _run(kubectl, pods, ("show", *what), output))


@plugin.command()
@click.argument("target", metavar=TARGET, shell_complete=complete_target)
@click.option("--from", "client", default=None, help="The packet's source, as with `kroute explain`.")
@output_option
@cluster_options
def explain(target: str, *, client: str | None, output: str, **options: Any) -> int:
    """Say for each node why a packet to ADDRESS:PORT goes where it goes, as `kroute explain` does there.

    Of a connection to pod/NAMESPACE/NAME:PORT each node says what network policies of its own pods allow. The command
    ends with 3 if any of them refuses it.
    """
    words = ("explain", *(("--from", client) if client is not None else ()), target)
    is_pod = target.startswith("pod/")
    return _answered(options, lambda kubectl, pods: _run(kubectl, pods, words, output, each_decides=is_pod))


@plugin.command()
@output_option
@cluster_options
def plan(*, output: str, **options: Any) -> int:
    """Show what the agent of each node would change now, as `kroute plan` does there.

    Exits with 0 if there is nothing to change on any node, and with 5 if there is.
    """
    return _answered(options, lambda kubectl, pods: _run(kubectl, pods, ("plan",), output))


@plugin.command()
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where the files are written.  [default: the current directory]",
)
@partial(cluster_options, timeout=_BUNDLE_SECONDS)
def bundle(*, directory: Path, **options: Any) -> int:
    """Collect from each node everything that support needs, one file for each, as `kroute bundle` does there."""
    return _answered(options, lambda kubectl, pods: _bundle(kubectl, pods, directory))


@plugin.command()
@click.option(
    "--before-install", is_flag=True, help="Read the cluster as before an installation, though agents are there."
)
@output_option
@cluster_options
def check(*, before_install: bool, output: str, **options: Any) -> int:
    """Say what an installation would meet in this cluster; once kroute is there, run `kroute check` on each node.

    Exits with 0 if no check failed, even with warnings, else with 1.
    """

    async def read(kubectl: Kubectl) -> int:
        from kroute.cli.installation import by_kubectl, findings_by  # noqa: PLC0415  other commands do not need it
        from kroute.cli.terminal.findings import show_findings  # noqa: PLC0415  as above

        return show_findings(await findings_by(by_kubectl(kubectl), options["namespace"]), output)

    if before_install:
        return asyncio.run(read(kubectl_of(options, options["timeout"])))
    return _answered(options, lambda kubectl, pods: _run(kubectl, pods, ("check",), output), without_agents=read)


@plugin.command()
@cluster_options
def values(**options: Any) -> int:
    """Write a values.yaml for the chart, as this cluster needs it, with the source of each value.

    Exits with 1 if something is missing in it, or the cluster cannot be read.
    """
    if options["node"] != EVERY_NODE:
        raise click.UsageError("the values are for all nodes: leave --node out")
    from kroute.cli.installation import write_values  # noqa: PLC0415  other commands do not need it

    return asyncio.run(write_values(kubectl_of(options, options["timeout"]), options["namespace"]))


def _answered(
    options: dict[str, Any], act: Act, *, without_agents: Callable[[Kubectl], Awaitable[int]] | None = None
) -> int:
    """Find the agents' pods and do something with them, or something else without any. Returns the exit code."""
    kubectl, node, namespace = kubectl_of(options, options["timeout"]), options["node"], options["namespace"]

    async def find_and_act() -> int:
        try:
            pods = await find(kubectl, namespace)
        except KubectlError:
            if without_agents is None:
                raise
            pods = []
        if node != EVERY_NODE:
            pods = [pod for pod in pods if pod.node == node]
        elif not pods and without_agents is not None:
            return await without_agents(kubectl)
        if not pods:
            where = f"on node {node}" if node != EVERY_NODE else "on any node"
            complain(f"no pod of kroute {where} in namespace {namespace}: if it is in another one, give --namespace")
            return NO_AGENT
        return await act(kubectl, pods)

    with refusing(KubectlError):
        return asyncio.run(find_and_act())


async def _status(kubectl: Kubectl, pods: Sequence[AgentPod], how: str, *, of_all: bool) -> int:
    """Print the status of every node. All is right if each answers, has no problem, and differs from no other.

    `of_all`: the pods are those of all nodes, of which some may have none.
    """
    lacking = await without_pod(kubectl, pods[0].namespace) if of_all else []
    fleet = printing.Fleet(await survey(kubectl, pods), lacking)
    show(fleet, how, printing.print_fleet)
    return FAILURE if fleet.names() or fleet.without_pod else DONE


async def _run(
    kubectl: Kubectl, pods: Sequence[AgentPod], words: Sequence[str], how: str, *, each_decides: bool = False
) -> int:
    """Run a command on every node, and print the outputs one below the other, with the marks of the survey.

    `each_decides`: a node that refuses does not disagree with the others.
    """
    remote = "json" if how in FOR_PROGRAMS else how
    asked = _outputs(kubectl, pods, [*words, "--output", remote])
    nodes, outputs = await asyncio.gather(survey(kubectl, pods), asked)
    answers = [printing.answer(node, output) for node, output in zip(nodes, outputs, strict=True)]
    items = answers if each_decides else printing.marked(answers)
    show(printing.NodeAnswers(items=items), how, printing.print_answers)
    return code_of(answers, each_decides=each_decides)


def code_of(answers: Sequence[printing.NodeAnswer], *, each_decides: bool = False) -> int:
    """The exit code of a command that every node has run: the nodes' own, FAILURE if they disagree about it."""
    if any(answer.error for answer in answers):
        return FAILURE
    codes = {answer.exit_code for answer in answers}
    if codes == {DONE, DIFFERENT}:
        return DIFFERENT
    if each_decides and codes == {DONE, NOT_SERVED}:
        return NOT_SERVED
    if len(codes) > 1 or (codes == {DONE} and any(answer.differences for answer in answers)):
        return FAILURE
    return codes.pop()


async def _bundle(kubectl: Kubectl, pods: Sequence[AgentPod], directory: Path) -> int:
    """Write the bundle of each node into a file of its own, and name the files."""
    outputs = await _outputs(kubectl, pods, ["bundle", "--file", "-"])
    written = [_keep(directory, pod.node, output) for pod, output in zip(pods, outputs, strict=True)]
    return DONE if all(written) else FAILURE


def _keep(directory: Path, node: str, output: Output | KubectlError) -> bool:
    """Write a node's bundle, and say where. Returns whether there is one."""
    from kroute.cli.bundle.command import bundle_name, write  # noqa: PLC0415  it imports all that a bundle has

    path, trouble = directory / f"{bundle_name(node)}.tar.gz", ""
    if isinstance(output, KubectlError):
        trouble = str(output)
    elif not output.out.startswith(_GZIP):
        trouble = output.complaint or "its answer is not an archive"
    else:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write(str(path), output.out)
            click.echo(f"{path}: {len(output.out) / 1024:.0f} KiB")
        except OSError as error:
            trouble = with_path(error)
    if trouble:
        complain(f"no bundle of {node}: {trouble}")
    return not trouble


async def _outputs(kubectl: Kubectl, pods: Sequence[AgentPod], words: Sequence[str]) -> list[Output | KubectlError]:
    """What a command writes in each pod, or why it was not run there."""

    async def output(pod: AgentPod) -> Output | KubectlError:
        try:
            return await run(kubectl, pod, words)
        except KubectlError as error:
            return error

    return await asyncio.gather(*map(output, pods))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(output.run(plugin, arguments, PROGRAM))


def complete() -> None:
    """The program `kubectl_complete-kroute`, which kubectl runs to complete the words behind `kubectl kroute`."""
    *before, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(plugin, {}, PROGRAM, "").get_completions(before, incomplete)
    for each in found:
        if each.type == "plain":
            click.echo(f"{each.value}\t{each.help}" if each.help else each.value)
    click.echo(f":{_DIRECTIVES[found[0].type if found else 'plain']}")
