"""Watches: what a stream says, and when."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping

from tests.apiserver import status
from tests.apiserver.lists import parse_version
from tests.apiserver.options import TRUE
from tests.apiserver.resources import Object, Target
from tests.apiserver.selectors import Selection
from tests.apiserver.store import Store, StoredEvent

BOOKMARK_PERIOD = 60.0
LAST_BOOKMARKS = (2.1, 1.05)
"""Seconds before a timed end in which bookmarks come."""
DEFAULT_TIMEOUT = 1800.0


TOGETHER = 64
"""Initial events that are sent at once."""


class Watch:
    """One watch: an async iterator of events, as many at a time as there are.

    Raises StatusError before the first one for a bad request. `second` is how long a second of the API takes here.
    """

    def __init__(
        self, store: Store, target: Target, query: Mapping[str, str], selection: Selection, second: float
    ) -> None:
        self._store = store
        self._target = target
        self._selection = selection
        self._second = second
        self._bookmarks = query.get("allowWatchBookmarks") in TRUE
        self._initial_events = query.get("sendInitialEvents") in TRUE
        self._timeout = float(query.get("timeoutSeconds") or DEFAULT_TIMEOUT)
        version = query.get("resourceVersion", "")
        self._from_now = version in {"", "0"} or self._initial_events
        self._position = store.revision if self._from_now else parse_version(version)
        wanted = parse_version(version or "0")
        if self._initial_events and wanted > store.revision:
            raise status.version_too_large(wanted, store.revision)
        self.ended = False

    def end(self) -> None:
        """End in good order, as a server does that shuts down."""
        self.ended = True

    async def events(self) -> AsyncGenerator[list[Object], None]:
        if self._from_now:
            self._position = self._store.revision
            items = sorted(self._store.current(self._target.type).items())
            for start in range(0, len(items), TOGETHER):
                some = items[start : start + TOGETHER]
                if events := [_added(item) for key, item in some if self._in_scope(key) and self._selection(item)]:
                    yield events
            if self._initial_events and self._bookmarks:
                yield [self._bookmark({"k8s.io/initial-events-end": "true"})]
        elif self._position < self._store.compacted:
            yield [self.expired()]
            return
        async for event in self._follow():
            yield [event]

    def expired(self) -> Object:
        return {"type": "ERROR", "object": status.version_expired(self._position, self._store.compacted).body}

    async def _follow(self) -> AsyncGenerator[Object, None]:
        start = asyncio.get_running_loop().time()
        for moment in self._timetable():
            changed = True
            while changed and not self.ended:
                while changes := self._store.since(self._position):
                    for change in changes:
                        self._position = change.revision
                        if line := self._line(change):
                            yield line
                changed = await self._changes_before(start + moment * self._second)
            if self.ended:
                return
            if moment < self._timeout and self._store.revision >= self._position:
                yield self._bookmark()

    async def _changes_before(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                await self._store.wait()
        except TimeoutError:
            return False
        return True

    def _timetable(self) -> Iterator[float]:
        """The moments, in seconds from the start, of each bookmark and of the end."""
        if self._bookmarks:
            ends = [self._timeout - seconds for seconds in LAST_BOOKMARKS if self._timeout > seconds]
            moment = BOOKMARK_PERIOD
            while moment < min(ends, default=self._timeout):
                yield moment
                moment += BOOKMARK_PERIOD
            yield from ends
        yield self._timeout

    def _line(self, event: StoredEvent) -> Object | None:
        """How this change looks through the selectors."""
        if event.type is not self._target.type or not self._in_scope(event.key):
            return None
        before = event.previous is not None and self._selection(event.previous)
        after = event.item is not None and self._selection(event.item)
        if after:
            return {"type": "MODIFIED" if before else "ADDED", "object": event.item}
        if before and event.previous is not None:
            metadata = {**event.previous["metadata"], "resourceVersion": str(event.revision)}
            return {"type": "DELETED", "object": {**event.previous, "metadata": metadata}}
        return None

    def _in_scope(self, key: str) -> bool:
        return self._target.namespace is None or key.startswith(f"{self._target.namespace}/")

    def _bookmark(self, annotations: Object | None = None) -> Object:
        type_ = self._target.type
        if not self._store.since(self._position):
            self._position = self._store.revision
        metadata: Object = {"resourceVersion": str(self._position)}
        if annotations or type_.zero_annotations:
            metadata["annotations"] = {**type_.zero_annotations, **(annotations or {})}
        item = {"kind": type_.kind, "apiVersion": type_.api_version, "metadata": metadata, **type_.zero}
        return {"type": "BOOKMARK", "object": item}


def _added(item: Object) -> Object:
    return {"type": "ADDED", "object": item}
