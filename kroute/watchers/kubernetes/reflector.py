"""List and watch one kind of object, as client-go's reflector does.

A reflector is always in one of two states. *Listing*: it reads all objects, by a streaming list or by pages, and passes
on the difference from the objects that it knew. *Watching*: it follows changes from a resourceVersion. After a failure
a watch continues from the last resourceVersion. The reflector lists again only when the server no longer has that
version (410), or when changes may have been missed. All state belongs to the one task that runs `run`.

Sources: the API concepts of Kubernetes (efficient detection of changes), KEP-1904 and KEP-956 (bookmarks), KEP-3157
(streaming lists), client-go's tools/cache/reflector.go for periods and resourceVersions.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing

import msgspec
import structlog

from kroute.base.backoff import exhaustion
from kroute.model.kinds import WatchedKind
from kroute.model.objects import Applied, Change, Deleted, KubernetesObject, Listed, ObjectKey
from kroute.watchers import BATCH, Room, Sink, always_room
from kroute.watchers.kubernetes.api import Api, LineStream
from kroute.watchers.kubernetes.decoding import (
    Event,
    ListMeta,
    Malformed,
    ObjectDecoder,
    read_event,
    read_identity,
    read_page,
    trigger_time,
)
from kroute.watchers.kubernetes.errors import (
    AnswerTooLongError,
    ApiError,
    StreamingUnsupportedError,
    UnreachableError,
    UntrustedStreamError,
)
from kroute.watchers.kubernetes.requests import FROM_CACHE, NEWEST, Queries, WatchStatistics
from kroute.watchers.kubernetes.timing import RetryPolicy, Timing

log = structlog.get_logger(__name__)

PAGE_SIZE = 500
"""Objects in one page of a list, as in client-go."""
SMALLEST_PAGE = 5
MOST_PAGES = 20_000
"""The most pages of one list. A longer list counts as endless."""


class Reflector:
    """Follows one kind until cancelled, and passes on its changes."""

    def __init__(
        self, api: Api, kind: WatchedKind, sink: Sink, timing: Timing | None = None, room: Room = always_room
    ) -> None:
        self._api = api
        self._kind = kind
        self._sink, self._room = sink, room
        self._timing = timing or Timing()
        self._retry_policy = RetryPolicy(self._timing)
        self._decoder = ObjectDecoder(kind.type)
        self._inventory = Inventory(kind.type)
        self._pending: list[Change] = []
        self._must_list, self._paging_honoured = True, False
        self._page_size, self._passed = PAGE_SIZE, 0
        self._resource_version: str | None = None
        self._queries = Queries(kind)
        self._streaming_offered, self._streaming_denied = True, False
        self._log = log.bind(kind=kind.name)
        self._counts = WatchStatistics()

    @property
    def statistics(self) -> WatchStatistics:
        """The counters, as they are now."""
        return msgspec.structs.replace(
            self._counts,
            objects=len(self._inventory),
            malformed=self._decoder.malformed,
            resource_version=self._resource_version if not self._must_list or self._is_absent else "",
            denied_with=self._retry_policy.denied_with,
            is_away=self._api.presence.is_away,
        )

    @property
    def _is_absent(self) -> bool:
        """Whether the server has said that it does not serve the kind."""
        return self._kind.is_optional and self._resource_version == FROM_CACHE

    async def run(self) -> None:
        """List and watch until cancelled. After every API failure it pauses and tries again."""
        while True:
            try:
                if self._must_list and not self._streaming_offered:
                    await self._list()
                else:
                    await self._watch(set() if self._must_list else None)
            except StreamingUnsupportedError as reason:
                self._streaming_offered, self._streaming_denied = False, reason.is_denial
                self._log.info("list.streaming_unsupported", reason=str(reason), instead="paged list")
            except ApiError as error:
                await self._recover(error)
            except Exception as error:
                if (next_step := exhaustion(error)) is None:
                    raise
                await self._recover(UnreachableError(f"{error or type(error).__name__}; {next_step}"))

    async def _recover(self, error: ApiError) -> None:
        """Decide whether to list or to watch after a failure, and pause."""
        if self._kind.is_optional and error.is_missing:
            await self._do_without(error)
            return
        self._counts.failures += 1
        self._counts.denied += error.is_denied
        if self._queries.refused(error):
            return
        if isinstance(error, AnswerTooLongError) and self._must_list:  # anybody may write objects of 1 MiB and more
            self._resource_version, self._page_size = NEWEST, max(SMALLEST_PAGE, self._page_size // 10)
        failed = "list" if self._must_list else "watch"
        if error.is_version_unavailable or isinstance(error, UntrustedStreamError):
            if self._must_list:
                self._resource_version = NEWEST  # even a list is older: the cluster was restored
            self._must_list = True
        self._streaming_offered |= self._streaming_denied and error.is_denied  # like everything else
        if isinstance(error, UnreachableError) and error.moved:
            return
        if self._api.presence.is_away:
            await self._api.presence.turn()
            return
        pause = self._retry_policy.pause(error, while_watching=failed == "watch")
        self._log.warning(
            f"{failed}.failed", error=str(error), next="list" if self._must_list else "watch", retry_in=round(pause, 1)
        )
        if pause:
            await self._timing.sleep(pause)

    async def _do_without(self, error: ApiError) -> None:
        """Have no objects of a kind that is not served, and wait. When a watch says so, a list has to say it, too."""
        if not self._must_list:
            self._must_list = True
            await self._timing.sleep(self._retry_policy.pause(error, while_watching=True))
            return
        if changes := self._inventory.complete(set()):
            self._pending += changes
            self._pass_on()
            self._log.info("list.not_served", next="ask again from time to time")
        self._resource_version = FROM_CACHE
        self._retry_policy.allowed()
        await self._timing.sleep(self._timing.absence * (1.0 + self._timing.rng.random()))

    # Listing

    async def _list(self) -> None:
        """List by requests: first from the server's cache, later at least as new as the last known version."""
        version = FROM_CACHE if self._resource_version is None else self._resource_version
        try:
            # With a limit, the server would answer for a given version from etcd, and all agents ask at once.
            limit = self._page_size if version in {FROM_CACHE, NEWEST} or self._paging_honoured else 0
            await self._list_pages(version, limit)
        except ApiError as error:
            if not error.is_version_unavailable:
                raise
            self._log.info("list.version_unavailable", version=version, error=str(error), instead="newest, unpaged")
            await self._list_pages(NEWEST, 0)

    async def _list_pages(self, version: str, limit: int) -> None:
        listing: set[ObjectKey] = set()
        params = self._queries.first_page(version, limit)
        for _ in range(MOST_PAGES):
            metadata = await self._list_page(params, listing)
            if not metadata.token:
                self._complete(listing, metadata.resource_version)
                return
            if metadata.token == params.get("continue"):
                break
            self._paging_honoured = True
            params = self._queries.next_page(metadata.token, limit)
        raise UnreachableError(f"the list has no end: a page leads to itself, or there are more than {MOST_PAGES:,}")

    async def _list_page(self, params: Mapping[str, str], listing: set[ObjectKey]) -> ListMeta:
        """Read one page. Its objects are parts of its bytes; these are freed before the next page is requested."""
        self._counts.lists += 1
        body = await self._api.get(self._kind.path, params, only_metadata=self._kind.only_metadata)
        try:
            page = await read_page(body)
        except msgspec.DecodeError as error:
            raise UnreachableError(f"the answer to a list is unreadable: {error}") from error
        for number, raw in enumerate(page.items or ()):
            if number % BATCH == 0:
                await asyncio.sleep(0)
            await self._pass_on_full_batch()
            self._saw(raw, listing)
        return page.metadata

    def _complete(self, listing: set[ObjectKey], version: str) -> None:
        self._pending += self._inventory.complete(listing)
        self._pass_on()
        self._resource_version, self._must_list = version, False
        self._retry_policy.listed()
        self._log.info("list.complete", objects=len(self._inventory), resource_version=version)

    # Watching

    async def _watch(self, listing: set[ObjectKey] | None) -> None:
        """Follow one stream to its end. With a `listing`, the first part of the stream is a streaming list."""
        started, events = self._timing.clock(), self._counts.events
        self._counts.watches += 1
        seconds = self._timing.watch_timeout * (1.0 + self._timing.rng.random())
        query = self._queries.watch(self._resource_version, seconds, streaming=listing is not None)
        silent = self._timing.stall_timeout
        stream = self._api.stream(self._kind.path, query, silent=silent, only_metadata=self._kind.only_metadata)
        try:
            async with aclosing(stream):
                while lines := await self._next(stream, listing, started):
                    for line in lines:
                        await self._pass_on_full_batch()
                        if self._take(line, listing):
                            listing = None
                    self._pass_on()
        finally:
            self._pass_on()  # changes that arrived before a failure are valid
        self._retry_policy.allowed()
        if listing is not None:
            raise StreamingUnsupportedError("the stream ended before its initial events did")
        if self._counts.events == events and self._timing.clock() - started < self._timing.short_watch:
            raise UnreachableError("the server ended a watch at once, without a word")

    async def _next(self, stream: LineStream, listing: set[ObjectKey] | None, started: float) -> Sequence[bytes] | None:
        """The next lines, or None at the end of the stream."""
        try:
            if listing is None:
                return await anext(stream, None)
            left, silent = started + self._timing.list_timeout - self._timing.clock(), self._timing.list_stall_timeout
            async with asyncio.timeout(min(left, silent)):
                return await anext(stream, None)
        except TimeoutError as error:
            if left < silent:
                late = f"the initial events did not end within {self._timing.list_timeout:g} s"
                raise StreamingUnsupportedError(late) from error
            raise UntrustedStreamError(f"no byte from the server for {silent:g} s") from error
        except ApiError as error:
            if listing is not None and error.may_lack_streaming:
                raise StreamingUnsupportedError(str(error), is_denial=error.is_denied) from error
            raise

    def _take(self, line: bytes, listing: set[ObjectKey] | None) -> bool:
        """Process one line. Returns whether it ends the listing."""
        try:
            event = read_event(line)
            if event.type == "ERROR":
                raise ApiError.from_status(bytes(event.object))
            if event.type == "BOOKMARK":
                return self._take_bookmark(event, listing)
            self._take_change(event, listing)
        except msgspec.DecodeError as error:
            raise UntrustedStreamError(f"the server sent a watch line that is unreadable: {error}") from error
        self._counts.events += 1
        return False

    def _take_bookmark(self, event: Event, listing: set[ObjectKey] | None) -> bool:
        bookmark = read_identity(event.object)
        self._retry_policy.progressed()
        self._counts.events += 1
        if listing is None:
            self._resource_version = bookmark.resource_version
            return False
        if not bookmark.ends_initial_events:
            raise StreamingUnsupportedError("a bookmark came before the end of the initial events")
        self._complete(listing, bookmark.resource_version)
        return True

    def _take_change(self, event: Event, listing: set[ObjectKey] | None) -> None:
        if event.type == "DELETED":
            identity = read_identity(event.object)
            self._pending += self._inventory.delete(identity.key)
            version = identity.resource_version
            if listing is not None:
                listing.discard(identity.key)
        elif event.type in {"ADDED", "MODIFIED"}:
            version = self._saw(event.object, listing)
        else:
            raise UntrustedStreamError(f"the server sent an event of the unknown type {event.type!r}")
        if listing is None:  # initial events are sorted by name, so their versions are in no order
            self._resource_version = version or self._resource_version
            self._retry_policy.progressed()

    def _saw(self, raw: msgspec.Raw, listing: set[ObjectKey] | None) -> str:
        """Record an object that exists. Returns its resourceVersion."""
        item = self._decoder.decode(raw)
        if isinstance(item, Malformed):
            key, version = item.identity.key, item.identity.resource_version
        else:
            key, version = item.key, item.metadata.resource_version
            triggered = trigger_time(item) if listing is None else None
            selected = self._kind.selects(item)
            self._pending += self._inventory.apply(key, item, triggered) if selected else self._inventory.delete(key)
        if listing is not None:
            listing.add(key)
        return version

    # Passing on

    async def _pass_on_full_batch(self) -> None:
        if self._passed + len(self._pending) >= BATCH:  # also those that came one by one need room
            self._pass_on()
            self._passed = 0
            await self._room()

    def _pass_on(self) -> None:
        if self._pending:
            batch, self._pending = self._pending, []
            self._passed += len(batch)
            self._sink(batch)


