"""What a reflector asks of the API server."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

FROM_CACHE = "0"
"""The resourceVersion of the first list: any state that the API server has at hand, which spares etcd."""
NEWEST = ""
"""The resourceVersion of a list that must be consistent."""
NO_STREAMING = frozenset({400, 403, 404, 422})
"""Answers to a streaming list by servers (or in-between proxies) that do not offer it."""

LineStream = AsyncGenerator[Sequence[bytes], None]


class Requests(Protocol):
    """What a reflector needs of the API."""

    async def get(self, path: str, params: Mapping[str, str]) -> bytes:
        """The body of an answer."""

    def stream(self, path: str, params: Mapping[str, str]) -> LineStream:
        """The lines of an answer as they come."""
