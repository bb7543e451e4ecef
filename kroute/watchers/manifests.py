"""Follow a directory of manifests: the same changes as from a cluster, without an API server.

Files are YAML or JSON as `kubectl get -o yaml` prints them. Each file is read as a whole, when its writer has closed
it. If a file cannot be read, its previous objects are kept. All state belongs to the one task that runs `run`.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import structlog

from kroute.base.backoff import exhaustion, retry_when_exhausted
from kroute.base.wording import in_words
from kroute.kernel.inotify import DirectoryChanges
from kroute.model.kinds import POLICY_KINDS, WATCHED, WatchedKind
from kroute.model.objects import (
    Applied,
    Change,
    Deleted,
    KubernetesObject,
    Listed,
    ObjectKey,
    Pod,
    UnreadablePolicy,
)
from kroute.watchers import BATCH, Sink
from kroute.watchers.json_text import decoded
from kroute.watchers.kubernetes.errors import ConfigurationError

log = structlog.get_logger(__name__)

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
LONGEST_FILE = 64 << 20
"""The most bytes of a file: some 50,000 Services."""
LONGEST_NAME = 253
"""Characters of a name or namespace, as in the API."""
LISTS_WITHIN_EACH_OTHER = 8
_KINDS = {kind.name: kind for kind in (*WATCHED, *POLICY_KINDS)}
_MISFITS = (msgspec.ValidationError, ValueError, RecursionError)
"""What an object raises that does not match its kind."""
_decode_json = msgspec.json.Decoder().decode
VANISHED_FOR = 0.5
"""Seconds after which a missing file counts as deleted: editors replace a file by first moving the old one away."""


class ObjectId(NamedTuple):
    """The name of an object among all kinds."""

    kind: type[KubernetesObject]
    key: ObjectKey

    def __str__(self) -> str:
        return f"{self.kind.__name__} {self.key}"


class UnreadableError(Exception):
    """The file as a whole cannot be read: half-written, or neither YAML nor JSON."""


class Faulty(NamedTuple):
    """A malformed part of the file. `id` is None if not even its name can be read.

    `instead` counts as the object, whatever was read before.
    """

    id: ObjectId | None
    problem: str
    instead: KubernetesObject | None = None


class Ignored(NamedTuple):
    """An object of a kind that kroute does not read."""

    kind: str


Part: TypeAlias = KubernetesObject | Faulty | Ignored
"""What a file contains: an object, or what is none of kroute's."""


def is_manifest(name: str) -> bool:
    """Whether a file of this name is read. Editors' backup and swap files begin with a dot or have another suffix."""
    return not name.startswith(".") and Path(name).suffix in SUFFIXES


def read_manifest(path: Path) -> list[Part]:
    """The objects of a file, in order: those of all documents, and of every List in them.

    Raises:
        UnreadableError: the file cannot be read as a whole.
        FileNotFoundError: the file does not exist.
    """
    try:
        text = _read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        if exhaustion(error) is not None and error.errno != errno.EIO:
            raise  # it says nothing of the file
        raise UnreadableError(error.strerror or str(error)) from error
    if not text.strip():
        raise UnreadableError("it is empty (half-written?); to remove its objects, remove the file")
    documents = _parse_json(text) if path.suffix == ".json" else _parse_yaml(text)
    return [part for document in documents if document is not None for part in _parts(document, "")]


