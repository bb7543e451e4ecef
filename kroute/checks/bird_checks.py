"""The check of BIRD, which announces addresses with `--announce`: whether it runs, as kroute told it, with sessions."""

import errno
import socket

from kroute.checks.finding import Finding, ok, warning
from kroute.kernel.bird import Bird
from kroute.kernel.clients import BirdClient
from kroute.kernel.errors import KernelError
from kroute.model.speaker import ESTABLISHED
from kroute.settings import Settings

BIRD = "bird"
_PAGE = "docs/routing.md"


async def check_bird(settings: Settings, bird: BirdClient | None = None) -> list[Finding]:
    """What keeps routers from learning addresses from this node. `bird` is that of the settings."""
    if not settings.announce:
        return []
    bird = bird or Bird(settings.bird_socket, settings.bird_configuration)
    text = bird.read()
    try:
        sessions = await bird.sessions()
        is_told = text is not None and await bird.has(text)
    except KernelError as error:
        return [warning(BIRD, str(error), f"start BIRD as {_PAGE} says"), *_taken(settings.bgp_port_number)]
    if not is_told:
        told = "has another configuration than kroute has written"
        return [warning(BIRD, f"BIRD {told}", f"start BIRD with {settings.bird_configuration} ({_PAGE})")]
    if not sessions:
        return [warning(BIRD, "BIRD has no peer", f"name routers by --peer-router-ips or annotations ({_PAGE})")]
    step = "check the way to the peer, and its AS number, address and password"
    down = [
        f"the session with {one.neighbor} is not up ({one.state})" + (f": {one.last_error}" if one.last_error else "")
        for one in sessions
        if one.state != ESTABLISHED
    ]
    return [warning(BIRD, message, step) for message in down] or [ok(BIRD, "all of its sessions are up")]


def _taken(port: int) -> list[Finding]:
    """Whether another program listens on the port that BIRD needs."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(("::", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return []
            step = "end the other BGP speaker, or choose another port with --bgp-port-number on all nodes"
            return [warning(BIRD, f"port {port} is taken by another program, so BIRD cannot listen there", step)]
    return []
