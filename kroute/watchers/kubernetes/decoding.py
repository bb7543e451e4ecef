"""Decode the API's bytes to objects.

Lists and watch lines are split into raw objects first, so that a malformed object affects no other. msgspec does that.
If one of the objects makes msgspec refuse the whole text, `kroute.watchers.json_text` does it.
"""

import asyncio
from datetime import datetime
from typing import TypeVar

import msgspec
import structlog

from kroute.model.objects import EndpointSlice, KubernetesObject, ObjectKey, ObjectMeta, UnreadablePolicy
from kroute.watchers.json_text import decoded, elements, members
from kroute.watchers.kubernetes.errors import ApiError

log = structlog.get_logger(__name__)

T = TypeVar("T")

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the BOOKMARK that ends a streaming list (KEP-3157)."""
TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"
"""The annotation of an EndpointSlice that says when what it describes has changed."""

LONGEST_OBJECT = 16 << 20
"""Bytes of an object's JSON. etcd's limit is 1.5 MiB, and JSON may need six bytes for each byte."""
LONGEST_NAME = 253
LONGEST_VERSION = 128
"""Characters of a resourceVersion, which becomes a part of URLs. In etcd it is a 64-bit number."""
IDENTITY_WITHIN = 4096
"""The first bytes of an object, which contain its name and version: the API server writes them first."""
_NOWHERE = slice(0)
_decode_text = msgspec.json.Decoder(str).decode
LONGEST_LINE = LONGEST_OBJECT + (64 << 10)
"""Bytes of a line that are kept: enough to find whose object it is, and that the object is too long."""


class ListMeta(msgspec.Struct):
    """`metadata` of a list. `token` is the continue token for its next page."""

    resource_version: str = msgspec.field(name="resourceVersion", default="")
    token: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct):
    """A list, or one page of it, with raw objects."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class Event(msgspec.Struct):
    """A watch line, with a raw object. The object of an ERROR is a Status."""

    type: str
    object: msgspec.Raw


class Identity(msgspec.Struct):
    """The part of `metadata` that names an object and its version."""

    name: str = ""
    namespace: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    annotations: dict[str, str] | None = None

    @property
    def key(self) -> ObjectKey:
        """The object's namespace and name."""
        return ObjectKey(self.namespace, self.name)

    @property
    def ends_initial_events(self) -> bool:
        """Whether this is the BOOKMARK after the last object of a streaming list."""
        return (self.annotations or {}).get(INITIAL_EVENTS_END) == "true"


class _Identified(msgspec.Struct):
    metadata: Identity


class Malformed(msgspec.Struct, frozen=True):
    """An object that does not match its kind. `identity` is empty if not even that can be read."""

    identity: Identity
    problem: str


_decode_page = msgspec.json.Decoder(Page).decode
_decode_meta = msgspec.json.Decoder(ListMeta).decode
_decode_event = msgspec.json.Decoder(Event).decode
_decode_identified = msgspec.json.Decoder(_Identified).decode
_decode_unreadable_policy = msgspec.json.Decoder(UnreadablePolicy).decode


def read_answer(form: type[T], body: bytes) -> T:
    """An answer of this form. Raises ApiError: it is of another."""
    try:
        return decoded(msgspec.json.Decoder(form).decode, body)
    except msgspec.DecodeError as error:
        raise ApiError(0, "", f"the API server's answer cannot be read: {error}") from error


async def read_page(body: bytes) -> Page:
    """Decode a list, or one page of it. If an object in it cannot even be skipped, a thread splits the text.

    Raises:
        msgspec.DecodeError: it is no list.
    """
    try:
        page = _decode_page(body)
    except (RecursionError, ValueError):
        page = await asyncio.to_thread(_take_page_apart, body)
    if len(page.metadata.resource_version) > LONGEST_VERSION:
        raise msgspec.DecodeError(f"its resourceVersion has more than {LONGEST_VERSION} characters")
    return page


def _take_page_apart(body: bytes) -> Page:
    parts = members(body)
    if b"metadata" not in parts or b"items" not in parts:
        raise msgspec.DecodeError("it has no metadata or no items")
    metadata = decoded(_decode_meta, body[parts[b"metadata"]])
    items = body[parts[b"items"]]
    return Page(metadata, None if items == b"null" else [msgspec.Raw(item) for item in elements(items)])


def read_event(line: bytes) -> Event:
    """Decode a watch line. If msgspec refuses it, find its type and the bytes that seem to be its object.

    Raises:
        msgspec.DecodeError: not even those can be found.
    """
    try:
        return decoded(_decode_event, line)
    except msgspec.DecodeError:
        parts = members(line[:IDENTITY_WITHIN])
        if b"type" not in parts or b"object" not in parts:
            raise
        kind = decoded(_decode_text, line[parts[b"type"]])
    return Event(kind, msgspec.Raw(line[parts[b"object"].start :].rstrip().removesuffix(b"}")))


