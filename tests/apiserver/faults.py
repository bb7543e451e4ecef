"""Failures on request: what goes wrong between a server and its clients, and when."""

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["answer", "drop", "delay", "truncate", "cut", "stall", "expire"]
Where = Literal["any", "list", "watch", "write"]


@dataclass
class Fault:
    """One kind of failure, for the next `times` requests that it concerns."""

    kind: FaultKind
    where: Where = "any"
    resource: str = ""
    times: int = 1
    after: int = 0
    """For a watch: lines that are sent before it happens."""
    status: int = 500
    retry_after: int | None = None
    seconds: float = 0.0


class Faults:
    """The failures that are due. A request meets at most one of them, the one that was asked for first.

    kinds:
        answer    the HTTP error `status`, with Retry-After when given
        drop      the connection is reset: a list unanswered, a watch after `after` lines
        delay     the answer begins `seconds` late
        truncate  half of the body, or of the line after `after` lines, then the connection is reset
        cut       the same, but the response is ended in good order
        stall     after `after` lines not a byte more, the connection stays open
        expire    a watch is told 410 after `after` lines
    """

    def __init__(self) -> None:
        self.due: list[Fault] = []

    def add(self, kind: FaultKind, **how: object) -> Fault:
        fault = Fault(kind, **how)  # type: ignore[arg-type]
        self.due.append(fault)
        return fault

    def clear(self) -> None:
        self.due.clear()

    def take(self, where: Where, resource: str) -> Fault | None:
        """The failure for this request, if one is due."""
        for fault in self.due:
            if fault.where in {"any", where} and fault.resource in {"", resource}:
                fault.times -= 1
                if fault.times == 0:
                    self.due.remove(fault)
                return fault
        return None
