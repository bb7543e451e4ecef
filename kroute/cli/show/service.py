"""`kroute show service`: one Service in full: its API object, its plan, the kernel's state, and its clients."""

import asyncio
from collections import Counter
from pathlib import Path

import click
import msgspec
from rich.text import Text

from kroute.cli.show.table import console, new_table, print_table
from kroute.cli.terminal.output import DONE, FAILURE, complain, host_port, refusing, show
from kroute.comparison import set_entries, source_routes
from kroute.firewall.backend import choose, clients_of, firewall_of, settled
from kroute.firewall.protocol import Firewall
from kroute.inspect import agent_settings, agent_socket, planned_state, snapshot
from kroute.inspect.planned_state import PlannedState
from kroute.inspect.snapshot import Snapshot, VirtualServerRow
from kroute.kernel.clients import IpvsClient
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.connections import Connection, read_connections
from kroute.kernel.net.route_lookup import RouteLookup
from kroute.kernel.node_kernel import NodeKernel, open_kernel
from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import AddressSet, ServicePlan, SetEntry, Vip
from kroute.planning.endpoint_reasons import FrontendView
from kroute.settings import DEFAULTS

CLIENTS_SHOWN = 20
"""Clients in the table. JSON and YAML have every connection."""


class VipView(msgspec.Struct):
    """An address of the Service on the dummy interface, and the source of this node's own calls to it."""

    address: str
    is_bound: bool
    planned_source: str | None
    source: str | None


class EntryView(msgspec.Struct):
    """A desired set entry. `is_there`: whether the set has it."""

    set: str
    element: str
    is_there: bool


class ServiceReport(msgspec.Struct):
    """Everything about one Service on this node."""

    service: Service
    frontends: list[FrontendView]
    virtual_servers: list[VirtualServerRow]
    vips: list[VipView]
    set_entries: list[EntryView]
    connections: list[Connection]
    problems: list[str]


def main(state_dir: Path, key: ObjectKey, how: str) -> int:
    """Print everything about a Service. Returns 1 if it does not exist, or no agent runs."""
    try:
        with refusing(KernelError, msgspec.DecodeError):
            report = asyncio.run(_report(state_dir, key))
    except agent_socket.AgentUnreachableError as error:
        complain(f"{error}; only the agent knows of Services (`kroute explain` works without it)")
        return FAILURE
    if report is None:
        complain(f"the agent knows no Service {key}: `kroute show services` lists those it knows")
        return FAILURE
    show(report, how, print_report)
    return DONE


async def _report(state_dir: Path, key: ObjectKey) -> ServiceReport | None:
    known = planned_state.decode(await agent_socket.ask(state_dir, f"{planned_state.SERVICE} {key}"))
    if known is None or known.view is None:
        return None
    settings = await agent_settings.ask(state_dir) or DEFAULTS
    settings = settled(settings, await choose(settings))
    plan = ServicePlan(key, virtual_servers=tuple(known.virtual_servers))
    async with open_kernel(only=("ipvs", "addresses", *clients_of(settings))) as kernel, RouteLookup() as lookup:
        shown = snapshot.of_agent([plan], await kernel.ipvs.read())
        await _add_traffic(shown, kernel.ipvs)
        return ServiceReport(
            service=known.view.service,
            frontends=known.view.frontends,
            virtual_servers=shown.virtual_servers,
            vips=await _vips(known, kernel, lookup, settings.dummy_interface),
            set_entries=await _entries(known, firewall_of(settings, kernel)),
            connections=await read_connections([row.key for row in shown.virtual_servers]),
            problems=known.problems,
        )


async def _add_traffic(shown: Snapshot, ipvs: IpvsClient) -> None:
    traffic = await ipvs.traffic()
    for row in shown.virtual_servers:
        row.traffic = traffic.get(row.key)


async def _vips(known: PlannedState, kernel: NodeKernel, lookup: RouteLookup, interface: str) -> list[VipView]:
    bound = await kernel.addresses.read(interface)
    ways = {vip.address: await lookup.towards(vip.address) for vip in known.vips}
    return [
        VipView(address, address in bound, source, way.source if (way := ways[address]) is not None else None)
        for address, source in known.vips
    ]


async def _entries(known: PlannedState, firewall: Firewall) -> list[EntryView]:
    desired = [SetEntry(AddressSet(it.set), it.element) for it in known.entries]
    sets = {it.set for it in desired}
    there = {family: await firewall.read_sets(family, sets) for family in {it.family for it in desired}}
    views = [
        EntryView(
            firewall.set_name(it.family, it.set),
            set_entries.text(it),
            it.element in there[it.family].get(it.set, ()),
        )
        for it in desired
    ]
    return sorted(views, key=lambda view: (view.set, view.element))


def print_report(report: ServiceReport) -> None:
    """Print the report for a person, from the API object to the clients."""
    spec, screen = report.service.spec, console()
    click.secho(f"Service {report.service.key}, {spec.type}", bold=True)
    policies = (("internal", spec.internal_traffic_policy), ("external", spec.external_traffic_policy))
    click.echo("traffic policy: " + ", ".join(f"{name} {value or 'Cluster'}" for name, value in policies))
    click.echo(f"session affinity: {spec.session_affinity}")
    for name, value in (report.service.metadata.annotations or {}).items():
        click.echo(f"annotation {name}: {value}")
    for frontend in report.frontends:
        _print_frontend(frontend)
    for vip in report.vips:
        state = "bound" if vip.is_bound else "NOT bound"
        is_right = source_routes.is_right_source(Vip(vip.address, vip.planned_source), vip.source)
        source = "" if is_right else f", should be {vip.planned_source}"
        click.echo(f"address {vip.address}: {state}, calls from this node have the source {vip.source}{source}")
    missing = [entry for entry in report.set_entries if not entry.is_there]
    click.echo(f"set entries: {len(report.set_entries) - len(missing)} of {len(report.set_entries)} are there")
    for entry in missing:
        click.echo(f"  missing: {entry.element} in {entry.set}")
    print_table(Snapshot("agent", report.virtual_servers, []), screen, wide=True)
    _print_clients(report)
    for problem in report.problems:
        click.secho(problem, fg="yellow")


def _print_frontend(frontend: FrontendView) -> None:
    held = f", held by {frontend.held_by}" if frontend.held_by else ""
    click.echo(f"{frontend.kind} {frontend.key}, policy {frontend.policy}{held}")
    for endpoint in frontend.endpoints:
        where = f" on {endpoint.node}" if endpoint.node else ""
        word = "in " if endpoint.serves else "out"
        click.echo(f"  {word} {host_port(endpoint.address, endpoint.port)}{where}: {endpoint.reason}")


def _print_clients(report: ServiceReport) -> None:
    """Print the clients with the most connections, and the real servers that they use."""
    users = Counter((it.client, host_port(*it.real_server), it.state) for it in report.connections if it.client_port)
    table = new_table("Client", "Real server", "State", "Connections", numbers=("Connections",))
    for (client, server, state), count in users.most_common(CLIENTS_SHOWN):
        table.add_row(*map(Text, (client, server, state, str(count))))
    click.echo(f"connections: {sum(users.values())}")
    if users:
        console().print(table)
    if len(users) > CLIENTS_SHOWN:
        click.echo(f"and {len(users) - CLIENTS_SHOWN} more; -o json has all")
