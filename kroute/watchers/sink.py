"""The sink into which watchers pass changes."""

from collections.abc import Callable, Sequence

from kroute.model.objects import Change

Sink = Callable[[Sequence[Change]], None]
"""Takes changes in the order in which they happened. It is called in the event loop, so it must return soon."""

BATCH = 32
"""The most changes that are passed on at once. A long list then holds the event loop only for milliseconds at a time,
even if each change is a slice of a hundred endpoints."""
