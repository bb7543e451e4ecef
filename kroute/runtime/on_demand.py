"""Objects whose modules are loaded when they are first asked for, as few agents are asked."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OnDemand(Generic[T]):
    """An object that the first call of `get` makes.

    `load` imports what makes the object, and returns that. It runs in a thread, while the event loop goes on. While one
    thread fails to load a module, another would see half of it; so callers take turns.
    """

    def __init__(self, load: Callable[[], Callable[[], T]]) -> None:
        self._load = load
        self._loading = asyncio.Lock()
        self.made: T | None = None

    async def get(self) -> T:
        """The object. Raises what `load` raises; the next call tries again."""
        if self.made is None:
            async with self._loading:
                if self.made is None:
                    self.made = (await asyncio.to_thread(self._load))()
        return self.made