def _read(path: Path) -> bytes:
    """The bytes of a regular file. Reading a pipe or a device might block or never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableError("it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read(LONGEST_FILE + 1)
    finally:
        os.close(descriptor)
    if len(text) > LONGEST_FILE:
        raise UnreadableError(f"it has more than {LONGEST_FILE >> 20} MiB; divide it into several files")
    return text


def _parse_json(text: bytes) -> list[Any]:
    try:
        return [decoded(_decode_json, text)]
    except msgspec.DecodeError as error:
        raise UnreadableError(f"it is not JSON: {error}") from error


def _parse_yaml(text: bytes) -> list[Any]:
    from kroute.watchers import yaml_text  # noqa: PLC0415  0.02 s and 0.6 MiB, not needed for JSON

    try:
        return yaml_text.load(text)
    except yaml_text.FAILURES as error:
        raise UnreadableError(f"it is not YAML: {in_words(error)}") from error


def _parts(document: Any, kind_of_items: str, depth: int = 0) -> Iterator[Part]:
    """The objects of a document. The items of a ServiceList need not name their kind."""
    if not isinstance(document, dict):
        yield Faulty(None, f"expected an object with apiVersion and kind, found {type(document).__name__}")
        return
    name = document.get("kind", kind_of_items)
    if isinstance(name, str) and name.endswith("List") and isinstance(document.get("items"), list):
        if depth == LISTS_WITHIN_EACH_OTHER:
            yield Faulty(None, f"a List within {depth} others")
            return
        for item in document["items"]:
            yield from _parts(item, name.removesuffix("List"), depth + 1)
    elif isinstance(name, str) and name in _KINDS and _is_of_group(document, _KINDS[name].group):
        yield _read_object(document, _KINDS[name])
    elif name:
        yield Ignored(str(name)[:LONGEST_NAME])
    else:
        yield Faulty(None, "an object without a kind")


def _is_of_group(document: dict[str, Any], group: str) -> bool:
    """Whether this kind of object is the API's own: others have kinds of the same names, such as NetworkPolicy."""
    version = document.get("apiVersion")
    return not isinstance(version, str) or version.rpartition("/")[0] == group


def _read_object(document: dict[str, Any], kind: WatchedKind) -> KubernetesObject | Faulty:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return Faulty(None, f"a {kind.name} without metadata.name")
    namespace = (metadata.get("namespace") or "default") if kind.is_namespaced else ""
    if not _is_name(namespace) or not _is_name(metadata["name"]):
        allowed = f"text of at most {LONGEST_NAME} printable characters"
        return Faulty(None, f"a {kind.name} whose name or namespace is not {allowed}")
    object_id = ObjectId(kind.type, ObjectKey(namespace, metadata["name"]))
    document = {**document, "metadata": {**metadata, "namespace": namespace}}
    if kind.type is Pod and isinstance(status := document.get("status"), dict):  # nobody reads when it has changed
        document["status"] = {name: value for name, value in status.items() if name != "conditions"}
    try:
        return msgspec.convert(document, kind.type)
    except _MISFITS as error:
        closed = _closed_policy(object_id, document)
        return Faulty(object_id, f"{error}; it allows nothing to its pods" if closed else str(error), closed)


def _closed_policy(object_id: ObjectId, document: dict[str, Any]) -> KubernetesObject | None:
    """What the pods of a malformed policy get; None: it is none, or these cannot be read."""
    try:
        return msgspec.convert(document, UnreadablePolicy).closed(*object_id)
    except _MISFITS:
        return None


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= LONGEST_NAME and (name.isprintable() or not name)


Objects = dict[ObjectId, KubernetesObject]


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
            self.unreadable[name] = str(error)
            self._complain("manifest.unreadable", name, [str(error)])
        else:
            self._files[name], complaints = _objects(name, parts, before)
            self._complain("manifest.faulty", name, complaints)
        self._vanished.pop(name, None)

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
            case Faulty(object_id, problem, instead):
                complaints.append(f"{object_id}: {problem}" if object_id else problem)
                if object_id is not None and (kept := instead or before.get(object_id)) is not None:
                    objects[object_id] = kept
            case Ignored(kind):
                log.debug("manifest.kind_ignored", file=name, kind=kind)
            case item:
                object_id = ObjectId(type(item), item.key)
                if object_id in objects:
                    complaints.append(f"{object_id} is in it twice; the later one counts")
                objects[object_id] = item
    return objects, complaints
