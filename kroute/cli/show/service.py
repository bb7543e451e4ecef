"""`kroute show service`: one Service in full: its API object, its plan, the kernel's state, and its clients."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import ClassVar

import msgspec

from kroute.base.wording import host_port
from kroute.cli.show.table import endpoint_text, virtual_server_table
from kroute.cli.terminal.formats import show
from kroute.cli.terminal.output import DONE, NO_AGENT, UNKNOWN, complain, refusing
from kroute.cli.terminal.screen import Screen, TextTable
from kroute.firewall.backend import choose, clients_of, firewall_of, settled_on
from kroute.firewall.protocol import Firewall
from kroute.inspect import agent_socket, planned_state, snapshot
from kroute.inspect.planned_state import PlannedState
from kroute.inspect.snapshot import VirtualServerRow
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.connections import Connection, read_connections
from kroute.kernel.net.routes import RouteLookup
from kroute.kernel.node_kernel import NodeKernel, open_kernel
from kroute.model.document import Document, View
from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import Protocol, ServicePlan, Vip
from kroute.planning.endpoint_reasons import FrontendView
from kroute.reconcile.comparison import set_entries, source_routes
from kroute.settings import DEFAULTS

CLIENTS_SHOWN = 20
"""Clients in the table. `-o wide`, JSON and YAML have all."""


class VipView(View):
    """An address of the Service on the dummy interface, and the source of this node's own calls to it."""

    address: str
    is_bound: bool
    planned_source: str | None
    source: str | None


class EntryView(View):
    """A desired set entry. `is_there`: whether the set has it."""

    set: str
    element: str
    is_there: bool


class ConnectionView(View):
    """A client's connection to the virtual server `protocol`, `address` and `port`; IPVS forgets it after `expires`
    seconds. The client's port is 0 for the memory of a persistent virtual server."""

    client_address: str
    client_port: int
    protocol: str
    address: str
    port: int
    real_server_address: str
    real_server_port: int
    state: str
    expires: int


class ServiceReport(Document):
    """Everything about one Service on this node: the API's object, its plan, the kernel's state, and its clients.

    `scheduler` is the one of the plan, and `scheduler_reason` says what has chosen it.
    """

    kind: ClassVar[str] = "ServiceReport"

    service: Service
    frontends: list[FrontendView]
    virtual_servers: list[VirtualServerRow]
    vips: list[VipView]
    set_entries: list[EntryView]
    connections: list[ConnectionView]
    problems: list[str]
    direct_vips: list[str] = msgspec.field(default_factory=list)
    scheduler: str = ""
    scheduler_reason: str = ""

    def names(self) -> list[str]:
        """The Service, as `kroute explain` takes it."""
        return [str(self.service.key)]


def main(state_dir: Path, key: ObjectKey, how: str) -> int:
    """Print everything about a Service. Returns the exit code."""
    hint = "only the agent knows Services: `kroute explain ADDRESS` works without it"
    with refusing(agent_socket.AgentUnreachableError, code=NO_AGENT, hint=hint), refusing(KernelError):
        report = asyncio.run(_report(state_dir, key))
    if report is None:
        complain(f"the agent knows no Service {key}: `kroute show services` lists those that exist")
        return UNKNOWN
    show(report, how, print_report)
    return DONE


async def _report(state_dir: Path, key: ObjectKey) -> ServiceReport | None:
    known = await agent_socket.ask_for(state_dir, f"{planned_state.SERVICE} {key}", planned_state.decode)
    if known is None or known.view is None:
        return None
    settings = await agent_socket.ask_settings(state_dir) or DEFAULTS
    settings = settled_on(settings, (await choose(settings)).name)
    plan = ServicePlan(key, virtual_servers=tuple(known.virtual_servers))
    async with open_kernel(only=("ipvs", "addresses", *clients_of(settings))) as kernel, RouteLookup() as lookup:
        shown = snapshot.of_agent([plan], await kernel.ipvs.read())
        shown.add_traffic(await kernel.ipvs.traffic())
        connections = await read_connections([server.key for server in shown.virtual_servers])
        return ServiceReport(
            service=known.view.service,
            frontends=known.view.frontends,
            virtual_servers=shown.virtual_servers,
            vips=await _vips(known, kernel, lookup, settings.dummy_interface),
            set_entries=await _entries(known, firewall_of(settings, kernel)),
            connections=list(map(_connection_view, connections)),
            problems=known.problems,
            direct_vips=known.direct_vips,
            scheduler=known.view.scheduler,
            scheduler_reason=known.view.scheduler_reason,
        )


