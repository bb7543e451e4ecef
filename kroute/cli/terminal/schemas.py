"""JSON schemas of the documents, made from their types."""

from collections.abc import Iterator
from typing import Any

import msgspec

from kroute.model.document import API_VERSION, Document

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(kind: type[Document]) -> dict[str, Any]:
    """The JSON schema of one kind of document, with all parts under `$defs`. Fields that it does not name may be added
    by a later version."""
    (reference,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    whole = dict(parts.pop(reference["$ref"].rpartition("/")[2]))
    head = {"apiVersion": {"const": API_VERSION}, "kind": {"const": kind.kind}}
    return {
        "$schema": DIALECT,
        "title": kind.kind,
        "type": "object",
        "description": _one_line(whole.get("description", "")),
        "properties": head | whole["properties"],
        "required": [*head, *whole.get("required", ())],
        "$defs": {name: _described(part) for name, part in sorted(parts.items())},
    }


def _described(part: dict[str, Any]) -> dict[str, Any]:
    return part | {"description": _one_line(part["description"])} if "description" in part else part


def _one_line(text: str) -> str:
    return " ".join(text.split())


def kinds(base: type[Document] = Document) -> Iterator[type[Document]]:
    """Every kind of document that has been imported."""
    for each in base.__subclasses__():
        yield each
        yield from kinds(each)
