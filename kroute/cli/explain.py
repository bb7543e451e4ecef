"""`kroute explain`: why a packet to an address and port goes where it goes."""

import asyncio
from collections.abc import Iterator

import click

from kroute.base.wording import host_port
from kroute.cli.parameters.arguments import (
    AddressPorts,
    ServicePorts,
    Target,
    complete_service,
    parse_target,
)
from kroute.cli.parameters.options import Parsed
from kroute.cli.parameters.run_options import settings_in_force
from kroute.cli.parameters.settings_command import FlagsCommand
from kroute.cli.show.table import ask_or_read, endpoint_text
from kroute.cli.terminal.formats import output_option, show
from kroute.cli.terminal.output import DIFFERENT, DONE, NO_AGENT, NOT_SERVED, UNKNOWN, complain, refusing
from kroute.cli.terminal.screen import Screen
from kroute.inspect import agent_socket, planned_state
from kroute.inspect.explain import Client, Explanation, ExplanationList, Fate
from kroute.inspect.explain import explain as explain_packet
from kroute.inspect.planned_state import PlannedState
from kroute.kernel.errors import KernelError
from kroute.model.node_facts import node_facts
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.planning.endpoint_reasons import FrontendView
from kroute.settings import Settings
from kroute.settings.text import parse_address
from kroute.watchers.node import read_node_interfaces

_COLOURS = {Fate.SERVED: "green", Fate.REFUSED: "red", Fate.DROPPED: "red"}
TARGET = "ADDRESS[:PORT] | SERVICE[:PORT]"


@click.command(cls=FlagsCommand)
@click.argument("target", type=Parsed(TARGET, parse_target), metavar=TARGET, shell_complete=complete_service)
@click.option(
    "--from",
    "client",
    type=Parsed("ADDRESS", parse_address),
    default=None,
    help="The packet's source: an address of this node, a pod's, or any other.  [default: one of each kind]",
)
@output_option
@settings_in_force
def explain(settings: Settings, *, target: Target, client: str | None, output: str) -> int:
    """Say why a packet to ADDRESS:PORT, or to a Service, goes where it goes.

    A Service is written NAMESPACE/NAME or NAME.NAMESPACE, and its PORT is a name or a number: default/web,
    web.default:http. IPv6 addresses with a port are written in brackets: [fd00::1]:80. A protocol other than TCP goes
    at the end: 10.96.0.10:53/UDP. Without a port, all ports of the address or Service are explained.

    Exits with 0 if every client that was examined is served, with 3 if one is refused or dropped, with 4 if no Service
    has the address and port, with 5 if the kernel differs from the plan, and with 1 if that cannot be found out.
    """
    with refusing(KernelError):
        found = asyncio.run(_explain(settings, target, client))
    if not found.items:
        complain(f"not served on this node: {_called(target)}; {_what_to_do(target)}")
        return UNKNOWN
    show(found, output, print_explanations)
    return exit_code(found)


def exit_code(found: ExplanationList) -> int:
    """The exit code. If several apply, the most important one."""
    codes = set(map(_exit_code, found.items))
    return next((code for code in (DIFFERENT, UNKNOWN, NOT_SERVED) if code in codes), DONE)


def _exit_code(found: Explanation) -> int:
    if found.differences and found.source == "agent":
        return DIFFERENT
    if not found.is_known:
        return UNKNOWN
    return DONE if all(verdict.fate is Fate.SERVED for verdict in found.verdicts) else NOT_SERVED


async def _explain(settings: Settings, target: Target, client: str | None) -> ExplanationList:
    facts = node_facts(settings, None, await read_node_interfaces(settings.dummy_interface))
    if isinstance(target, VirtualServerKey):
        keys = [target]
    else:
        keys = await (_keys_of(settings, target) if isinstance(target, ServicePorts) else _keys_at(settings, target))
    found = [await explain_packet(settings, key, client, await _ask(settings, key), facts) for key in keys]
    return ExplanationList(found)


async def _keys_at(settings: Settings, ports: AddressPorts) -> list[VirtualServerKey]:
    """The virtual servers at an address, as the agent plans them, or without an agent those of the kernel."""
    shown = await ask_or_read(settings.state_dir)
    keys = [VirtualServerKey(Protocol[row.protocol], row.address, row.port) for row in shown.virtual_servers]
    return [key for key in keys if key.address == ports.address and ports.protocol in {None, key.protocol}]


async def _keys_of(settings: Settings, ports: ServicePorts) -> list[VirtualServerKey]:
    """The addresses and ports of a Service, as the agent knows them. Raises CommandRefusedError without an agent."""
    question = f"{planned_state.SERVICE} {ports.service}"
    hint = "only the agent knows Services: write ADDRESS:PORT"
    with refusing(agent_socket.AgentUnreachableError, code=NO_AGENT, hint=hint):
        known = await agent_socket.ask_for(settings.state_dir, question, planned_state.decode)
    frontends = known.view.frontends if known is not None and known.view is not None else []
    return [frontend.key for frontend in frontends if is_meant(frontend, ports)]