def _connection_view(connection: Connection) -> ConnectionView:
    protocol, address, port = connection.virtual_server
    ends = (connection.client, connection.client_port, Protocol(protocol).name, address, port, *connection.real_server)
    return ConnectionView(*ends, connection.state, connection.expires)


async def _vips(known: PlannedState, kernel: NodeKernel, lookup: RouteLookup, interface: str) -> list[VipView]:
    bound = await kernel.addresses.read(interface)
    ways = [await lookup.towards(vip.address) for vip in known.vips]
    return [
        VipView(vip.address, vip.address in bound, vip.source, way.source if way is not None else None)
        for vip, way in zip(known.vips, ways, strict=True)
    ]


async def _entries(known: PlannedState, firewall: Firewall) -> list[EntryView]:
    sets = {entry.set for entry in known.entries}
    there = {family: await firewall.read_sets(family, sets) for family in {entry.family for entry in known.entries}}
    views = []
    for entry in known.entries:
        is_there = entry.element in there[entry.family].get(entry.set, ())
        views.append(EntryView(firewall.set_name(entry.family, entry.set), set_entries.text(entry), is_there))
    return sorted(views, key=lambda view: (view.set, view.element))


def print_report(report: ServiceReport, screen: Screen) -> None:
    """Print the report for a person, from the API object to the clients."""
    spec = report.service.spec
    screen.line(f"Service {report.service.key}, {spec.type}", bold=True)
    policies = (("internal", spec.internal_traffic_policy), ("external", spec.external_traffic_policy))
    screen.line("traffic policy: " + ", ".join(f"{name} {value or 'Cluster'}" for name, value in policies))
    screen.line(f"session affinity: {spec.session_affinity}")
    if report.scheduler:
        screen.line(f"scheduler: {report.scheduler}, {report.scheduler_reason}", hang=2)
    for name, value in (report.service.metadata.annotations or {}).items():
        screen.line(f"annotation {name}: {value}", hang=2)
    for frontend in report.frontends:
        _print_frontend(frontend, screen)
    for address in report.direct_vips:
        screen.line(f"address {address}: on no link, its packets are delivered to this node by direct return", hang=2)
    for vip in report.vips:
        state = "bound" if vip.is_bound else "NOT bound"
        source = f"the source {vip.source}" if vip.source else "a source that the kernel chooses"
        is_right = source_routes.is_right_source(Vip(vip.address, vip.planned_source), vip.source)
        desired = "" if is_right else f", should have {vip.planned_source}"
        screen.line(f"address {vip.address}: {state}, calls from this node have {source}{desired}", hang=2)
    missing = [entry for entry in report.set_entries if not entry.is_there]
    screen.line(f"set entries: {len(report.set_entries) - len(missing)} of {len(report.set_entries)} are there")
    for entry in missing:
        screen.line(f"  missing: {entry.element} in {entry.set}", hang=4)
    screen.table(virtual_server_table(report.virtual_servers, is_wide=screen.is_wide))
    _print_clients(report, screen)
    for problem in report.problems:
        screen.line(problem, hang=4, fg="yellow")


def _print_frontend(frontend: FrontendView, screen: Screen) -> None:
    held = f", held by {frontend.held_by}" if frontend.held_by else ""
    name = f" ({frontend.port_name})" if frontend.port_name else ""
    screen.line(f"{frontend.kind} {frontend.key}{name}, policy {frontend.policy}{held}", hang=2)
    if frontend.forwarding:
        screen.line(f"  packets go on {frontend.forwarding}", hang=4)
    for endpoint in frontend.endpoints:
        screen.line(f"  {endpoint_text(endpoint)}", hang=6)


def _print_clients(report: ServiceReport, screen: Screen) -> None:
    """Print the clients with the most connections, and the real servers that they use; all of them with `-o wide`."""
    used = [connection for connection in report.connections if connection.client_port]
    servers = [host_port(connection.real_server_address, connection.real_server_port) for connection in used]
    users = Counter(
        (connection.client_address, server, connection.state) for connection, server in zip(used, servers, strict=True)
    )
    table = TextTable("Client", "Real server", "State", "Connections", numbers=("Connections",))
    for (client, server, state), count in users.most_common(None if screen.is_wide else CLIENTS_SHOWN):
        table.add(client, server, state, count)
    screen.line(f"connections: {sum(users.values())}")
    if users:
        screen.table(table)
    if len(users) > len(table):
        screen.line(f"and {len(users) - len(table)} more; -o wide, json and yaml have all")
