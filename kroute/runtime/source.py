"""Where a program's objects come from: the API server, or a directory of manifests."""

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING

import msgspec

from kroute.model.node_facts import ApiFacts
from kroute.watchers import Sink

if TYPE_CHECKING:
    from kroute.watchers.kubernetes.api import Api
    from kroute.watchers.kubernetes.reflector import Reflector

Follow = Callable[[Sink], Coroutine[None, None, None]]
"""Passes every change of the watched objects on to a sink, until cancelled."""

FollowApi = Callable[[Callable[[ApiFacts], None]], Coroutine[None, None, None]]
"""Passes on what the way to the API says whenever that changes, until cancelled."""


async def _follow_no_api(_notify: Callable[[ApiFacts], None]) -> None:
    """Return at once: there is no API server."""


class ObjectSource(msgspec.Struct):
    """`follow` passes the changes on. `api` is the client of the API server; None: there is none.

    `reflectors` are those that watch, by kind. `faults` says what of the source cannot be read.
    """

    follow: Follow
    api: "Api | None" = None
    reflectors: Mapping[str, "Reflector"] = {}
    faults: Callable[[], list[str]] = list
    follow_api: FollowApi = _follow_no_api

    def keep_to(self, own: frozenset[str]) -> None:
        """Take the machine's own addresses, whenever they change: a connection from another one is dead."""
        if self.api is not None:
            self.api.peers.keep_to(own)
