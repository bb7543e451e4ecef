"""What the stand-in keeps: the objects, and the history that watches replay."""

import asyncio
import bisect
import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.apiserver.resources import BY_KIND, Object, ResourceType, key_of


@dataclass(frozen=True)
class StoredEvent:
    """One change; `item` is None when the object was deleted, `previous` when it was created."""

    revision: int
    type: ResourceType
    key: str
    item: Object | None
    previous: Object | None


class Store:
    """Objects by resource and key, one revision counter for all, and every change since the last compaction.

    Objects are never changed in place, so whoever reads one may keep it.
    """

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self._objects: dict[str, dict[str, Object]] = {kind: {} for kind in BY_KIND}
        self._history: list[StoredEvent] = []
        self._changed = asyncio.Event()

    def current(self, type_: ResourceType) -> Mapping[str, Object]:
        return self._objects[type_.kind]

    def at(self, type_: ResourceType, revision: int) -> Mapping[str, Object]:
        """The objects as they were at `revision`, which must not be compacted."""
        objects = dict(self._objects[type_.kind])
        for event in reversed(self.since(revision)):
            if event.type is type_:
                if event.previous is None:
                    del objects[event.key]
                else:
                    objects[event.key] = event.previous
        return objects

    def since(self, revision: int) -> Sequence[StoredEvent]:
        """Every change after `revision`."""
        return self._history[bisect.bisect_right(self._history, revision, key=lambda event: event.revision) :]

    def put(self, item: Object, *, verbatim: bool = False) -> Object:
        """Create or replace an object. Verbatim: as it is, its resourceVersion becomes the store's revision."""
        type_ = BY_KIND[item["kind"]]
        key = key_of(item)
        previous = self._objects[type_.kind].get(key)
        if verbatim:
            self.revision = max(self.revision, int(item["metadata"]["resourceVersion"]))
        else:
            self.revision += 1
            item = self._completed(item, type_, previous)
        self._objects[type_.kind][key] = item
        self._record(StoredEvent(int(item["metadata"]["resourceVersion"]), type_, key, item, previous))
        return item

    def delete(self, type_: ResourceType, key: str) -> Object:
        """Raises KeyError."""
        previous = self._objects[type_.kind].pop(key)
        self.revision += 1
        self._record(StoredEvent(self.revision, type_, key, None, previous))
        return previous

    def restore(self, items: Sequence[Object], revision: int) -> None:
        """Hold these objects as they are, without a history, at this revision."""
        for objects in self._objects.values():
            objects.clear()
        for item in items:
            self._objects[item["kind"]][key_of(item)] = item
        self.revision = revision
        self.compact()

    def advance(self, revision: int) -> None:
        """Something else in the cluster was written meanwhile."""
        self.revision = max(self.revision, revision)

    def compact(self, revision: int | None = None) -> None:
        """Forget what was up to `revision` (default: now)."""
        self.compacted = self.revision if revision is None else revision
        self._history = list(self.since(self.compacted))

    async def wait(self) -> None:
        """Until something changes."""
        await self._changed.wait()

    def wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _record(self, event: StoredEvent) -> None:
        self._history.append(event)
        self.wake()

    def _completed(self, item: Object, type_: ResourceType, previous: Object | None) -> Object:
        """The object with the metadata that the server fills in, in the server's order."""
        given = item["metadata"]
        old = previous["metadata"] if previous else {}
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = {
            "name": given["name"],
            **({"namespace": given["namespace"]} if "namespace" in given else {}),
            "uid": old.get("uid") or given.get("uid") or str(uuid.uuid4()),
            "resourceVersion": str(self.revision),
            "creationTimestamp": old.get("creationTimestamp") or given.get("creationTimestamp") or now,
        }
        rest = {name: value for name, value in item.items() if name not in {"kind", "apiVersion", "metadata"}}
        return {"kind": type_.kind, "apiVersion": type_.api_version, "metadata": {**given, **metadata}, **rest}
