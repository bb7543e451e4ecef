"""End the stand-in and start it again with its data, step by step as a real API server was recorded."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from tests.apiserver.recording import DIRECTORY
from tests.apiserver.server import ApiServer

WRITTEN_MEANWHILE = 10
"""By how many revisions the recorded server was ahead of the watches after its start, although nothing was missed."""


class Restart(NamedTuple):
    """When each step happens, in seconds since the order to end, at which the port is closed.

    `broken`: the watches that were open end. `listening`: the port is open again; 403 for everything. `allowed`: lists
    and watches are answered, a watch from an old version with 410. `ready`: /readyz says so.
    """

    broken: float
    listening: float
    allowed: float
    ready: float

    @classmethod
    def recorded(cls) -> Self:
        """The steps of `restart.json`."""
        steps = json.loads((DIRECTORY / "stored" / "restart.json").read_text())["steps"]
        return cls(
            broken=_first(step["t"] for step in steps if step["what"] == "the watch broke"),
            listening=_first(step["t"] for step in steps if "status" in step),
            allowed=_first(step["t"] for step in steps if _answers(step, "watch from the old version", 200)),
            ready=_first(step["t"] for step in steps if _answers(step, "readyz", 200)),
        )

    def lasting(self, seconds: float) -> Self:
        """The same steps with the port closed for so many seconds."""
        later = seconds - self.listening
        return self._replace(
            broken=min(self.broken, seconds / 2),
            listening=seconds,
            allowed=self.allowed + later,
            ready=self.ready + later,
        )

    async def of(self, server: ApiServer) -> None:
        """Take the server through the steps. Returns when it is ready."""
        began = asyncio.get_running_loop().time()

        async def until(moment: float) -> None:
            await asyncio.sleep(began + moment - asyncio.get_running_loop().time())

        await server.close_port()
        await until(self.broken)
        server.break_watches()
        await until(self.listening)
        server.access.denies_everything, server.is_ready = True, False
        server.store.advance(server.store.revision + WRITTEN_MEANWHILE)
        server.compact()
        await server.open_port()
        await until(self.allowed)
        server.access.allow_all()
        await until(self.ready)
        server.is_ready = True


def _answers(step: dict[str, Any], what: str, status: int) -> bool:
    return bool(step["what"] == what and step.get("status") == status)


def _first(moments: Iterator[float]) -> float:
    return min(moments)
