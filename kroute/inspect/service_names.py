"""The names of all Services that the agent knows, for completion in a shell."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kroute.inspect import agent_socket
from kroute.model.objects import ObjectKey

QUESTION = "names"
PATIENCE = 1.0
"""Seconds. A shell waits for the answer."""


def encode(services: Iterable[ObjectKey]) -> bytes:
    """The names as the agent's socket sends them."""
    return msgspec.json.encode(sorted(map(str, services)))


def ask(state_dir: Path) -> list[str]:
    """The names as NAMESPACE/NAME, or nothing if no agent answers soon."""

    async def asked() -> list[str]:
        async with asyncio.timeout(PATIENCE):
            return msgspec.json.decode(await agent_socket.ask(state_dir, QUESTION), type=list[str])

    try:
        return asyncio.run(asked())
    except (agent_socket.AgentUnreachableError, TimeoutError, msgspec.DecodeError):
        return []
