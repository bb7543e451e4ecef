"""The result of checking one thing on the node or in the cluster."""

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How much a finding matters."""

    OK = "OK"
    WARNING = "WARNING"
    """kroute works, but not as well as it could, or in a way that may surprise."""
    FAIL = "FAIL"
    """kroute cannot work."""


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """One thing that was checked. `next_step` says what to do about it; empty if nothing."""

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
    """A prerequisite is missing without which kroute cannot work."""
    return Finding(check, Level.FAIL, message, next_step)
