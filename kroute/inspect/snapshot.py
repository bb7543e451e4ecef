"""The plans and the kernel's state side by side, as `kroute show` prints them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

import msgspec

from kroute.base.forwarding import MASQUERADING
from kroute.base.schedulers import flag_words
from kroute.base.wording import host_port
from kroute.firewall.backend import Choice
from kroute.firewall.sets import SetFill
from kroute.kernel.ipvs.objects import RealServerState, Traffic, VirtualServerKey, VirtualServerState
from kroute.model.document import Document, View
from kroute.model.plan import NodePlan, Plan, Protocol, VirtualServer
from kroute.reconcile.comparison.virtual_servers import (
    TAKES_CONNECTIONS,
    Condition,
    condition_of,
    is_climbing,
    is_ejected,
    missing_real_servers,
    options_of,
    real_server_condition,
)

QUESTION = "show"
"""The question that an agent or a director answers with a Snapshot."""


class RealServerView(View):
    """A real server with the kernel's counts of its connections."""

    address: str
    port: int
    weight: int
    active: int
    inactive: int


class RealServerRow(RealServerView):
    """One real server. `state` is serving, climbing, ejected, draining, or missing (planned, not in the kernel).

    `method` is how packets are forwarded to it, in the kernel's word: Masq, Tunnel or Route.
    """

    state: Condition
    method: str = MASQUERADING


class TrafficCounts(View):
    """What has gone through a virtual server: connections, and packets and bytes from clients (in) and to them (out).

    Real servers with direct routing answer the clients directly, so their answers do not count as packets or bytes out.
    """

    connections: int
    packets_in: int
    packets_out: int
    bytes_in: int
    bytes_out: int


class VirtualServerRow(View):
    """One virtual server. `service` is empty if it is not known. Times are in seconds.

    `traffic` counts since the virtual server was added; None if it was not requested.

    `state` is serving, refusing (planned without real servers: clients are refused), or missing (planned with real
    servers, and not in the kernel).
    """

    service: str
    protocol: str
    address: str
    port: int
    scheduler: str
    flags: tuple[str, ...]
    persistence_timeout: int | None
    persistence_prefix: int | None
    state: Condition
    real_servers: list[RealServerRow]
    traffic: TrafficCounts | None = None

    @property
    def key(self) -> VirtualServerKey:
        """The kernel's key of the virtual server."""
        return Protocol[self.protocol], self.address, self.port

    @property
    def serving(self) -> int:
        """The number of real servers that take new connections."""
        return sum(real.state in TAKES_CONNECTIONS for real in self.real_servers)

    @property
    def active(self) -> int:
        """The number of established connections."""
        return sum(real.active for real in self.real_servers)

    @property
    def inactive(self) -> int:
        """The number of connections that begin or end, and of UDP flows."""
        return sum(real.inactive for real in self.real_servers)


class ProblemRow(View):
    """A problem of a Service. `service` is empty for a problem of the node itself."""

    service: str
    reason: str
    message: str


class Snapshot(Document):
    """The virtual servers of this node.

    `source` is `agent`, or `kernel` if no agent answered. Only an agent knows its firewall, and how full its sets are.
    """

    kind: ClassVar[str] = "VirtualServerList"

    source: str
    virtual_servers: list[VirtualServerRow] = msgspec.field(name="items")
    problems: list[ProblemRow]
    sets: list[SetFill] = msgspec.field(default_factory=list)
    firewall: Choice | None = None

    def names(self) -> Iterator[str]:
        """The virtual servers, as `kroute explain` takes them."""
        return (f"{host_port(row.address, row.port)}/{row.protocol}" for row in self.virtual_servers)

    def add_traffic(self, traffic: Mapping[VirtualServerKey, Traffic]) -> None:
        """Add these counters to the virtual servers that have some."""
        for row in self.virtual_servers:
            row.traffic = TrafficCounts(*counted) if (counted := traffic.get(row.key)) is not None else None


def decode(answer: bytes) -> Snapshot:
    """The agent's answer. Raises DecodeError for the answer of another version."""
    return msgspec.json.decode(answer, type=Snapshot)


KernelTable = Mapping[VirtualServerKey, VirtualServerState]


def of_agent(
    plans: Iterable[Plan], table: KernelTable, sets: Iterable[SetFill] = (), firewall: Choice | None = None
) -> Snapshot:
    """Every planned virtual server with the kernel's counts, in the order of the Services' names."""
    snapshot = Snapshot("agent", [], [], list(sets), firewall)
    for plan in sorted(plans, key=lambda plan: plan.key):
        service = plan.service_name
        for planned in () if isinstance(plan, NodePlan) else plan.virtual_servers:
            snapshot.virtual_servers.append(_planned_row(service, planned, table.get(planned.key)))
        snapshot.problems.extend(ProblemRow(service, problem.reason, problem.message) for problem in plan.problems)
    return snapshot


def of_kernel(table: KernelTable) -> Snapshot:
    """Every virtual server of the kernel's table, including foreign ones."""
    return Snapshot("kernel", [_row("", key, table[key]) for key in sorted(table)], [])


def _planned_row(service: str, planned: VirtualServer, state: VirtualServerState | None) -> VirtualServerRow:
    shown = state or VirtualServerState(options_of(planned), {})
    row = _row(service, planned.key, shown)
    row.state = condition_of(planned, state)
    changes = planned.slow_start or planned.ejection
    weights = {(real.address, real.port): real.weight for real in planned.real_servers} if changes else {}
    for real in row.real_servers if changes else ():
        weight = weights.get((real.address, real.port), 0)
        if is_climbing(planned, weight, real.weight):
            real.state = Condition.CLIMBING
        elif is_ejected(planned, weight, real.weight):
            real.state = Condition.EJECTED
    row.real_servers += [
        RealServerRow(each.address, each.port, each.weight, 0, 0, Condition.MISSING, planned.method)
        for each in missing_real_servers(planned.real_servers, shown.real_servers)
    ]
    return row


def _row(service: str, key: VirtualServerKey, state: VirtualServerState) -> VirtualServerRow:
    protocol, address, port = key
    options = state.options
    persistent = options.persistence_timeout > 0
    return VirtualServerRow(
        service=service,
        protocol=Protocol(protocol).name,
        address=address,
        port=port,
        scheduler=options.scheduler,
        flags=flag_words(options.scheduler, options.flags),
        persistence_timeout=options.persistence_timeout if persistent else None,
        persistence_prefix=options.persistence_prefix if persistent else None,
        state=Condition.SERVING,
        real_servers=[_real_server_row(*each) for each in sorted(state.real_servers.items())],
    )


def _real_server_row(key: tuple[str, int], state: RealServerState) -> RealServerRow:
    return RealServerRow(*key, state.weight, state.active, state.inactive, real_server_condition(state), state.method)
