"""The read model: the figures of each planned Service, which say what the kernel has of it.

Metrics, `kroute status` of an agent or a director, the status page and `kroute show services` all use it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import ClassVar, NamedTuple, Self

import msgspec

from kroute.inspect.snapshot import Snapshot
from kroute.kernel.clients import IpvsReader
from kroute.kernel.ipvs.objects import Traffic, VirtualServerKey, VirtualServerState
from kroute.model.document import Document, View
from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan, VirtualServer
from kroute.reconcile.batches import sliced
from kroute.reconcile.comparison.virtual_servers import Condition, condition_of, count_ejected, count_real_servers

_NO_TRAFFIC = Traffic()


class Rates(msgspec.Struct, frozen=True, rename="camel"):
    """What happens in a second: new connections, packets and bytes from clients (in) and to them (out)."""

    connections: float = 0.0
    packets_in: float = 0.0
    packets_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    @classmethod
    def between(cls, before: Traffic, now: Traffic, seconds: float) -> Self:
        """The rates between two readings of the counters, which began at 0 if the virtual server was added again."""
        if now.connections < before.connections:
            before = _NO_TRAFFIC
        return cls(*(max(0, new - old) / seconds for new, old in zip(now, before, strict=True)))


class Figures(msgspec.Struct):
    """The counts of one virtual server, or the sums of several: real servers by condition, connections, traffic.

    `refusing` and `missing` count virtual servers. `serving` counts the real servers that take new connections.
    """

    virtual_servers: int = 0
    refusing: int = 0
    missing: int = 0
    serving: int = 0
    ejected: int = 0
    draining: int = 0
    missing_real_servers: int = 0
    active: int = 0
    inactive: int = 0
    traffic: Traffic = _NO_TRAFFIC

    @property
    def state(self) -> Condition | None:
        """The worst of the virtual servers; missing if a real server is missing; None without virtual servers."""
        if self.missing or self.missing_real_servers:
            return Condition.MISSING
        if self.refusing:
            return Condition.REFUSING
        return Condition.SERVING if self.virtual_servers else None

    def include(self, other: "Figures") -> None:
        """Add those of other virtual servers."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.traffic = Traffic(*map(sum, zip(self.traffic, other.traffic, strict=True)))


_COUNTS = [name for name in Figures.__struct_fields__ if name != "traffic"]


class Reading(NamedTuple):
    """The figures of each planned Service, and of all of them together."""

    services: Mapping[ObjectKey, Figures]
    total: Figures


def figures_of(desired: VirtualServer, applied: VirtualServerState | None, traffic: Traffic = _NO_TRAFFIC) -> Figures:
    """The figures of one virtual server."""
    present = applied.real_servers if applied is not None else {}
    condition, counts = condition_of(desired, applied), count_real_servers(desired.real_servers, present)
    ejected = count_ejected(desired, present)
    return Figures(
        virtual_servers=1,
        refusing=int(condition is Condition.REFUSING),
        missing=int(condition is Condition.MISSING),
        serving=counts.serving,
        ejected=ejected,
        draining=counts.draining - ejected,
        missing_real_servers=counts.missing,
        active=sum([real.active for real in present.values()]),
        inactive=sum([real.inactive for real in present.values()]),
        traffic=traffic,
    )


async def read_figures(plans: Collection[ServicePlan], ipvs: IpvsReader, *, with_traffic: bool = True) -> Reading:
    """Read the figures of these plans. Other tasks run in between. Raises KernelError."""
    traffic = await ipvs.traffic() if with_traffic else {}
    services: dict[ObjectKey, Figures] = {}
    missing: dict[VirtualServerKey, tuple[Figures, VirtualServer]] = {}
    total = Figures()
    async for batch in sliced(plans):
        for plan in batch:
            of_service = services[plan.key] = Figures()
            missing.update((server.key, (of_service, server)) for server in plan.virtual_servers)

    def count(planned: tuple[Figures, VirtualServer], state: VirtualServerState | None) -> None:
        of_service, server = planned
        found = figures_of(server, state, traffic.get(server.key, _NO_TRAFFIC))
        of_service.include(found)
        total.include(found)

    async for part in ipvs.scan([key for key, (_, server) in missing.items() if server.real_servers]):
        for key, state in part:
            if key in missing:
                count(missing.pop(key), state)
    async for absent in sliced(missing.values()):
        for planned in absent:
            count(planned, None)
    return Reading(services, total)


class ServiceRow(View):
    """One Service in one line.

    `state` is the worst of its virtual servers: missing, refusing, serving. `serving` counts the real servers of all
    its virtual servers that take new connections.
    """

    service: str
    virtual_servers: int
    serving: int
    active: int
    inactive: int
    state: Condition
    problems: list[str]


class ServiceList(Document):
    """The Services that this node's agent serves, with one line each."""

    kind: ClassVar[str] = "ServiceList"

    items: list[ServiceRow]

    def names(self) -> list[str]:
        """The Services, as `kroute show service` and `kroute explain` take them."""
        return [row.service for row in self.items]


def list_services(snapshot: Snapshot) -> ServiceList:
    """The Services of an agent's snapshot by name, including those that only have problems."""
    figures: defaultdict[str, Figures] = defaultdict(Figures)
    problems: defaultdict[str, list[str]] = defaultdict(list)
    for server in snapshot.virtual_servers:
        of_server = Figures(
            virtual_servers=1,
            refusing=int(server.state == Condition.REFUSING),
            missing=int(server.state == Condition.MISSING),
            serving=server.serving,
            missing_real_servers=sum(real.state == Condition.MISSING for real in server.real_servers),
            active=server.active,
            inactive=server.inactive,
        )
        figures[server.service].include(of_server)
    for problem in snapshot.problems:
        problems[problem.service].append(f"{problem.reason}: {problem.message}")
    rows = []
    for name in sorted((figures.keys() | problems.keys()) - {""}):
        of = figures[name]
        counts = of.virtual_servers, of.serving, of.active, of.inactive
        rows.append(ServiceRow(name, *counts, of.state or Condition.SERVING, problems[name]))
    return ServiceList(rows)
