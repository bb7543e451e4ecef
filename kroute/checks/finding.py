"""What a check of the node or the cluster has found."""

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    """kroute works, though not as well as it could, or somebody may be surprised."""
    FAIL = "fail"
    """kroute cannot do its work."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at; `next_step` says what to do about it, where anything is to be done."""

    check: str
    level: Level
    message: str
    next_step: str = ""

    def __str__(self) -> str:
        return f"{self.message}: {self.next_step}" if self.next_step else self.message


def ok(check: str, message: str) -> Finding:
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, next_step: str) -> Finding:
    return Finding(check, Level.WARNING, message, next_step)


def failed(check: str, message: str, next_step: str) -> Finding:
    """Something is missing without which kroute cannot work."""
    return Finding(check, Level.FAIL, message, next_step)
