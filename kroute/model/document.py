"""What commands print for programs: documents, like those of the Kubernetes API.

A document is written with `apiVersion` and `kind` before its fields (`encode`). Names of fields
are in camelCase, protocols are `TCP`, `UDP` and `SCTP`, and the elements of a list are its `items`. Files in
`docs/schemas/` describe every kind. A field may be added at any time; a field that changes its meaning or goes needs
another version.
"""

from collections.abc import Iterable
from typing import ClassVar

import msgspec

API_VERSION = "kroute.io/v1"


class View(msgspec.Struct, rename="camel"):
    """A part of a document."""


class Document(View):
    """A whole document. `kind` is the name of its form."""

    kind: ClassVar[str]

    def names(self) -> Iterable[str]:
        """What it lists, one name each, for `-o name`. Other commands take these names."""
        raise NotImplementedError


def encode(found: Document) -> bytes:
    """The document as one line of JSON, `apiVersion` and `kind` first."""
    head = msgspec.json.encode({"apiVersion": API_VERSION, "kind": found.kind})
    body = msgspec.json.encode(found)
    return head[:-1] + (b"," if len(body) > len(b"{}") else b"") + body[1:]
