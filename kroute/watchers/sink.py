"""Where watchers put what they noticed."""

from collections.abc import Callable, Sequence

from kroute.model.objects import Change

Sink = Callable[[Sequence[Change]], None]
"""Takes changes in the order in which they happened; called in the event loop, so it must return soon."""

BATCH = 32
"""Changes passed on at once at most, so that a long list leaves the event loop to others in between: milliseconds,
also if every one is a slice of a hundred endpoints."""
