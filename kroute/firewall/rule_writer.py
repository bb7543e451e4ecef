"""What both backends do alike when they write rules: they note and log what becomes of them."""

from collections.abc import Awaitable, Callable
from typing import ClassVar, Generic, TypeVar

import structlog

from kroute.kernel.errors import KernelError

log = structlog.get_logger(__name__)

K = TypeVar("K")


class RuleWriter(Generic[K]):
    """Writes rules in parts; `K` is the key of a part. A part that the kernel refuses is logged once.

    `hindered_by` says what has kept the last round from writing what the kernel could have; "" if nothing has.
    """

    hindering: ClassVar[frozenset[int]]
    """The errors while another program changes the tables too."""

    def __init__(self) -> None:
        self.hindered_by = ""
        self.written: dict[K, object] = {}
        self.failing: set[K] = set()
        self.standing: set[K] = set()
        """The parts that were right after they were last checked or written."""

    def rules_hindered_by(self) -> str:
        return self.hindered_by

    async def keep(
        self, key: K, write: Callable[[], Awaitable[tuple[object, list[str]]]], without: str, **where: str
    ) -> list[str]:
        """Write a part; returns the drift: what was wrong although the same rules had been written before.

        `write` returns the rules and what was wrong. `without` says what the node lacks without them.
        """
        try:
            rules, wrong = await write()
        except KernelError as error:
            if key not in self.failing:
                log.warning("rules.failed", **where, error=str(error), next_step=without)
            if error.errno in self.hindering:
                self.hindered_by = str(error)
            self.failing.add(key)
            self.standing.discard(key)
            return []
        self.failing.discard(key)
        self.standing.add(key)
        before, self.written[key] = self.written.get(key), rules
        if wrong and before != rules:
            log.info("rules.written", **where, what=wrong)
            return []
        return wrong
