"""`kroute explain`: why a packet to an address and port goes where it goes."""

import asyncio

import click
import msgspec

from kroute import logs
from kroute.cli.parameters.arguments import parse_address, parse_frontend
from kroute.cli.parameters.options import Parsed, output_option
from kroute.cli.parameters.other_proxies_flags import FlagsCommand
from kroute.cli.parameters.settings_in_force import settings_in_force
from kroute.cli.terminal.output import host_port, refusing, show
from kroute.inspect import agent_socket, planned_state
from kroute.inspect.explain import Explanation
from kroute.inspect.explain import explain as explain_packet
from kroute.inspect.planned_state import PlannedState
from kroute.inspect.verdicts import Fate
from kroute.kernel.errors import KernelError
from kroute.model.node_facts import node_facts
from kroute.model.plan import VirtualServerKey
from kroute.settings import Settings
from kroute.watchers.node import read_node_interfaces

SERVED, NOT_SERVED, UNKNOWN, DIFFERENT = 0, 3, 4, 5
"""Exit codes."""

_COLOURS = {Fate.SERVED: "green", Fate.REFUSED: "red", Fate.DROPPED: "red"}


@click.command(cls=FlagsCommand)
@click.argument("frontend", type=Parsed("ADDRESS:PORT[/udp]", parse_frontend), metavar="ADDRESS:PORT[/udp]")
@click.option(
    "--from",
    "client",
    type=Parsed("ADDRESS", parse_address),
    default=None,
    help="The packet's source: an address of this node, a pod's, or any other.  [default: one of each kind]",
)
@output_option("table", "json")
@settings_in_force
def explain(settings: Settings, *, frontend: VirtualServerKey, client: str | None, output: str) -> int:
    """Say why a packet to ADDRESS:PORT goes where it goes.

    IPv6 addresses are written in brackets: [fd00::1]:80. Exits with 0 if every client that was examined is served, with
    3 if one is refused or dropped, with 4 if no Service has the address and port, with 5 if the kernel differs from the
    plan, and with 1 if that cannot be found out.
    """
    logs.configure("console", "error")  # only the explanation is printed
    with refusing(KernelError):
        found = asyncio.run(_explain(settings, frontend, client))
    show(found, output, print_explanation)
    return exit_code(found)


def exit_code(found: Explanation) -> int:
    """The exit code. If several apply, the most important one."""
    if found.differences and found.source == "agent":
        return DIFFERENT
    if not found.is_known:
        return UNKNOWN
    return SERVED if all(verdict.fate is Fate.SERVED for verdict in found.verdicts) else NOT_SERVED


async def _explain(settings: Settings, key: VirtualServerKey, client: str | None) -> Explanation:
    facts = node_facts(settings, None, await read_node_interfaces(settings.dummy_interface))
    return await explain_packet(settings, key, client, await _ask(settings, key), facts)


async def _ask(settings: Settings, key: VirtualServerKey) -> PlannedState | None:
    try:
        return planned_state.decode(await agent_socket.ask(settings.state_dir, planned_state.question_about(key)))
    except (agent_socket.AgentUnreachableError, msgspec.DecodeError):
        return None


def print_explanation(found: Explanation) -> None:
    """Print the explanation, from the address to the clients."""
    if found.source == "kernel":
        click.echo("No agent answers on this node: this is what the kernel has, by the settings given here.", err=True)
    click.secho(str(found.key), bold=True)
    _line("Service", _service(found))
    _line("address", "bound to the dummy interface" if found.is_bound else "not a VIP of this node")
    _line("route", _route(found))
    _print_real_servers(found)
    for verdict in found.verdicts:
        fate = click.style(verdict.fate.value, fg=_COLOURS.get(verdict.fate))
        name = verdict.client.name
        who = f"from {name}" + (f" ({verdict.client.address})" if verdict.client.address != name else "")
        _line(who, f"{fate}: {verdict.why}", width=42)
        if verdict.masquerade:
            _line("", verdict.masquerade, width=42)
    for difference in found.differences:
        click.secho(f"differs: {difference}", fg="yellow")
    for problem in found.problems:
        click.secho(f"problem: {problem}", fg="yellow")


def _service(found: Explanation) -> str:
    if found.frontend is None:
        return found.service or ("none has it" if found.source == "agent" else "not known")
    frontend = found.frontend
    held = f", but {frontend.held_by} has it, which is older" if frontend.held_by else ""
    return f"{found.service}, {frontend.kind}, traffic policy {frontend.policy}{held}"


def _route(found: Explanation) -> str:
    if found.route is None:
        return "none"
    kind = "for this node" if found.route.is_local else "to elsewhere"
    return f"{kind} by {found.route.interface}, source {found.route.source or 'chosen by the kernel'}"


def _print_real_servers(found: Explanation) -> None:
    """Print each endpoint with its reason and the kernel's state of it."""
    _line("IPVS", f"virtual server, scheduler {found.scheduler}" if found.scheduler else "no virtual server")
    present = {(it.address, it.port): it for it in found.real_servers}
    for endpoint in found.frontend.endpoints if found.frontend else ():
        server = present.pop((endpoint.address, endpoint.port), None)
        kernel = f", weight {server.weight}, {server.active} active connections" if server else ""
        where = f" on {endpoint.node}" if endpoint.node else ""
        word = "in " if endpoint.serves else "out"
        _line("", f"{word} {host_port(endpoint.address, endpoint.port)}{where}: {endpoint.reason}{kernel}")
    for server in present.values():
        state = "serves" if server.weight else "drains"
        text = f"{host_port(server.address, server.port)}: {state}, weight {server.weight}, {server.active} active"
        _line("", f"    {text} connections")


def _line(name: str, text: str, width: int = 10) -> None:
    click.echo(f"{name:<{width}}{text}")