class Inventory:
    """The known objects of one kind. Each method returns the changes to pass on.

    Only the resourceVersion of an object is kept; the object itself belongs to the catalog.
    """

    def __init__(self, kind: type[KubernetesObject]) -> None:
        self._kind = kind
        self._versions: dict[ObjectKey, str] = {}
        self._listed = False

    def __len__(self) -> int:
        return len(self._versions)

    def apply(self, key: ObjectKey, item: KubernetesObject, triggered: float | None = None) -> list[Change]:
        """Record that the object exists. Returns nothing if this version is known. `triggered` is passed on."""
        version = item.metadata.resource_version
        if version and self._versions.get(key) == version:
            return []
        self._versions[key] = version
        return [Applied(item, triggered)]

    def delete(self, key: ObjectKey) -> list[Change]:
        """Record that the object was deleted, or is no longer selected."""
        return [Deleted(self._kind, key)] if self._versions.pop(key, None) is not None else []

    def complete(self, present: set[ObjectKey]) -> list[Change]:
        """Delete the known objects that a complete list does not have. The first time, `Listed` follows.

        Until a list is complete nothing is deleted, so there is no moment without objects.
        """
        changes: list[Change] = []
        for key in sorted(self._versions.keys() - present):
            changes += self.delete(key)
        if not self._listed:
            self._listed = True
            changes.append(Listed(self._kind))
        return changes
