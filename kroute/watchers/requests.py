"""What a reflector asks of the API server."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

LineStream = AsyncGenerator[Sequence[bytes], None]


class Requests(Protocol):
    """What a reflector needs of the API."""

    async def get(self, path: str, params: Mapping[str, str]) -> bytes:
        """The body of an answer."""

    def stream(self, path: str, params: Mapping[str, str]) -> LineStream:
        """The lines of an answer as they come."""
