"""`kroute policy watch`: the packets that network policies refuse on this node, as they come."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from kroute.base.wording import host_port
from kroute.cli.parameters.run_options import with_settings
from kroute.cli.show.policies import policy_names
from kroute.cli.terminal.formats import output_option
from kroute.cli.terminal.output import DONE, NO_AGENT, complain, refusing
from kroute.cli.terminal.screen import Screen
from kroute.inspect import agent_socket, policies
from kroute.inspect.refusals import RefusedPacket, RefusedPacketList, decode_refusals
from kroute.model.document import encode

PAUSE = 1.0
"""Seconds between two questions. The agent keeps the packets of ten."""


@click.command()
@click.argument("what", type=click.Choice(("watch",)), expose_value=False)
@click.option(
    "--filter",
    "only",
    default="",
    metavar="TEXT",
    help="Only what has this text in the name of a pod or policy, or in an address.",
)
@output_option
@with_settings("--state-dir")
def policy(*, only: str, output: str, state_dir: Path) -> int:
    """Show the packets that network policies refuse on this node, until interrupted.

    It begins with the newest that the agent has logged; the agent runs with --network-policies and --policy-log. Exits
    with 6 if no agent answers, or if it logs none.
    """
    if output in {"yaml", "name"}:
        raise click.UsageError("a watch has -o table, wide or json: it ends when it is interrupted")
    with refusing(agent_socket.AgentUnreachableError, code=NO_AGENT), suppress(KeyboardInterrupt, BrokenPipeError):
        return asyncio.run(_watch(state_dir, output, only.lower()))
    return DONE


async def _watch(state_dir: Path, how: str, only: str) -> int:
    """Show what is refused. In JSON each answer with something new is a line."""
    newest = 0
    left_out: int | None = None
    while True:
        found = await agent_socket.ask_for(state_dir, f"{policies.REFUSED} {newest}", decode_refusals)
        if found is None:
            complain("the agent logs no refused packets: `kroute run --network-policies --policy-log` does")
            return NO_AGENT
        others = 0 if left_out is None else max(found.left_out - left_out, 0)  # an agent counts from its start
        newest, left_out = found.newest, found.left_out
        shown = narrowed(found, only)
        if how == "json" and (shown.items or others):
            sys.stdout.buffer.write(encode(shown) + b"\n")
        elif how != "json":
            screen = Screen.of_this_process(how)
            print_refused(shown, screen)
            if others:
                screen.line(f"{others} more were refused")
        sys.stdout.flush()
        await asyncio.sleep(PAUSE)


def narrowed(found: RefusedPacketList, text: str) -> RefusedPacketList:
    """The packets that have the text in a pod's or policy's name or in an address."""

    def has_it(packet: RefusedPacket) -> bool:
        names = [packet.source, packet.source_pod, packet.destination, packet.destination_pod]
        names += [f"{packet.namespace}/{name}" for name in packet.policies]
        return any(text in name for name in names)

    return msgspec.structs.replace(found, items=[packet for packet in found.items if has_it(packet)])


def print_refused(found: RefusedPacketList, screen: Screen) -> None:
    """Print a line for each packet."""
    for packet in found.items:
        source = _end(packet.source, packet.source_port, packet.source_pod)
        destination = _end(packet.destination, packet.destination_port, packet.destination_pod)
        by = "isolated by" if packet.namespace else "denied by"
        why = f"{packet.direction.lower()} refused, {by} {policy_names(packet)}"
        group = f" ({packet.group})" if screen.is_wide else ""
        screen.line(f"{packet.time} {packet.protocol} {source} -> {destination}: {why}{group}", hang=4)


def _end(address: str, port: int | None, pod: str) -> str:
    where = address if port is None else host_port(address, port)
    return f"{where} ({pod})" if pod else where
