"""What one manifest file says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from kroute.model.kinds import WATCHED, WatchedKind
from kroute.model.objects import KubernetesObject, ObjectKey

SUFFIXES = frozenset({".yaml", ".yml", ".json"})

_KINDS = {kind.name: kind for kind in WATCHED}


class ObjectId(NamedTuple):
    """What names an object among all kinds."""

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
    """A part of the file that is not as it should be; `id` is None when not even its name can be read."""

    id: ObjectId | None
    problem: str


class Ignored(NamedTuple):
    """An object of a kind that kroute does not read."""

    kind: str


Part: TypeAlias = Found | Faulty | Ignored


def is_manifest(name: str) -> bool:
    """Whether a file of this name is read. Editors' backup and swap files start with a dot or end otherwise."""
    return not name.startswith(".") and Path(name).suffix in SUFFIXES


def read_manifest(path: Path) -> list[Part]:
    """The objects of a file, in its order: those of all documents, and of every List among them.

    Raises:
        UnreadableError: nothing can be said about the file.
        FileNotFoundError: it is gone.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    if not text.strip():
        raise UnreadableError("it is empty (half-written?); to remove its objects, remove the file")
    documents = _parse_json(text) if path.suffix == ".json" else _parse_yaml(text)
    return [part for document in documents if document is not None for part in _parts(document, "")]


def _parse_json(text: bytes) -> list[Any]:
    try:
        return [msgspec.json.decode(text)]
    except msgspec.DecodeError as error:
        raise UnreadableError(f"it is not JSON: {error}") from error


def _parse_yaml(text: bytes) -> list[Any]:
    import yaml  # noqa: PLC0415  # 25 ms, and as JSON the same objects do without

    from kroute.watchers.manifests.yaml_loader import ManifestLoader  # noqa: PLC0415

    try:
        return list(yaml.load_all(text, ManifestLoader))  # a subclass of the safe loader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UnreadableError(f"it is not YAML: {' '.join(str(error).split())}") from error


def _parts(document: Any, kind_of_items: str) -> Iterator[Part]:
    """The objects of a document; those of a ServiceList need not name their kind."""
    if not isinstance(document, dict):
        yield Faulty(None, f"expected an object with apiVersion and kind, found {type(document).__name__}")
        return
    name = document.get("kind", kind_of_items)
    if isinstance(name, str) and name.endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _parts(item, name.removesuffix("List"))
    elif isinstance(name, str) and name in _KINDS:
        yield _read_object(document, _KINDS[name])
    elif name:
        yield Ignored(str(name))
    else:
        yield Faulty(None, "an object without a kind")


def _read_object(document: dict[str, Any], kind: WatchedKind) -> Found | Faulty:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return Faulty(None, f"a {kind.name} without metadata.name")
    namespace = (metadata.get("namespace") or "default") if kind.is_namespaced else ""
    object_id = ObjectId(kind.type, ObjectKey(str(namespace), metadata["name"]))
    try:
        item: KubernetesObject = msgspec.convert(
            {**document, "metadata": {**metadata, "namespace": namespace}}, kind.type
        )
    except msgspec.ValidationError as error:
        return Faulty(object_id, str(error))
    return Found(object_id, item)
