"""What `kubectl kroute` prints: a line for each node, then problems with their next steps, and what differs."""

from collections.abc import Sequence
from typing import Any, ClassVar

import click
import msgspec

from kroute import __version__
from kroute.base.printable import printable
from kroute.cli.fleet.agents import FleetNode
from kroute.cli.fleet.kubectl import KubectlError, Output
from kroute.cli.fleet.survey import usual
from kroute.cli.status import print_problem
from kroute.cli.terminal.screen import Screen, TextTable
from kroute.inspect.status import StatusProblem
from kroute.model.document import Document, View

SHOWN = 20
"""Problems on the screen. JSON and YAML have all that the nodes have named."""
NAMED_NODES = 5
_HEADINGS = ("Node", "State", "Version", "Firewall", "Services", "Virtual", "Real", "Problems", "Differs")
_WIDE = ("Pending", "Last resync", "Asked by", "Pod")


class Fleet(Document):
    """The status of every node that was asked. `withoutPod` has a sentence if other nodes should have an agent, too."""

    kind: ClassVar[str] = "NodeStatusList"

    items: list[FleetNode]
    without_pod: list[str]

    def names(self) -> list[str]:
        """The nodes that do not answer, have problems, or differ."""
        return [
            node.node
            for node in self.items
            if node.status is None or node.status.problems_total or node.differences or node.error
        ]


class NodeAnswer(View):
    """One node's output of a command: its document, or the lines of its text. `error` says why there is none."""

    node: str
    exit_code: int = 0
    document: Any = None
    lines: list[str] = msgspec.field(default_factory=list)
    error: str = ""
    differences: list[str] = msgspec.field(default_factory=list)


class NodeAnswers(Document):
    """The outputs of a command that was run on every node."""

    kind: ClassVar[str] = "NodeAnswerList"

    items: list[NodeAnswer]

    def names(self) -> list[str]:
        """Every node that was asked."""
        return [answer.node for answer in self.items]


class FleetVersions(Document):
    """The version of this command, and the nodes of each version of the agent. `unanswered` says of each node without
    an answer why."""

    kind: ClassVar[str] = "VersionList"

    client: str
    agents: dict[str, list[str]]
    unanswered: dict[str, str]

    def names(self) -> list[str]:
        """The versions, that of this command first."""
        return [self.client, *self.agents]


def versions(nodes: Sequence[FleetNode]) -> FleetVersions:
    """The versions of these nodes' agents, the most frequent first."""
    found: dict[str, list[str]] = {}
    unanswered: dict[str, str] = {}
    for answer in nodes:
        if answer.status is not None and answer.status.version:
            found.setdefault(answer.status.version, []).append(answer.node)
        else:
            unanswered[answer.node] = answer.error or "no agent answers"
    agents = dict(sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0])))
    return FleetVersions(__version__, agents, unanswered)


def print_versions(found: FleetVersions, screen: Screen) -> None:
    """Print a line for each version."""
    screen.line(f"kubectl-kroute  {found.client}")
    for version, nodes in found.agents.items():
        count = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
        which = "" if len(found.agents) == 1 else f": {', '.join(_some(nodes))}"
        screen.line(f"agents          {version} on {count}{which}", hang=16)
    for node, reason in found.unanswered.items():
        screen.line(f"NO ANSWER       {node}: {reason}", hang=16, fg="red")


def answer(node: FleetNode, found: Output | KubectlError) -> NodeAnswer:
    """A node's answer: what its command has written, or why it was not run."""
    differences = list(node.differences)
    if isinstance(found, KubectlError):
        return NodeAnswer(node.node, error=str(found), differences=differences)
    try:
        return NodeAnswer(node.node, found.code, msgspec.json.decode(found.out), differences=differences)
    except msgspec.DecodeError:
        lines = found.out.decode(errors="replace").splitlines()
        return NodeAnswer(node.node, found.code, lines=lines, differences=differences)


def marked(answers: list[NodeAnswer]) -> list[NodeAnswer]:
    """The answers, with a mark for each node whose command ended with another exit code than most."""
    ended = [answer for answer in answers if not answer.error]
    most = usual(answer.exit_code for answer in ended)
    for each in ended if len({answer.exit_code for answer in ended}) > 1 else ():
        if each.exit_code != most:
            each.differences.append(f"exit code {each.exit_code}" + ("" if most is None else f", others {most}"))
    return answers


def print_fleet(fleet: Fleet, screen: Screen) -> None:
    """Print a line for each node; differences and problems below, each problem once with the nodes that have it."""
    table = TextTable(*_HEADINGS, *(_WIDE if screen.is_wide else ()), numbers=(*_HEADINGS[4:8], "Pending"))
    for node in fleet.items:
        table.add(*_cells(node), *(_more_cells(node) if screen.is_wide else ()))
    screen.table(table)
    for node in fleet.items:
        if node.error:
            screen.line(f"NO ANSWER  {node.node}: {node.error}", hang=11, fg="red")
    for sentence in fleet.without_pod:
        screen.line(f"NO POD     {sentence}", hang=11, fg="red")
    for node in fleet.items:
        for difference in node.differences:
            screen.line(f"DIFFERS    {node.node}: {difference}", hang=11, fg="yellow")
    _print_problems(fleet.items, screen)


def _cells(node: FleetNode) -> list[object]:
    status = node.status
    if status is None:
        return [node.node, "no answer", *["-"] * (len(_HEADINGS) - 2)]
    served = status.served
    counts = (served.services, served.virtual_servers, served.real_servers, status.problems_total)
    differs = "yes" if node.differences else "no"
    return [node.node, status.state.value, status.version or "-", status.firewall or "-", *counts, differs]


def _more_cells(node: FleetNode) -> list[object]:
    found = (node.status.pending, node.status.last_resync or "-") if node.status else ("-", "-")
    return [*found, node.via or "-", node.pod]


def _print_problems(nodes: Sequence[FleetNode], screen: Screen) -> None:
    having: dict[StatusProblem, list[str]] = {}
    for node in nodes:
        for problem in node.status.problems if node.status else ():
            having.setdefault(problem, []).append(node.node)
    for problem, names in list(having.items())[:SHOWN]:
        where = "all nodes" if len(names) == len(nodes) > 1 else ", ".join(_some(names))
        print_problem(problem, f"{where}: {problem.service}" if problem.service else where, screen)
    if len(having) > SHOWN:
        screen.line(f"and {len(having) - SHOWN} more problems: -o json has them")


def _some(names: Sequence[str]) -> list[str]:
    more = len(names) - NAMED_NODES
    return [*names[:NAMED_NODES], f"{more} more"] if more > 0 else list(names)


def print_answers(answers: NodeAnswers, screen: Screen) -> None:
    """Print every node's output below its name, with what it has differently."""
    for number, answered in enumerate(answers.items):
        mark = f"  DIFFERS: {'; '.join(answered.differences)}" if answered.differences else ""
        if number:
            screen.line()
        screen.line(f"== {answered.node} =={mark}", bold=True, fg="yellow" if mark else None)
        if answered.error:
            screen.line(f"no answer: {answered.error}", fg="red")
        for line in answered.lines:
            click.echo(printable(line))