def read_identity(raw: msgspec.Raw | bytes) -> Identity:
    """The name and version of an object whose other fields may be malformed.

    Raises:
        msgspec.DecodeError: it has no name.
    """
    try:
        identity = decoded(_decode_identified, raw).metadata
        _check_lengths(identity)
    except msgspec.DecodeError:
        identity = _identity_in(bytes(raw)[:IDENTITY_WITHIN])
        if not identity.name:
            raise
    return identity


def _check_lengths(identity: Identity | ObjectMeta) -> None:
    """Raise DecodeError for a name or version that is longer than the API server accepts."""
    if max(len(identity.name), len(identity.namespace)) > LONGEST_NAME:
        raise msgspec.DecodeError(f"its name or namespace has more than {LONGEST_NAME} characters")
    if len(identity.resource_version) > LONGEST_VERSION:
        raise msgspec.DecodeError(f"its resourceVersion has more than {LONGEST_VERSION} characters")


def _identity_in(text: bytes) -> Identity:
    metadata = text[members(text).get(b"metadata", _NOWHERE)]
    fields = members(metadata)
    name, namespace = (_text(metadata[fields.get(field, _NOWHERE)], LONGEST_NAME) for field in (b"name", b"namespace"))
    return Identity(name, namespace, _text(metadata[fields.get(b"resourceVersion", _NOWHERE)], LONGEST_VERSION))


def _text(value: bytes, longest: int) -> str:
    try:
        text = decoded(_decode_text, value)
    except msgspec.DecodeError:
        return ""
    return text if len(text) <= longest else ""


class ObjectDecoder:
    """Decodes the objects of one kind; a malformed one is logged and counted."""

    def __init__(self, kind: type[KubernetesObject]) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode
        self.malformed = 0

    def decode(self, raw: msgspec.Raw | bytes) -> KubernetesObject | Malformed:
        """The object, or what could be read of its identity; of a policy also one that allows nothing."""
        try:
            return self._decode_sound(raw)
        except msgspec.DecodeError as error:
            problem = str(error)
        try:
            identity = read_identity(raw)
        except msgspec.DecodeError:
            identity = Identity()
        self.malformed += 1
        closed = _closed_policy(self._kind, identity, raw)
        consequence = "skipped; what is served of it stays as it was"
        log.error(
            "object.malformed",
            kind=self._kind.__name__,
            object=str(identity.key),
            resource_version=identity.resource_version,
            problem=problem,
            consequence=consequence if closed is None else "it allows nothing to its pods",
        )
        return closed or Malformed(identity, problem)

    def _decode_sound(self, raw: msgspec.Raw | bytes) -> KubernetesObject:
        if len(memoryview(raw)) > LONGEST_OBJECT:
            raise msgspec.DecodeError(f"it has more than {LONGEST_OBJECT >> 20} MiB, the limit")
        item = decoded(self._decode, raw)
        _check_lengths(item.metadata)
        return item


def _closed_policy(
    kind: type[KubernetesObject], identity: Identity, raw: msgspec.Raw | bytes
) -> KubernetesObject | None:
    """What the pods of a malformed policy get; None: it is none, or its name or these pods cannot be read."""
    try:
        found: UnreadablePolicy = decoded(_decode_unreadable_policy, raw)
    except msgspec.DecodeError:
        return None
    return found.closed(kind, identity.key, identity.resource_version) if identity.name else None


def trigger_time(item: KubernetesObject) -> float | None:
    """When the pod or Service behind an EndpointSlice changed (Unix time), by its controller's annotation."""
    text = (item.metadata.annotations or {}).get(TRIGGER_TIME) if isinstance(item, EndpointSlice) else None
    if text is None:
        return None
    try:
        return msgspec.convert(text, datetime).timestamp()
    except (msgspec.ValidationError, ArithmeticError, ValueError):  # beyond Unix time
        return None


class LineBuffer:
    """Holds the beginning of a line that has not ended yet, at most LONGEST_LINE bytes."""

    def __init__(self) -> None:
        self._unfinished = bytearray()

    @property
    def is_within_line(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._unfinished)

    def take(self, piece: bytes) -> list[bytes]:
        """Add the bytes that have arrived. Returns the lines that they complete."""
        *lines, rest = piece.split(b"\n")
        if lines and (self._unfinished or len(lines[0]) > LONGEST_LINE):
            self._keep(lines[0])
            lines[0] = bytes(self._unfinished)
            self._unfinished = bytearray()
        if rest:
            self._keep(rest)
        return lines

    def _keep(self, piece: bytes) -> None:
        self._unfinished += piece[: LONGEST_LINE - len(self._unfinished)]
