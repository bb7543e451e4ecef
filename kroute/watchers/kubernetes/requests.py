"""The requests that a reflector makes."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

FROM_CACHE = "0"
"""The resourceVersion of the first list: any state in the API server's cache, which spares etcd."""
NEWEST = ""
"""The resourceVersion of a list that must be consistent."""
NO_STREAMING = frozenset({400, 403, 404, 422})
"""Status codes for a streaming list from servers or proxies that do not support it."""

LineStream = AsyncGenerator[Sequence[bytes], None]


class Requests(Protocol):
    """The methods of an API client that a reflector uses."""

    async def get(self, path: str, params: Mapping[str, str]) -> bytes: ...

    def stream(self, path: str, params: Mapping[str, str]) -> LineStream:
        """The lines of an answer, as they arrive."""
