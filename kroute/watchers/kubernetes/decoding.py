"""From the API's bytes to objects.

Lists and watch lines are taken apart into raw objects first, so that a malformed one spoils nothing but itself.
"""

from datetime import datetime

import msgspec
import structlog

from kroute.model.objects import EndpointSlice, KubernetesObject, ObjectKey

log = structlog.get_logger(__name__)

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the BOOKMARK that ends a streaming list (KEP-3157)."""


class ListMeta(msgspec.Struct):
    """`metadata` of a list; `token` continues it."""

    resource_version: str = msgspec.field(name="resourceVersion", default="")
    token: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct):
    """A list, or one page of it; its objects are still raw."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class Event(msgspec.Struct):
    """A watch line; its object is still raw. An ERROR carries a Status."""

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


class _TriggerAnnotation(msgspec.Struct):
    triggered: datetime | None = msgspec.field(name="endpoints.kubernetes.io/last-change-trigger-time", default=None)


class _TriggerMetadata(msgspec.Struct):
    annotations: _TriggerAnnotation | None = None


class _Triggered(msgspec.Struct):
    metadata: _TriggerMetadata


class Malformed(msgspec.Struct, frozen=True):
    """An object that is not what its kind should be; `identity` is empty when not even that can be read."""

    identity: Identity
    problem: str


read_page = msgspec.json.Decoder(Page).decode
read_event = msgspec.json.Decoder(Event).decode
_read_identified = msgspec.json.Decoder(_Identified).decode


def read_identity(raw: msgspec.Raw | bytes) -> Identity:
    """Name and version of an object. Raises msgspec.DecodeError."""
    return _read_identified(raw).metadata


_read_triggered = msgspec.json.Decoder(_Triggered).decode


class ObjectDecoder:
    """Decodes the objects of one kind; a malformed one is logged and counted."""

    def __init__(self, kind: type[KubernetesObject]) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode
        self.malformed = 0

    def decode(self, raw: msgspec.Raw | bytes) -> KubernetesObject | Malformed:
        """The object, or what can be said of it."""
        try:
            return self._decode(raw)
        except msgspec.DecodeError as error:
            problem = str(error)
        try:
            identity = read_identity(raw)
        except msgspec.DecodeError:
            identity = Identity()
        self.malformed += 1
        log.error(
            "object.malformed",
            kind=self._kind.__name__,
            object=str(identity.key),
            resource_version=identity.resource_version,
            problem=problem,
            consequence="skipped; what is served of it stays as it was",
        )
        return Malformed(identity, problem)

    def trigger_time(self, raw: msgspec.Raw | bytes) -> float | None:
        """When (Unix time) what an EndpointSlice tells of has changed, by the annotation of its controller.

        It is read beside the object, which does not keep it: it is of use once, and there are tens of thousands of
        slices.
        """
        if self._kind is not EndpointSlice:
            return None
        try:
            annotations = _read_triggered(raw).metadata.annotations
        except msgspec.DecodeError:
            return None
        return annotations.triggered.timestamp() if annotations is not None and annotations.triggered else None
