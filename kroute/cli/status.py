"""`kroute status`: what this node serves, what is wrong, and what to do about it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import msgspec

from kroute.cli.parameters.options import DURATION
from kroute.cli.parameters.run_options import with_settings
from kroute.cli.terminal.formats import output_option, show
from kroute.cli.terminal.output import AS_ROOT, DONE, FAILURE, NO_AGENT, complain, lacks_privileges, refusing
from kroute.cli.terminal.screen import Screen
from kroute.inspect import agent_socket, shared_state
from kroute.inspect import status as inspected
from kroute.inspect.agent_socket import AgentUnreachableError
from kroute.inspect.status import AllocatorView, Served, Severity, State, Status, StatusProblem, with_problems
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import Ipvs

POLL = 0.5
"""Seconds between two questions of `--wait`."""
SHORTEST_LOOK = 2.0
"""Seconds that an agent has for its answer at least, also at the end of `--wait`."""
SHOWN = 12
"""Problems on the screen. JSON and YAML have up to `inspect.status.MOST_PROBLEMS`."""

_START = (
    "start it (`systemctl start kroute`), or see why it does not run: `journalctl -u kroute`, "
    "`kubectl -n kube-system get pods -l app.kubernetes.io/name=kroute -o wide`"
)
COLOURS = {Severity.FAIL: "red", Severity.WARNING: "yellow"}


@click.command()
@click.option(
    "--wait",
    type=DURATION,
    is_flag=False,
    flag_value="60s",
    default=None,
    metavar="[SECONDS]",
    help="Wait until the node is ready and everything that was read is in the kernel, 60s if no time is given.",
)
@click.option(
    "--shared", is_flag=True, help="Print in JSON what every node should plan, which `kubectl kroute` compares."
)
@output_option
@with_settings("--state-dir")
def status(*, wait: float | None, shared: bool, output: str, state_dir: Path) -> int:
    """Show what this node serves, what is wrong, and what to do about it.

    Exits with 0 if all is right, with 1 if there are problems, and with 6 if no agent answers; then it shows what the
    kernel still serves. With --wait, problems of single Services do not count. A director is asked in the same way.
    """
    if shared:
        with refusing(AgentUnreachableError, code=NO_AGENT):
            click.echo(asyncio.run(agent_socket.ask(state_dir, shared_state.QUESTION)))
        return DONE
    found, reason = asyncio.run(_status(state_dir, wait))
    show(found, output, print_status)
    if reason:
        complain(f"not ready after {wait:g} s: {reason}")
    return exit_code(found, waited=wait is not None)


def exit_code(found: Status, *, waited: bool = False) -> int:
    """The exit code. `waited`: whether only what keeps the node from being ready counts."""
    if found.state is State.NO_AGENT:
        return NO_AGENT
    return FAILURE if (waiting_for(found) if waited else found.problems_total) else DONE


def waiting_for(found: Status) -> str:
    """What keeps the node from being ready with everything in the kernel, as a clause; empty if nothing does."""
    if found.state is State.NO_AGENT:
        return "no agent answers"
    serious = next((problem for problem in found.problems if problem.severity is Severity.FAIL), None)
    if serious is not None:
        return f"{serious.message}: {serious.next_step}"
    if found.state is State.WAITING:
        return "another service proxy is at work on this node"
    if found.state is State.STARTING:
        return "the initial sync of Services is not served yet"
    return f"changes of {found.pending} Services are not in the kernel yet" if found.pending else ""


async def _status(state_dir: Path, wait: float | None) -> tuple[Status, str]:
    """The status, and what was waited for in vain. The digest lets `kubectl kroute` compare nodes."""
    if wait is not None:
        return await wait_until_settled(lambda left: read(state_dir, seconds=left), wait)
    return await read(state_dir, inspected.WITH_DIGEST), ""


async def wait_until_settled(
    look: Callable[[float], Awaitable[Status]],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> tuple[Status, str]:
    """Look until the node is ready with everything in the kernel, for so many seconds at most.

    `look` is told how many of them are left. Returns the last status, and the reason if the time was over first.
    """
    end = clock() + seconds
    while reason := waiting_for(found := await look(max(SHORTEST_LOOK, end - clock()))):
        if clock() >= end:
            break
        await sleep(min(POLL, max(0.0, end - clock())))
    return found, reason


async def read(state_dir: Path, about: str = "", *, seconds: float = agent_socket.ANSWER_TIMEOUT) -> Status:
    """The agent's status, or what the kernel serves if none answers within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await inspected.ask(state_dir, about)
    except (AgentUnreachableError, msgspec.DecodeError) as error:
        why = str(error)
    except TimeoutError:
        why = f"the agent on {state_dir / agent_socket.NAME} has not answered within {seconds:g} s"
    return await _without_agent(why)


