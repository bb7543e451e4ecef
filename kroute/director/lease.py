"""The Lease by which directors agree on the active one, and this director's identity in it.

The format is that of client-go's leader election. `coordination.k8s.io/v1` Lease: `holderIdentity` is empty when nobody
holds it, `renewTime` and `acquireTime` are RFC 3339 with microseconds. All other fields, such as annotations, are kept.
Writes carry the resourceVersion that was read, so of two concurrent writes the second is refused.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog

from kroute.base.backoff import exhaustion
from kroute.model.objects import Int32
from kroute.runtime.state_dir import IDENTITY, StateDirectoryError
from kroute.watchers.json_text import decoded
from kroute.watchers.kubernetes.api import Api

log = structlog.get_logger(__name__)

_API = "/apis/coordination.k8s.io/v1/namespaces"
_decode_document = msgspec.json.Decoder(dict[str, Any]).decode
_LENGTH = 37
"""The size of the file with the uuid, in bytes."""


class LeaseRole(Enum):
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

    def annotated(self, name: str, text: str) -> "Lease":
        """The same Lease with this annotation."""
        metadata = self.document.get("metadata") or {}
        annotations = {**(metadata.get("annotations") or {}), name: text}
        return Lease(self.spec, {**self.document, "metadata": {**metadata, "annotations": annotations}})


class LeaseLock:
    """Reads and writes one Lease. Raises ApiError, and DecodeError if the server sends something else."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._collection = f"{_API}/{namespace}/leases"

    async def read(self) -> Lease:
        return _decode(await self._api.get(f"{self._collection}/{self._name}"))

    async def create(self, spec: LeaseSpec) -> None:
        """Create the Lease. Raises ApiError 409 if it exists already."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": self._namespace, "name": self._name},
            "spec": msgspec.to_builtins(spec),
        }
        await self._api.create(self._collection, body)

    async def update(self, lease: Lease, spec: LeaseSpec) -> Lease:
        """Replace the spec of the Lease. Raises ApiError 409 if it has changed since it was read."""
        body = {**lease.document, "spec": {**(lease.document.get("spec") or {}), **msgspec.to_builtins(spec)}}
        return _decode(await self._api.replace(f"{self._collection}/{self._name}", body))


def timestamp(now: datetime) -> str:
    """A time as the API's MicroTime."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _decode(body: bytes) -> Lease:
    """Decode without `managedFields`: the API server keeps them if a write has none."""
    document = decoded(_decode_document, body)
    spec = msgspec.convert(document.get("spec"), LeaseSpec | None)
    if isinstance(metadata := document.get("metadata"), dict):
        metadata.pop("managedFields", None)
    return Lease(spec or LeaseSpec(), document)


class DirectorIdentity:
    """The identity in the Lease of the one director that has claimed the state directory: `NAME_UUID`, as in client-go.

    Two directors may have the same name, since two machines that were installed from one image have the same host name.
    The uuid tells them apart. It is kept in the state directory, so that a director that was killed recognises its own
    Lease and goes on.
    """

    def __init__(self, name: str, path: Path, unique: str) -> None:
        self._name = name
        self._path = path
        self._unique = unique

    def __str__(self) -> str:
        return f"{self._name}_{self._unique}"

    @classmethod
    def open(cls, name: str, state_dir: Path) -> Self:
        """The identity of the previous run, or a new one if none is stored or readable.

        Raises:
            StateDirectoryError: a new one cannot be stored, or the system lacks a resource.
        """
        path = state_dir / IDENTITY
        try:
            if (kept := _kept(path)) is not None:
                return cls(name, path, kept)
            identity = cls(name, path, str(uuid.uuid4()))
            identity._keep()
        except OSError as error:
            raise StateDirectoryError(f"cannot keep this director's identity in {path}: {error.strerror}") from error
        return identity

    def renew(self) -> str:
        """Take a new identity, and return it."""
        self._unique = str(uuid.uuid4())
        try:
            self._keep()
        except OSError as error:
            consequence = "restarted, this director does not recognise its Lease and waits for it to expire"
            log.warning("identity.not_kept", path=str(self._path), error=error.strerror, consequence=consequence)
        return str(self)

    def _keep(self) -> None:
        """Store it.

        A process that is killed during this gets a new one; no Lease can have been taken under this one yet.
        """
        self._path.write_text(f"{self._unique}\n")


def _kept(path: Path) -> str | None:
    """The content of the file, or None if it is no uuid.

    Raises OSError when the system lacks a resource: the identity may be there all the same.
    """
    try:
        with path.open() as file:
            return str(uuid.UUID(file.read(_LENGTH + 1).strip()))
    except (OSError, ValueError) as error:
        if exhaustion(error) is not None:
            raise
        return None
