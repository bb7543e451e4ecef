"""The running agent's settings, for commands that use the same ones."""

from pathlib import Path
from typing import Any

import msgspec

from kroute.inspect import agent_socket
from kroute.settings import Settings

QUESTION = "settings"


def encode(settings: Settings) -> bytes:
    """The settings as the agent's socket sends them. They contain no secrets, only the names of files that do."""
    return msgspec.json.encode(settings, enc_hook=str)


async def ask(state_dir: Path) -> Settings | None:
    """The settings of the agent of this state directory, or None if no agent answers."""
    try:
        answer = await agent_socket.ask(state_dir, QUESTION)
        return msgspec.json.decode(answer, type=Settings, dec_hook=_read_path)
    except (agent_socket.AgentUnreachableError, msgspec.DecodeError):
        return None


def _read_path(kind: type[Any], text: Any) -> Any:
    return kind(text)