def is_meant(frontend: FrontendView, ports: ServicePorts) -> bool:
    """Whether these ports of a Service include this address and port."""
    return (
        ports.port in {"", frontend.port_name, str(frontend.port)}
        and (ports.protocol is None or ports.protocol.name == frontend.protocol)
        and (not ports.by_name or frontend.kind == "clusterIP")
    )


def _called(target: Target) -> str:
    match target:
        case ServicePorts():
            port = f"port {target.port} of " if target.port else ""
            return f"{port}Service {target.service}"
        case AddressPorts():
            return f"{target.address}/{target.protocol.name}" if target.protocol else target.address
    return str(target)


def _what_to_do(target: Target) -> str:
    if isinstance(target, AddressPorts) and ":" in target.address:
        return "`kroute show` lists what is served; an IPv6 address with a port is written [ADDRESS]:PORT"
    return "`kroute show services` lists the Services, `kroute show` their addresses"


async def _ask(settings: Settings, key: VirtualServerKey) -> PlannedState | None:
    try:
        return await agent_socket.ask_for(settings.state_dir, planned_state.question_about(key), planned_state.decode)
    except agent_socket.AgentUnreachableError:
        return None


def print_explanations(found: ExplanationList, screen: Screen) -> None:
    """Print each explanation, with an empty line between two."""
    if any(explanation.source == "kernel" for explanation in found.items):
        screen.line("No agent answers on this node: this is what the kernel has, by the settings given here.", err=True)
    for number, explanation in enumerate(found.items):
        if number:
            screen.line()
        _print_explanation(explanation, screen)


def _print_explanation(found: Explanation, screen: Screen) -> None:
    """Print one explanation, from the address to the clients."""
    screen.line(str(found.key), bold=True)
    lines = (("Service", _service(found)), ("address", _address(found)), ("route", _route(found)))
    for name, text in (*lines, *_real_servers(found)):
        screen.line(f"{name:<10}{text}", hang=10 if name else 14)
    _print_verdicts(found, screen)
    for difference in found.differences:
        screen.line(f"differs: {difference}", hang=4, fg="yellow")
    for problem in found.problems:
        screen.line(f"problem: {problem}", hang=4, fg="yellow")


def _print_verdicts(found: Explanation, screen: Screen) -> None:
    """Print what becomes of each client, and below it which source the real servers see."""
    names = [_client(verdict.client) for verdict in found.verdicts]
    width = max(map(len, names), default=0) + 2
    for name, verdict in zip(names, found.verdicts, strict=True):
        fate = verdict.fate.value
        screen.marked(f"{name:<{width}}{fate}: {verdict.why}", fate, _COLOURS.get(verdict.fate), hang=width)
        if verdict.masquerade:
            screen.line(f"{'':<{width}}{verdict.masquerade}", hang=width)


def _client(client: Client) -> str:
    return f"from {client.name}" + (f" ({client.address})" if client.address != client.name else "")


def _service(found: Explanation) -> str:
    if found.frontend is None:
        return found.service or ("none has it" if found.source == "agent" else "not known")
    frontend = found.frontend
    name = f" port {frontend.port_name}," if frontend.port_name else ""
    held = f", but {frontend.held_by} has it, which is older" if frontend.held_by else ""
    return f"{found.service},{name} {frontend.kind}, traffic policy {frontend.policy}{held}"


def _address(found: Explanation) -> str:
    if found.is_steered:
        return "on no link, delivered to this node by direct return"
    return "bound to the dummy interface" if found.is_bound else "not a VIP of this node"


def _route(found: Explanation) -> str:
    if (route := found.route) is None:
        return "none"
    kind = "for this node" if route.is_local else "to elsewhere"
    return f"{kind} by {route.interface}, source {route.source or 'chosen by the kernel'}"


def _real_servers(found: Explanation) -> Iterator[tuple[str, str]]:
    """Each endpoint with its reason and the kernel's state of it."""
    why = f", {found.scheduler_reason}" if found.scheduler_reason else ""
    yield "IPVS", f"virtual server, scheduler {found.scheduler}{why}" if found.scheduler else "no virtual server"
    if found.frontend is not None and found.frontend.forwarding:
        yield "", f"packets go on {found.frontend.forwarding}"
    present = {(server.address, server.port): server for server in found.real_servers}
    for endpoint in found.frontend.endpoints if found.frontend else ():
        server = present.pop((endpoint.address, endpoint.port), None)
        kernel = f", weight {server.weight}, {server.active} active connections" if server else ""
        yield "", f"{endpoint_text(endpoint)}{kernel}"
    for server in present.values():
        state = f"{'serves' if server.weight else 'drains'}, weight {server.weight}, {server.active} active connections"
        yield "", f"    {host_port(server.address, server.port)}: {state}"
