"""Write Events (`events.k8s.io/v1`), one for all that say the same: the first creates it, the next ones are counted.

Counts are kept as client-go keeps them (`tools/events/event_broadcaster.go`): the second occurrence makes the Event a
series at once, later ones are only counted here. What is counted is written 6 minutes after the last occurrence, and
every 30 minutes before that. An Event that has expired is created again, with its count.

An Event is named as client-go names it: the object's name and the time in nanoseconds. Two agents may choose the same
name at the same moment: the second takes another one.
"""

import asyncio
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import structlog

from kroute.watchers.kubernetes.errors import ApiError
from kroute.watchers.kubernetes.server_presence import ApiWriter

log = structlog.get_logger()

CONTROLLER = "kroute.io/kroute"
NOTE_LIMIT = 1024
"""Bytes of `note` that the API takes."""
INSTANCE_LIMIT = 128
"""Bytes of `reportingInstance` that the API takes."""
NAME_LIMIT = 253
QUEUE_LIMIT = 1000
MOST_SERIES = 1000
"""Events that are remembered. Beyond that, what was not said for longest is a new Event when it is said again."""
QUIET, REFRESH = 360.0, 1800.0
"""Seconds after the last occurrence, and after the last write, in which a count is written."""

_NAMES_TRIED = 3
_SECONDS_BETWEEN_EVENTS = 0.1
_SECONDS_BETWEEN_LOOKS = 60.0
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Subject(NamedTuple):
    """The object that an Event is about."""

    kind: str
    namespace: str
    name: str
    uid: str
    api_version: str = "v1"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class EventKey(NamedTuple):
    """What Events have in common that say the same: the object, the reason, and what is wrong with it."""

    subject: Subject
    reason: str
    cause: str


class EventText(msgspec.Struct, frozen=True):
    """The API's fields that say what has happened."""

    type: str
    action: str
    note: str


class _EventSeries(msgspec.Struct):
    """An Event: how often it has occurred, and how much of that is written."""

    key: EventKey
    text: EventText
    first: datetime
    last: datetime
    seen_at: float
    tried_at: float
    count: int = 1
    written: int = 0
    name: str = ""
    """Of the Event in the API. Empty: it is not there."""
    waits: bool = False

    def is_due(self, now: float) -> bool:
        """Whether a count is to be written that was not: one is quiet now, or has not been for long."""
        settled = self.seen_at + QUIET
        return self.count > self.written and (self.tried_at < settled <= now or now - self.tried_at >= REFRESH)


class EventWriter:
    """Writes Events, ten a second at most. `clock` gives seconds and never goes back."""

    def __init__(self, instance: str, requests: ApiWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._instance = _cut(instance, INSTANCE_LIMIT)
        self._requests = requests
        self._clock = clock
        self._kept: OrderedDict[EventKey, _EventSeries] = OrderedDict()
        self._waiting: asyncio.Queue[_EventSeries] = asyncio.Queue(QUEUE_LIMIT)
        self._is_dropping = False

    def __len__(self) -> int:
        """How many Events are remembered."""
        return len(self._kept)

    def say(self, key: EventKey, text: EventText) -> None:
        """Queue an Event, or count it if it was said before."""
        if self.count(key):
            return
        moment, now = datetime.now(UTC), self._clock()
        series = _EventSeries(key, text, moment, moment, now, now)
        self._kept[key] = series
        if len(self._kept) > MOST_SERIES:
            self._kept.popitem(last=False)
        self._let_wait(series)

    def count(self, key: EventKey) -> bool:
        """Count what was said before. Returns whether it is remembered."""
        series = self._kept.get(key)
        if series is None:
            return False
        self._kept.move_to_end(key)
        series.count += 1
        series.last, series.seen_at = datetime.now(UTC), self._clock()
        if series.count == 2:
            self._let_wait(series)
        return True

    def refresh(self) -> None:
        """Queue the counts that are to be written."""
        now = self._clock()
        for series in self._kept.values():
            if series.is_due(now):
                self._let_wait(series)

    async def run(self) -> None:
        """Write the queued Events, and the counts that become due."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_all(), name="event writer")
            group.create_task(self._refresh_all(), name="event counts")

    async def _write_all(self) -> None:
        while True:
            series = await self._waiting.get()
            series.waits = False
            await self._write(series)
            await asyncio.sleep(_SECONDS_BETWEEN_EVENTS)

    async def _refresh_all(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            self.refresh()

    def _let_wait(self, series: _EventSeries) -> None:
        if series.waits:
            return
        try:
            self._waiting.put_nowait(series)
            series.waits = True
            self._is_dropping = False
        except asyncio.QueueFull:
            if not self._is_dropping:  # one line until there is room again
                reason = series.key.reason
                log.warning("event.dropped", about=str(series.key.subject), reason=reason, waiting=QUEUE_LIMIT)
            self._is_dropping = True

    async def _write(self, series: _EventSeries) -> None:
        """Create the Event, or write its count. What the API refuses is logged and forgotten."""
        series.tried_at = self._clock()
        count = series.count
        try:
            if not series.name or not await self._patch(series):
                series.name = await self._create(series)
        except Exception as error:  # noqa: BLE001 - whatever the transport raises: an Event is not worth an outage
            log.warning("event.refused", about=str(series.key.subject), reason=series.key.reason, error=str(error))
            if isinstance(error, ApiError) and error.is_final:
                self._kept.pop(series.key, None)
            return
        series.written = count

    async def _patch(self, series: _EventSeries) -> bool:
        """Write the count. Returns False if the Event is not there any more."""
        try:
            await self._requests.patch(f"{_collection(series.key.subject)}/{series.name}", _count_of(series))
        except ApiError as error:
            if error.is_missing:
                return False
            raise
        return True

    async def _create(self, series: _EventSeries) -> str:
        """Create the Event. Returns its name."""
        collection = _collection(series.key.subject)
        for attempt in range(1, _NAMES_TRIED + 1):
            name = event_name(series.key.subject.name, time.time_ns())
            try:
                await self._requests.create(collection, self._event(series, name))
            except ApiError as error:
                if error.status != 409 or attempt == _NAMES_TRIED:
                    raise
                continue
            break
        return name

    def _event(self, series: _EventSeries, name: str) -> dict[str, Any]:
        subject, text = series.key.subject, series.text
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": _namespace(subject)},
            "eventTime": _micro_time(series.first),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": text.action,
            "reason": series.key.reason,
            "type": text.type,
            "note": _cut(text.note, NOTE_LIMIT),
            "regarding": {
                "apiVersion": subject.api_version,
                "kind": subject.kind,
                **({"namespace": subject.namespace} if subject.namespace else {}),
                "name": subject.name,
                "uid": subject.uid,
            },
            **(_count_of(series) if series.count > 1 else {}),
        }


def event_name(subject: str, nanoseconds: int) -> str:
    """The name of an Event about an object, or a uuid where that is no valid name (client-go's GenerateEventName)."""
    name = f"{subject}.{nanoseconds:x}"
    return name if len(name) <= NAME_LIMIT and _SUBDOMAIN.fullmatch(name) else str(uuid.uuid4())


def _count_of(series: _EventSeries) -> dict[str, Any]:
    return {"series": {"count": series.count, "lastObservedTime": _micro_time(series.last)}}


def _collection(subject: Subject) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{_namespace(subject)}/events"


def _namespace(subject: Subject) -> str:
    return subject.namespace or "default"


def _micro_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _cut(text: str, limit: int) -> str:
    """As much of a text as has at most `limit` bytes in UTF-8."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore")
