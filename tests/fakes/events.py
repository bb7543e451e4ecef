"""Events as the API server keeps them: it refuses a name that is taken, and to change one that is not there."""

import asyncio
from collections.abc import Mapping
from typing import Any

from kroute.watchers.kubernetes.errors import ApiError
from tests.apiserver.resources import EVENTS
from tests.apiserver.status import StatusError
from tests.apiserver.validation import validate
from tests.apiserver.writes import merge


class Events:
    """What was created and patched. The next requests meet `refusals`, one each."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        """By path."""
        self.created: list[tuple[str, dict[str, Any]]] = []
        self.refusals: list[Exception] = []
        self._answered = asyncio.Semaphore(0)

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        self._answer()
        key = f"{path}/{body['metadata']['name']}"
        if key in self.objects:
            raise ApiError(409, "AlreadyExists", key)
        self._put(key, dict(body), None)
        self.created.append((path, dict(body)))

    async def patch(self, path: str, patch: Mapping[str, Any]) -> None:
        self._answer()
        if path not in self.objects:
            raise ApiError(404, "NotFound", path)
        self._put(path, merge(self.objects[path], patch), self.objects[path])

    async def answers(self, count: int) -> None:
        """Wait until so many more requests were answered, and what they led to is done."""
        for _ in range(count):
            await self._answered.acquire()
        await asyncio.sleep(0)

    def _answer(self) -> None:
        self._answered.release()
        if self.refusals:
            raise self.refusals.pop(0)

    def _put(self, key: str, event: dict[str, Any], previous: dict[str, Any] | None) -> None:
        try:
            validate(EVENTS, event, previous)
        except StatusError as error:
            raise ApiError(error.code, error.body["reason"], error.body["message"]) from error
        self.objects[key] = event
