"""Read one manifest file."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from kroute.base.backoff import exhaustion
from kroute.model.kinds import PODS, WATCHED, WatchedKind
from kroute.model.objects import KubernetesObject, ObjectKey
from kroute.settings.wording import in_words
from kroute.watchers.json_text import decoded

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
LONGEST_FILE = 64 << 20
"""The most bytes of a file: some 50,000 Services."""
LONGEST_NAME = 253
"""Characters of a name or namespace, as in the API."""
LISTS_WITHIN_EACH_OTHER = 8

_KINDS = {kind.name: kind for kind in (*WATCHED, PODS)}


class ObjectId(NamedTuple):
    """The name of an object among all kinds."""

    kind: type[KubernetesObject]
    key: ObjectKey

    def __str__(self) -> str:
        return f"{self.kind.__name__} {self.key}"


class UnreadableError(Exception):
    """The file as a whole cannot be read: half-written, or neither YAML nor JSON."""


class Found(NamedTuple):
    """An object of the file."""

    id: ObjectId
    item: KubernetesObject


class Faulty(NamedTuple):
    """A malformed part of the file. `id` is None if not even its name can be read."""

    id: ObjectId | None
    problem: str


class Ignored(NamedTuple):
    """An object of a kind that kroute does not read."""

    kind: str


Part: TypeAlias = Found | Faulty | Ignored


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


_decode_json = msgspec.json.Decoder().decode


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
    elif isinstance(name, str) and name in _KINDS:
        yield _read_object(document, _KINDS[name])
    elif name:
        yield Ignored(str(name)[:LONGEST_NAME])
    else:
        yield Faulty(None, "an object without a kind")


def _read_object(document: dict[str, Any], kind: WatchedKind) -> Found | Faulty:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return Faulty(None, f"a {kind.name} without metadata.name")
    namespace = (metadata.get("namespace") or "default") if kind.is_namespaced else ""
    if not _is_name(namespace) or not _is_name(metadata["name"]):
        allowed = f"text of at most {LONGEST_NAME} printable characters"
        return Faulty(None, f"a {kind.name} whose name or namespace is not {allowed}")
    object_id = ObjectId(kind.type, ObjectKey(namespace, metadata["name"]))
    try:
        item: KubernetesObject = msgspec.convert(
            {**document, "metadata": {**metadata, "namespace": namespace}}, kind.type
        )
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        return Faulty(object_id, str(error))
    return Found(object_id, item)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= LONGEST_NAME and (name.isprintable() or not name)
