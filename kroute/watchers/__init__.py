"""Watchers notice changes, and pass them on to a sink as small typed objects."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from kroute.model.objects import Change

Sink = Callable[[Sequence[Change]], None]
"""Takes changes in the order in which they happened. It is called in the event loop, so it must return soon."""

BATCH = 32
"""The most changes that are passed on at once. A long list then holds the event loop only for milliseconds at a time,
even if each change is a slice of a hundred endpoints."""

Room = Callable[[], Awaitable[None]]
"""Lets other tasks run, and waits until the sink has room for more changes."""


async def always_room() -> None:
    """The Room of a sink that takes everything at once."""
    await asyncio.sleep(0)
