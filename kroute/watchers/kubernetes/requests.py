"""The requests that a reflector makes, and their counts."""

import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from kroute.base.histogram import Histogram
from kroute.model.kinds import WatchedKind
from kroute.watchers.kubernetes.errors import ApiError

if TYPE_CHECKING:
    from kroute.watchers.kubernetes.http.connection import Answer

FROM_CACHE = "0"
"""The resourceVersion of the first list: any state in the API server's cache, which spares etcd."""
NEWEST = ""
"""The resourceVersion of a list that must be consistent."""


class Queries:
    """The query parameters of one kind's requests."""

    def __init__(self, kind: WatchedKind) -> None:
        self._selectors = kind.selectors

    def refused(self, error: ApiError) -> bool:
        """Leave the field selector out from now on if the server refused it. Returns whether it did.

        `WatchedKind.selects` still applies.
        """
        return error.lacks_field_selector and self._selectors.pop("fieldSelector", None) is not None

    def first_page(self, version: str, limit: int) -> dict[str, str]:
        """A list that is at least as new as `version`, in pages of `limit` objects (0: in one)."""
        query = {**self._selectors, "limit": str(limit)} if limit else dict(self._selectors)
        return query | ({"resourceVersion": version} if version else {})

    def next_page(self, token: str, limit: int) -> dict[str, str]:
        """The page that the token of the page before leads to."""
        return self.first_page(NEWEST, limit) | {"continue": token}

    def watch(self, version: str | None, seconds: float, *, streaming: bool) -> dict[str, str]:
        """A watch from `version` on that the server ends after so many seconds; `streaming`: it lists first."""
        query = self._selectors | {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(int(seconds))}
        if streaming:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        return query | ({"resourceVersion": version} if version else {})


class WatchStatistics(msgspec.Struct):
    """The counters of one kind's watch, since its reflector was made.

    `objects` are the known ones. `resource_version` is the newest that was read (empty: no list was complete).
    `denied` are the failures with status 401 or 403; `denied_with` is the status when they have lasted, which those of
    a starting server do not, else 0. `is_away`: whether the server did not answer the last request.
    """

    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: int = 0
    objects: int = 0
    malformed: int = 0
    resource_version: str = ""
    denied: int = 0
    denied_with: int = 0
    is_away: bool = False


LATENCY_BOUNDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Upper bounds, in seconds, of the histogram of latencies: those of client-go
(component-base/metrics/prometheus/restclient)."""

NO_ANSWER = "<error>"
"""The status of a request without an answer, as client-go writes it."""


class RequestSeries(msgspec.Struct):
    """The requests of one method to one server: by status, and how many seconds they took."""

    host: str
    method: str
    codes: dict[str, int] = {}
    seconds: Histogram = msgspec.field(default_factory=lambda: Histogram(LATENCY_BOUNDS))


class ApiUse(msgspec.Struct):
    """The API server in use (its URL), how often another one has taken its place, and the requests."""

    server: str = ""
    failovers: int = 0
    requests: list[RequestSeries] = []


class RequestStatistics:
    """The counts since the start. A request is over when the head of its answer has arrived: a watch goes on then."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], RequestSeries] = {}

    async def measured(self, server: str, method: str, request: Awaitable["Answer"]) -> "Answer":
        """The answer to a request to the server of this URL, which is counted, whatever becomes of it."""
        began, status = time.monotonic(), None
        try:
            answer = await request
            status = answer.status
            return answer
        finally:
            self.answered(urlsplit(server).netloc, method, status, time.monotonic() - began)

    def answered(self, host: str, method: str, status: int | None, seconds: float) -> None:
        """Count a request; `status` is None if no answer arrived."""
        series = self._series.setdefault((host, method), RequestSeries(host, method))
        code = NO_ANSWER if status is None else str(status)
        series.codes[code] = series.codes.get(code, 0) + 1
        series.seconds.observe(seconds)

    def series(self) -> list[RequestSeries]:
        """The counts by server and method."""
        return list(self._series.values())
