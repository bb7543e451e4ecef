"""`kroute show peers`, `routes` and `pod-routes`: BGP sessions, announced addresses, the ways to other nodes' pods."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kroute.cli.terminal.formats import show
from kroute.cli.terminal.output import DONE, NO_AGENT, complain, refusing
from kroute.cli.terminal.screen import Screen, TextTable
from kroute.inspect import agent_socket, peers, pod_routes
from kroute.inspect.peers import PeerList, RouteList
from kroute.inspect.pod_routes import PodRouteList


def main(state_dir: Path, what: str, how: str, only: str = "") -> int:
    """Print what this node's agent knows; `only` is a part of what is in a line."""
    about = _SHOWN[what]
    with refusing(agent_socket.AgentUnreachableError, code=NO_AGENT, hint=about.hint):
        found = asyncio.run(agent_socket.ask_for(state_dir, what, about.decode))
    if found is None:
        complain(f"the agent {about.lack}")
        return NO_AGENT
    items = [item for item in found.items if only.lower() in " ".join(map(str, msgspec.structs.astuple(item))).lower()]
    show(msgspec.structs.replace(found, items=items), how, about.printed)
    return DONE


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
    return f"the node leaves its addresses to others: {why}" if why else ""


def print_pod_routes(found: PodRouteList, screen: Screen) -> None:
    """Print one line for each network, and below them what is wrong."""
    table = TextTable("Network", "Node", "Way", "By", "In the kernel")
    for route in found.items:
        table.add(route.network, route.node, route.way, route.by, "yes" if route.in_kernel else "no")
    screen.table(table)
    for sentence in found.problems:
        screen.line(sentence, hang=4, fg="yellow")


class _Shown(NamedTuple):
    """How an answer is read and printed, what an agent without it lacks, and what to do without an agent."""

    decode: Callable[[bytes], Any]
    printed: Callable[[Any, Screen], None]
    lack: str
    hint: str


_ANNOUNCED = (
    "announces no addresses: `kroute run --announce` does",
    "only the agent knows what is announced: birdc shows what BIRD has",
)
_CONNECTED = (
    "connects no pods: `kroute run --pod-network` does",
    "only the agent knows what is planned: `ip route show proto 108` shows what the kernel has",
)
_SHOWN = {
    peers.PEERS: _Shown(msgspec.json.Decoder(PeerList | None).decode, print_peers, *_ANNOUNCED),
    peers.ROUTES: _Shown(msgspec.json.Decoder(RouteList | None).decode, print_routes, *_ANNOUNCED),
    pod_routes.QUESTION: _Shown(msgspec.json.Decoder(PodRouteList | None).decode, print_pod_routes, *_CONNECTED),
}
