"""The Lease by which directors agree on the active one, in the format of client-go's leader election.

`coordination.k8s.io/v1` Lease: `holderIdentity` is empty when nobody holds it, `renewTime` and `acquireTime` are RFC
3339 with microseconds. All other fields, such as annotations, are kept. Writes carry the resourceVersion that was read,
so of two concurrent writes the second is refused.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

import msgspec

from kroute.model.objects import Int32
from kroute.watchers.json_text import decoded

_API = "/apis/coordination.k8s.io/v1/namespaces"


class Role(Enum):
    """This director's role; UNKNOWN until the Lease has been read."""

    UNKNOWN = "unknown"
    STANDBY = "standby"
    ACTIVE = "active"


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """`spec` of a Lease: client-go's LeaderElectionRecord. Go writes an empty field as null, or leaves it out."""

    holder_identity: str | None = None
    lease_duration_seconds: Int32 | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: Int32 | None = None


class Lease(msgspec.Struct, frozen=True):
    """A Lease as it was read. `document` is the whole object."""

    spec: LeaseSpec
    document: Mapping[str, Any]


class LeaseRequests(Protocol):
    """The API requests for a Lease. Each raises ApiError."""

    async def get(self, path: str) -> bytes: ...

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        """Create an object in the collection."""

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Replace the object at the path, if it still has the resourceVersion of the body. Returns it."""


class _Document(msgspec.Struct):
    spec: LeaseSpec | None = None


class LeaseLock:
    """Reads and writes one Lease. Raises DecodeError if the server sends something else."""

    def __init__(self, requests: LeaseRequests, namespace: str, name: str) -> None:
        self._requests = requests
        self._namespace = namespace
        self._name = name

    async def read(self) -> Lease:
        return _decode(await self._requests.get(f"{self._collection}/{self._name}"))

    async def create(self, spec: LeaseSpec) -> None:
        """Create the Lease. Raises ApiError 409 if it exists already."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": self._namespace, "name": self._name},
            "spec": msgspec.to_builtins(spec),
        }
        await self._requests.create(self._collection, body)

    async def update(self, lease: Lease, spec: LeaseSpec) -> Lease:
        """Replace the spec of the Lease. Raises ApiError 409 if it has changed since it was read."""
        body = {**lease.document, "spec": {**(lease.document.get("spec") or {}), **msgspec.to_builtins(spec)}}
        return _decode(await self._requests.replace(f"{self._collection}/{self._name}", body))

    @property
    def _collection(self) -> str:
        return f"{_API}/{self._namespace}/leases"


def timestamp(now: datetime) -> str:
    """A time as the API's MicroTime."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_decode_spec = msgspec.json.Decoder(_Document).decode
_decode_document = msgspec.json.Decoder(dict[str, Any]).decode


def _decode(body: bytes) -> Lease:
    """Decode without `managedFields`: the API server keeps them if a write has none."""
    spec = decoded(_decode_spec, body).spec
    document = decoded(_decode_document, body)
    if isinstance(metadata := document.get("metadata"), dict):
        metadata.pop("managedFields", None)
    return Lease(spec or LeaseSpec(), document)
