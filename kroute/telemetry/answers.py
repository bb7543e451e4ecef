"""The agent's answers on its socket, except those that `observation` gives without loading more."""

from collections.abc import Mapping

import msgspec

from kroute.firewall.backend import settled_on
from kroute.inspect import planned_state, snapshot, support
from kroute.inspect.agent_socket import NAMES, SETTINGS, Answer
from kroute.kernel.ipvs.client import Ipvs
from kroute.model.document import encode
from kroute.model.objects import ObjectKey
from kroute.settings import AUTO
from kroute.telemetry.agent_parts import AgentParts


class Answers:
    """Answers the questions to an agent. No question changes anything."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self.by_question: Mapping[str, Answer] = {
            snapshot.QUESTION: self._show,
            SETTINGS: self._answer_settings,
            planned_state.SERVICE: self._answer_service,
            planned_state.FRONTEND: self._answer_frontend,
            NAMES: self._answer_names,
            support.PLANS: self._answer_plans,
            support.OBJECTS: self._answer_objects,
            support.RECENT: support.recent_answer,
        }

    async def _show(self, _about: str) -> bytes:
        async with Ipvs() as ipvs:
            table = await ipvs.read()
        shown = snapshot.of_agent(
            self._parts.broadcaster.plans, table, self._parts.controllers.set_fills(), self._parts.firewall
        )
        return encode(shown)

    async def _answer_names(self, _about: str) -> bytes:
        return msgspec.json.encode(sorted(map(str, self._parts.broadcaster.services)))

    async def _answer_settings(self, _about: str) -> bytes:
        """The settings contain no secrets, only the names of files that do."""
        settings = self._parts.settings if self._parts.firewall.given else settled_on(self._parts.settings, AUTO)
        return msgspec.json.encode(settings, enc_hook=str)

    async def _answer_service(self, about: str) -> bytes:
        found = await planned_state.of_service(self._parts.catalog, self._parts.broadcaster, ObjectKey.parse(about))
        if found is not None:
            found.problems += self._parts.controllers.ejected([server.key for server in found.virtual_servers])
        return msgspec.json.encode(found)

    async def _answer_frontend(self, about: str) -> bytes:
        """Raises ValueError for a malformed key; the socket then answers with nothing."""
        key = planned_state.read_key(about)
        found = await planned_state.of_frontend(self._parts.catalog, self._parts.broadcaster, key)
        found.problems += self._parts.controllers.ejected([key])
        return msgspec.json.encode(found)

    async def _answer_plans(self, _about: str) -> bytes:
        return await support.plans_answer(self._parts.broadcaster.plans)

    async def _answer_objects(self, _about: str) -> bytes:
        return await support.objects_answer(self._parts.catalog, self._parts.broadcaster.services)
