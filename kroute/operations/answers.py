"""What the agent answers on its socket."""

from typing import TYPE_CHECKING

import msgspec

from kroute.broadcaster import Broadcaster
from kroute.kernel.ipvs import Ipvs
from kroute.operations import agent_settings, dossier, snapshot
from kroute.planning.catalog import Catalog
from kroute.planning.objects import ObjectKey
from kroute.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kroute.operations.agent_socket import Answer


class Answers:
    """Everything that can be asked of an agent; nothing of it changes anything."""

    def __init__(self, settings: Settings, catalog: Catalog, broadcaster: Broadcaster) -> None:
        self._settings = settings
        self._catalog = catalog
        self._broadcaster = broadcaster
        self.by_question: Mapping[str, Answer] = {
            snapshot.QUESTION: self._show,
            agent_settings.QUESTION: self._tell_settings,
            dossier.SERVICE: self._tell_of_service,
            dossier.FRONTEND: self._tell_of_frontend,
        }

    async def _show(self, _about: str) -> bytes:
        async with Ipvs() as ipvs:
            table = await ipvs.read()
        return msgspec.json.encode(snapshot.of_agent(self._broadcaster.current.values(), table))

    async def _tell_settings(self, _about: str) -> bytes:
        return agent_settings.encode(self._settings)

    async def _tell_of_service(self, about: str) -> bytes:
        found = dossier.of_service(self._catalog, self._broadcaster.current, ObjectKey.parse(about))
        return msgspec.json.encode(found)

    async def _tell_of_frontend(self, about: str) -> bytes:
        """A question that makes no sense raises ValueError, which the socket answers with nothing."""
        found = dossier.of_frontend(self._catalog, self._broadcaster.current, dossier.read_key(about))
        return msgspec.json.encode(found)
