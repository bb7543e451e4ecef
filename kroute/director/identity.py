"""This director's identity in the Lease, `NAME_UUID`, in the form of client-go's candidates.

Two directors may have the same name, since two machines that were installed from one image have the same host name. The
uuid tells them apart. It is kept in the state directory, so that a director that was killed recognises its own Lease
and goes on.
"""

import re
import uuid
from pathlib import Path
from typing import Self

import structlog

from kroute.base.backoff import exhaustion
from kroute.runtime.state_dir import IDENTITY, StateDirectoryError

log = structlog.get_logger(__name__)

_UUID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n")
_LENGTH = 37
"""The size of the file, in bytes."""


class Identity:
    """The identity of the one director that has claimed the state directory."""

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
        with path.open("rb") as file:
            text = file.read(_LENGTH + 1)
    except OSError as error:
        if exhaustion(error) is not None:
            raise
        return None
    return text.decode().strip() if _UUID.fullmatch(text) else None
