"""This director's identity in the Lease, `NAME_UUID`, in the form of client-go's candidates.

Two directors may have one name: two machines that were installed from one image have one host name. The uuid tells them
apart. It is kept in the state directory, so that a director that was killed recognises its own Lease and goes on.
"""

import re
import uuid
from pathlib import Path
from typing import Self

import structlog

from kroute.runtime.state_dir import IDENTITY, StateDirectoryError

log = structlog.get_logger(__name__)

_UUID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n")
_LENGTH = 37
"""Bytes of such a file."""


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
        """The identity of the run before; a new one where there is none, or none that can be read.

        Raises:
            StateDirectoryError: a new one cannot be kept.
        """
        path = state_dir / IDENTITY
        if (kept := _kept(path)) is not None:
            return cls(name, path, kept)
        identity = cls(name, path, str(uuid.uuid4()))
        try:
            identity._keep()
        except OSError as error:
            raise StateDirectoryError(f"cannot keep this director's identity in {path}: {error.strerror}") from None
        return identity

    def renew(self) -> str:
        """Take an identity that nobody has; returns it."""
        self._unique = str(uuid.uuid4())
        try:
            self._keep()
        except OSError as error:
            consequence = "restarted, this director does not recognise its Lease and waits for it to expire"
            log.warning("identity.not_kept", path=str(self._path), error=error.strerror, consequence=consequence)
        return str(self)

    def _keep(self) -> None:
        """Write it. Who is killed in between gets a new one, when no Lease can have been taken under this one yet."""
        self._path.write_text(f"{self._unique}\n")


def _kept(path: Path) -> str | None:
    """What the file holds, if that is a uuid."""
    try:
        with path.open("rb") as file:
            text = file.read(_LENGTH + 1)
    except OSError:
        return None
    return text.decode().strip() if _UUID.fullmatch(text) else None
