"""Follow a directory of manifests: the same changes as from a cluster, without an API server.

Files are YAML or JSON as `kubectl get -o yaml` prints them. Each file is read as a whole, when its writer has closed
it. If a file cannot be read, its previous objects are kept. All state belongs to the one task that runs `run`.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import structlog

from kroute.base.backoff import retry_when_exhausted
from kroute.kernel.inotify import DirectoryChanges
from kroute.model.kinds import WATCHED, WatchedKind
from kroute.model.objects import Applied, Change, Deleted, KubernetesObject, Listed
from kroute.watchers.kubernetes.errors import ConfigurationError
from kroute.watchers.manifests.file import (
    Faulty,
    Found,
    Ignored,
    ObjectId,
    Part,
    UnreadableError,
    is_manifest,
    read_manifest,
)
from kroute.watchers.sink import BATCH, Sink

log = structlog.get_logger(__name__)

Objects = dict[ObjectId, KubernetesObject]


VANISHED_FOR = 0.5
"""Seconds after which a missing file counts as deleted: editors replace a file by first moving the old one away."""


class ManifestWatcher:
    """Passes on the objects of a directory's files, and every change of them."""

    def __init__(self, directory: Path, sink: Sink, kinds: Iterable[WatchedKind] = WATCHED) -> None:
        self._directory = directory
        self._sink = sink
        self._selects = {kind.type: kind.selects for kind in kinds}
        self._files: dict[str, Objects] = {}
        self._vanished: dict[str, float] = {}
        """When each file that has disappeared was missed first, on the loop's clock."""
        self._complaints: dict[str, list[str]] = {}
        self.unreadable: dict[str, str] = {}
        """Why the files that cannot be read as a whole cannot, by name."""
        self._holders: dict[ObjectId, set[str]] = {}
        self._passed_on: Objects = {}
        self._is_listed = False

    @property
    def faults(self) -> list[str]:
        """What cannot be read now, one sentence for each fault of a file."""
        return [f"{self._directory / name}: {each}" for name, some in self._complaints.items() for each in some]

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            ConfigurationError: the directory cannot be followed (any more).
        """
        await retry_when_exhausted(f"following --manifests {self._directory}", self._follow)

    async def _follow(self) -> None:
        """Read every file and follow the directory; what was read before an earlier end stays."""
        try:
            async with DirectoryChanges(self._directory) as changes:
                await self._scan(self._names() | self._files.keys())
                if not self._is_listed:
                    log.info("manifests.complete", files=len(self._files), objects=len(self._passed_on))
                    self._sink([Listed(kind) for kind in self._selects])
                    self._is_listed = True
                while True:
                    await self._scan(await self._changed(changes))
        except OSError as error:
            raise ConfigurationError(
                f"--manifests {self._directory} cannot be followed: {error.strerror}; it must be a directory that "
                "this process may read"
            ) from error

    async def _changed(self, changes: DirectoryChanges) -> set[str]:
        """Wait for a change, and return the names of the files to read.

        Among them are those that have been missing for long enough, however often others change.
        """
        due = min(self._vanished.values()) + VANISHED_FOR if self._vanished else None
        try:
            async with asyncio.timeout_at(due):
                names = await changes.next()
        except TimeoutError:
            return self._gone()
        # The files of a ConfigMap's volume are links through a link named `..data`, which is replaced for all of them
        # at once.
        if names is None or any(name.startswith("..") for name in names):
            return self._names() | self._files.keys()
        return {name for name in names if is_manifest(name)} | self._gone()

    def _gone(self) -> set[str]:
        """The files that have been missing for VANISHED_FOR."""
        now = asyncio.get_running_loop().time()
        return {name for name, since in self._vanished.items() if now >= since + VANISHED_FOR}

    def _names(self) -> set[str]:
        return {path.name for path in self._directory.iterdir() if is_manifest(path.name)}

    async def _scan(self, names: set[str]) -> None:
        """Read these files, and pass on the changes of the objects that they contained or contain."""
        before = {name: self._files.get(name, {}) for name in sorted(names)}
        for name, objects in before.items():
            await self._read(name, objects)
        touched: set[ObjectId] = set()
        for name, objects in before.items():
            after = self._files.get(name, {})
            touched |= objects.keys() | after.keys()
            for object_id in objects.keys() | after.keys():
                self._hold(object_id, name, held=object_id in after)
        changes = [change for object_id in sorted(touched, key=str) for change in self._compare(object_id)]
        for start in range(0, len(changes), BATCH):
            self._sink(changes[start : start + BATCH])
            await asyncio.sleep(0)

    async def _read(self, name: str, before: Objects) -> None:
        """Read a file. If it cannot be read, or has just disappeared, its previous objects are kept."""
        self.unreadable.pop(name, None)
        try:
            parts = await asyncio.to_thread(read_manifest, self._directory / name)
        except FileNotFoundError:
            if name in self._gone() or name not in self._files:
                self._vanished.pop(name, None)
                self._files.pop(name, None)
                self._complaints.pop(name, None)
            else:
                self._vanished.setdefault(name, asyncio.get_running_loop().time())
            return
        except UnreadableError as error:
            self._vanished.pop(name, None)
            self.unreadable[name] = str(error)
            self._complain("manifest.unreadable", name, [str(error)])
            return
        self._vanished.pop(name, None)
        self._files[name], complaints = _objects(name, parts, before)
        self._complain("manifest.faulty", name, complaints)

    def _complain(self, event: str, name: str, complaints: list[str]) -> None:
        """Log a file's faults once, and once that they are gone."""
        if complaints == self._complaints.get(name, []):
            return
        self._complaints[name] = complaints
        path = str(self._directory / name)
        if complaints:
            log.error(event, file=path, problems=complaints, consequence="what was read last is kept")
        else:
            log.info("manifest.readable", file=path)

    def _hold(self, object_id: ObjectId, name: str, *, held: bool) -> None:
        """Record that a file contains an object, or no longer does."""
        holders = self._holders.setdefault(object_id, set())
        if not held:
            holders.discard(name)
        elif name not in holders:
            holders.add(name)
            if len(holders - self._vanished.keys()) > 1:
                files = sorted(holders - self._vanished.keys())
                log.warning("manifest.duplicate", object=str(object_id), files=files, counts=files[-1])
        if not holders:
            del self._holders[object_id]

    def _compare(self, object_id: ObjectId) -> list[Change]:
        """The change to pass on for an object, if any. If several files contain it, the last one by name counts."""
        holders = self._holders.get(object_id)
        item = self._files[max(holders)][object_id] if holders else None
        selects = self._selects.get(object_id.kind)
        if item is not None and (selects is None or not selects(item)):
            item = None
        if item == self._passed_on.get(object_id):
            return []
        if item is None:
            del self._passed_on[object_id]
            return [Deleted(*object_id)]
        self._passed_on[object_id] = item
        return [Applied(item)]


def _objects(name: str, parts: Iterable[Part], before: Objects) -> tuple[Objects, list[str]]:
    """The objects of a file, and its faults. A malformed object keeps its previous version."""
    objects: Objects = {}
    complaints: list[str] = []
    for part in parts:
        match part:
            case Found(object_id, item):
                if object_id in objects:
                    complaints.append(f"{object_id} is in it twice; the later one counts")
                objects[object_id] = item
            case Faulty(object_id, problem):
                complaints.append(f"{object_id}: {problem}" if object_id else problem)
                if object_id in before:
                    objects[object_id] = before[object_id]
            case Ignored(kind):
                log.debug("manifest.kind_ignored", file=name, kind=kind)
    return objects, complaints
