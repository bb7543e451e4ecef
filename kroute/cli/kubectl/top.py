"""`kubectl kroute top`: connections, packets and bytes a second, by node or by Service, over all nodes."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from kroute.cli.fleet.agents import OTHER_VERSION, AgentPod, run
from kroute.cli.fleet.kubectl import Kubectl, KubectlError
from kroute.cli.show.live import ORDER, ORDERS, RateList, RateRow, rate_cells
from kroute.cli.terminal.screen import Screen, TextTable
from kroute.model.document import Document, View

NODES, SERVICES = "nodes", "services"
_HEADINGS = ("Active", "Inactive", "New/s", "Packets/s", "In/s", "Out/s")


class Total(View):
    """The sums of one node's virtual servers, or of one Service's on all nodes. Rates are per second.

    `nodes` is how many nodes are in the sums.
    """

    name: str
    nodes: int = 0
    active: int = 0
    inactive: int = 0
    connections: float = 0.0
    packets: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    def add(self, rows: Iterable[RateRow]) -> None:
        """Add what one node has."""
        self.nodes += 1
        for row in rows:
            for name in _SUMMED:
                setattr(self, name, getattr(self, name) + getattr(row, name))


_SUMMED = Total.__struct_fields__[2:]


class Totals(Document):
    """The sums by `by`, which is nodes or services. `unanswered` says of each node without an answer why."""

    kind: ClassVar[str] = "RateTotalList"

    by: str
    items: list[Total]
    unanswered: dict[str, str] = msgspec.field(default_factory=dict)

    def names(self) -> list[str]:
        """The nodes or Services, in their order."""
        return [total.name for total in self.items]


async def top(
    kubectl: Kubectl, pods: Sequence[AgentPod], by: str, *, interval: float, order: str | None = None, only: str = ""
) -> Totals:
    """Ask every agent for its rates over an interval (seconds), and add them. `order` is a key of ORDERS, or None.

    `only` is as with `kroute show --filter`.
    """
    chosen = ("--filter", only) if only else ()
    words = ("show", "-w", "--count", "1", "--interval", f"{interval:g}s", "-o", "json", *chosen)
    found = await asyncio.gather(*(_rates(kubectl, pod, words) for pod in pods))
    answers = list(zip([pod.node for pod in pods], found, strict=True))
    answered = {node: answer for node, answer in answers if isinstance(answer, RateList)}
    failed = {node: str(answer) for node, answer in answers if isinstance(answer, KubectlError)}
    return Totals(by, totals(answered, by, order or ORDER), failed)


async def _rates(kubectl: Kubectl, pod: AgentPod, words: Sequence[str]) -> RateList | KubectlError:
    try:
        return msgspec.json.decode((await run(kubectl, pod, words)).out, type=RateList)
    except KubectlError as error:
        return error
    except msgspec.DecodeError:
        return KubectlError(OTHER_VERSION)


def totals(answers: Mapping[str, RateList], by: str, order: str) -> list[Total]:
    """The sums of the nodes' answers, sorted."""
    found: dict[str, Total] = {}
    for node, rates in answers.items():
        groups: dict[str, list[RateRow]] = {node: []} if by == NODES else {}
        for row in rates.items:
            groups.setdefault(node if by == NODES else row.service, []).append(row)
        for name, rows in groups.items():
            found.setdefault(name, Total(name)).add(rows)
    sort = ORDERS[order]
    return sorted(found.values(), key=lambda total: (sort(total), total.name))


def print_totals(found: Totals, screen: Screen) -> None:
    """Print a line for each node or Service, and below them the nodes that have not answered."""
    first = ("Node",) if found.by == NODES else ("Service", "Nodes")
    table = TextTable(*first, *_HEADINGS, numbers=(*_HEADINGS, "Nodes"))
    for row in found.items:
        nodes = () if found.by == NODES else (row.nodes,)
        rates = rate_cells(row, exact=screen.is_wide or screen.repeats)
        table.add(row.name or "-", *nodes, row.active, row.inactive, *rates)
    screen.table(table)
    for node, reason in found.unanswered.items():
        screen.line(f"NO ANSWER  {node}: {reason}", hang=11, fg="red")
