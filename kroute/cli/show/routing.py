"""`kroute show peers` and `kroute show routes`: the BGP sessions of this node, and what it announces."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kroute.cli.terminal.formats import show
from kroute.cli.terminal.output import DONE, NO_AGENT, complain, refusing
from kroute.cli.terminal.screen import Screen, TextTable
from kroute.inspect import agent_socket, peers
from kroute.inspect.peers import PeerList, RouteList

L = TypeVar("L", PeerList, RouteList)


def main(state_dir: Path, what: str, how: str, only: str = "") -> int:
    """Print what this node's agent knows; `only` is a part of addresses or of Services' names."""
    if what == peers.PEERS:
        return _main(state_dir, what, peers.decode_peers, how, print_peers, only)
    return _main(state_dir, what, peers.decode_routes, how, print_routes, only)


def _main(
    state_dir: Path,
    what: str,
    decode: Callable[[bytes], L | None],
    how: str,
    printed: Callable[[L, Screen], None],
    only: str,
) -> int:
    hint = "only the agent knows what is announced: birdc shows what BIRD has"
    with refusing(agent_socket.AgentUnreachableError, code=NO_AGENT, hint=hint):
        found = asyncio.run(agent_socket.ask_for(state_dir, what, decode))
    if found is None:
        complain("the agent announces no addresses: `kroute run --announce` does")
        return NO_AGENT
    items: list[Any] = [item for item in found.items if only.lower() in _text(item)]
    show(msgspec.structs.replace(found, items=items), how, printed)
    return DONE


def _text(item: peers.PeerView | peers.AnnouncementView) -> str:
    services = item.services if isinstance(item, peers.AnnouncementView) else ()
    return " ".join([item.address, *services]).lower()


def print_peers(found: PeerList, screen: Screen) -> None:
    """Print one line for each session, and below them what is wrong."""
    numbers = ("AS", "Announced", "Learned")
    table = TextTable("Peer", "AS", "Kind", "State", "Since", "BFD", "Announced", "Learned", numbers=numbers)
    for peer in found.items:
        state = peer.state, peer.since or "-", peer.bfd or "-"
        table.add(peer.address, peer.asn, peer.kind, *state, peer.announced, peer.learned)
    screen.table(table)
    for peer in found.items:
        if peer.last_error:
            screen.line(f"{peer.address}: {peer.last_error}", hang=4, fg="yellow")
    for sentence in (found.trouble, _withdraws(found.withdraws)):
        if sentence:
            screen.line(sentence, hang=4, fg="yellow")


def print_routes(found: RouteList, screen: Screen) -> None:
    """Print one line for each Service of an address."""
    table = TextTable("Address", "Announced", "Service", outer=2)
    for route in found.items:
        for service in route.services or ["-"]:
            table.add(route.address, "yes" if route.is_announced else "no", service)
    screen.table(table)
    announced = sum(route.is_announced for route in found.items)
    screen.line(f"announced addresses: {announced} of {len(found.items)}")
    if found.withdraws:
        screen.line(_withdraws(found.withdraws), hang=4, fg="yellow")


def _withdraws(why: str) -> str:
    return f"the node announces nothing: {why}" if why else ""
