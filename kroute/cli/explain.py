"""`kroute explain`: why a packet to an address and port goes where it goes."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import assert_never

import click

from kroute.base.wording import host_port
from kroute.cli.parameters.arguments import (
    TARGET,
    AddressPorts,
    PodPort,
    ServicePorts,
    Target,
    complete_service,
    parse_client,
    parse_target,
)
from kroute.cli.parameters.options import Parsed
from kroute.cli.parameters.run_options import settings_in_force
from kroute.cli.parameters.settings_command import FlagsCommand
from kroute.cli.show.table import ask_or_read, endpoint_text
from kroute.cli.terminal.formats import output_option, show
from kroute.cli.terminal.output import (
    DIFFERENT,
    DONE,
    NO_AGENT,
    NOT_SERVED,
    UNKNOWN,
    CommandRefusedError,
    complain,
    refusing,
)
from kroute.cli.terminal.screen import Screen
from kroute.inspect import agent_socket, planned_state, policies
from kroute.inspect.explain import Client, Explanation, ExplanationList, Fate, Verdict, judged
from kroute.inspect.explain import explain as explain_packet
from kroute.inspect.planned_state import PlannedState
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import RealServerKey
from kroute.model.addresses import Family, family_of
from kroute.model.node_facts import node_facts
from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.planning.endpoint_reasons import FrontendView
from kroute.planning.policies.verdicts import Judgement, Ruling
from kroute.settings import Settings
from kroute.watchers.node import read_node_interfaces

_COLOURS = {Fate.SERVED: "green", Fate.REFUSED: "red", Fate.DROPPED: "red"}


@click.command(cls=FlagsCommand)
@click.argument("target", type=Parsed(TARGET, parse_target), metavar=TARGET, shell_complete=complete_service)
@click.option(
    "--from",
    "client",
    type=Parsed("ADDRESS | POD", parse_client),
    default=None,
    help="The packet's source: an address of this node, a pod's, any other, or a pod.  [default: one of each kind]",
)
@output_option
@settings_in_force
def explain(settings: Settings, *, target: Target, client: str | ObjectKey | None, output: str) -> int:
    """Say why a packet to ADDRESS:PORT, to a Service or to a pod goes where it goes.

    A Service is written NAMESPACE/NAME or NAME.NAMESPACE, and its PORT is a name or a number: default/web,
    web.default:http. IPv6 addresses with a port are written in brackets: [fd00::1]:80. A protocol other than TCP goes
    at the end: 10.96.0.10:53/UDP. Without a port, all ports of the address or Service are explained. A pod is written
    pod/NAMESPACE/NAME, which the agent knows if it enforces network policies; then it says what they allow, too.

    Exits with 0 if every client that was examined is served or let through to a pod, with 3 if one is refused or
    dropped, with 4 if no Service or pod has the address and port, with 5 if the kernel differs from the plan, and with
    1 if that cannot be found out.
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
    good = {Fate.SERVED, Fate.PASSED_ON} if found.has_rulings else {Fate.SERVED}
    return DONE if all(verdict.fate in good for verdict in found.verdicts) else NOT_SERVED


async def _explain(settings: Settings, target: Target, client: str | ObjectKey | None) -> ExplanationList:
    facts = node_facts(settings, None, await read_node_interfaces(settings.dummy_interface))
    clients = await _addresses(settings, client) if isinstance(client, ObjectKey) else dict.fromkeys(Family, client)
    explained = []
    for key in [key for key in await _keys(settings, target) if family_of(key.address) in clients]:
        source = clients[family_of(key.address)]
        found = await explain_packet(settings, key, source, await _ask(settings, key), facts)
        if settings.network_policies:
            found = await judged(found, partial(_judge, settings, key.protocol))
        explained.append(found)
    return ExplanationList(explained)


async def _keys(settings: Settings, target: Target) -> list[VirtualServerKey]:
    match target:
        case VirtualServerKey():
            return [target]
        case PodPort(pod, port, protocol):
            addresses = await _addresses(settings, pod)
            return [VirtualServerKey(protocol, address, port) for address in addresses.values()]
        case ServicePorts():
            return await _keys_of(settings, target)
        case AddressPorts():
            return await _keys_at(settings, target)
        case _:
            assert_never(target)


async def _addresses(settings: Settings, key: ObjectKey) -> dict[Family, str]:
    """The addresses of a pod. Raises CommandRefusedError if no agent knows it."""
    if not settings.network_policies:
        sentence = "an agent knows pods only if it enforces network policies: write the pod's address"
        raise CommandRefusedError(sentence, NO_AGENT)
    hint = "only the agent knows pods: write the pod's address"
    with refusing(agent_socket.AgentUnreachableError, code=NO_AGENT, hint=hint):
        pod = await agent_socket.ask_for(settings.state_dir, f"{policies.POD} {key}", policies.decode_pod)
    if pod is None:
        why = "check the name; one on its node's network has the address of the node"
        raise CommandRefusedError(f"the agent knows no pod {key} with an address of its own: {why}", UNKNOWN)
    return {family_of(address): address for address in pod.addresses}


async def _judge(settings: Settings, protocol: Protocol, source: str, ends: Sequence[RealServerKey]) -> list[Judgement]:
    """What the agent says of network policies; nothing without an agent."""
    question = policies.question_about(protocol, source, ends)
    try:
        return await agent_socket.ask_for(settings.state_dir, question, policies.decode_judgements)
    except agent_socket.AgentUnreachableError:
        return []


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
        case PodPort():
            return f"port {target.port} of pod {target.pod} from that client"
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
    lines = [("Service", _service(found)), ("address", _address(found)), ("route", _route(found))]
    lines += [("routers", found.routers)] if found.routers else []
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
        for text, colour in _rulings(verdict):
            screen.line(f"    {text}", hang=6, fg=colour)


def _rulings(verdict: Verdict) -> Iterator[tuple[str, str | None]]:
    """What network policies say of a client, a sentence each with its colour."""
    said: dict[tuple[str, str | None], list[str]] = {}
    for judgement in verdict.judgements:
        for ruling in judgement.rulings:
            sentence = f"{ruling.direction.lower()} of {ruling.pod}: {_ruling(ruling)}"
            where = said.setdefault((sentence, "red" if ruling.is_refused else None), [])
            where.append(host_port(judgement.destination, judgement.port))
    for (sentence, colour), where in said.items():
        is_of_all = len(where) == len(verdict.judgements) and not verdict.unjudged
        yield sentence if is_of_all else f"{sentence} (to {', '.join(where)})", colour
    if verdict.unjudged:
        yield f"and {verdict.unjudged} more real servers, which policies were not asked about", None


def _ruling(ruling: Ruling) -> str:
    if not ruling.is_here:
        return f"{ruling.node or 'its node'} decides; ask there"
    if ruling.refused_by:
        return f"refused by {', '.join(ruling.refused_by)}"
    if ruling.exempt:
        return f"allowed, since {ruling.exempt}"
    if ruling.allowed_by:
        return f"allowed by {', '.join(ruling.allowed_by)}"
    if ruling.isolated_by:
        return f"refused; isolated by {', '.join(ruling.isolated_by)}, and no rule allows it"
    return "allowed, no policy isolates it"


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