async def _without_agent(why: str) -> Status:
    problems = [StatusProblem(Severity.FAIL, "", "NoAgent", why, _START)]
    served = Served()
    try:
        async with Ipvs() as ipvs:
            table = await ipvs.read()
        real = [server for state in table.values() for server in state.real_servers.values()]
        connections, inactive = sum(server.active for server in real), sum(server.inactive for server in real)
        served = Served(0, len(table), len(real), connections=connections, inactive=inactive)
    except KernelError as error:
        step = AS_ROOT if lacks_privileges(error) else "`kroute check` says what this node lacks"
        problems.append(StatusProblem(Severity.FAIL, "", "KernelUnreadable", str(error), step))
    return with_problems(Status(node="", role="", state=State.NO_AGENT, served=served), problems)


def print_status(found: Status, screen: Screen) -> None:
    """Print the status on one screen."""
    print_head(found, screen)
    served, is_there = found.served, found.state is not State.NO_AGENT
    lines = {"serves": _what(found)}
    if served.connections is not None:
        lines["connections"] = f"{served.connections} established, {served.inactive} others"
    if is_there:
        lines["since"] = f"{found.started}"
        lines["pending"] = f"{found.pending} Services" if found.pending else "nothing"
        lines["resync"] = f"last at {found.last_resync}, last look {found.last_look}" if found.last_look else "none yet"
    if found.firewall:
        lines["firewall"] = found.firewall
    if found.policies is not None:
        troubled = f"; {found.policies.with_problems} policies have problems" if found.policies.with_problems else ""
        lines["policies"] = f"{found.policies.isolated_pods} pods are isolated{troubled}"
    if (allocator := found.allocator) is not None:
        lines["addresses"] = _allocated(allocator)
    if (source := found.source) is not None:
        objects = ", ".join(f"{count} {kind}" for kind, count in source.objects.items())
        name = "API server" if source.kind == "api" else source.kind
        connected = "connected" if source.connected else "NOT connected"
        server = f" to {source.server}" if source.server else ""
        lines[name] = f"{connected}{server}{f': {objects}' if objects else ''}"
    for name, text in lines.items():
        screen.line(f"{name:<12}{text}", hang=12)
    for problem in found.problems[:SHOWN]:
        print_problem(problem, problem.service or "this node", screen)
    if found.problems_total > SHOWN:
        screen.line(f"and {found.problems_total - SHOWN} more: `kroute status -o json`, `kroute show services`")


def _allocated(found: AllocatorView) -> str:
    """Who gives out LoadBalancer addresses, and how many are left."""
    if not found.is_here:
        return f"given out by {found.node or 'nobody yet'}"
    fills = [f"{fill.in_use} of {fill.in_range} {family}" for family, fill in sorted(found.addresses.items())]
    return f"given out here, {', '.join(fills) or 'none yet'} in use; {found.waiting} Services wait"


def _what(found: Status) -> str:
    """What is served, as counts."""
    served = found.served
    if found.state is State.NO_AGENT and served.connections is None:
        return "not known"
    services = f"{served.services} Services, " if found.state is not State.NO_AGENT else "in the kernel: "
    refusing = f"; {served.refusing} virtual servers refuse, as no endpoint is ready" if served.refusing else ""
    return f"{services}{served.virtual_servers} virtual servers, {served.real_servers} real servers{refusing}"


def print_head(found: Status, screen: Screen) -> None:
    """Print the name of the agent, and whether all is right, in one line."""
    if found.state is State.NO_AGENT:
        screen.line("no agent answers: the kernel serves what the last one has left", fg="red", bold=True)
        return
    name = f"kroute {found.version} on {found.node}" + (f", {found.election} director" if found.election else "")
    serious = any(problem.severity is Severity.FAIL for problem in found.problems)
    colour = "red" if serious else "yellow" if found.problems or not found.is_settled else "green"
    count = f"{found.problems_total} problem{'s' if found.problems_total > 1 else ''}"
    verdict = count if found.problems else "all right"
    screen.line(f"{name}: {found.state.value}, {verdict}", fg=colour, bold=True)


def print_problem(problem: StatusProblem, where: str, screen: Screen) -> None:
    """Print a problem and its next step. `where` is what has it."""
    severity, colour = f"{problem.severity.value:<9}", COLOURS[problem.severity]
    screen.marked(f"{severity}{where}: {problem.reason}: {problem.message}", severity, colour, hang=9)
    screen.line(f"{'':<9}-> {problem.next_step}", hang=12)
