"""The agent's answers on its socket."""

from collections.abc import Mapping

import msgspec

from kroute.controllers.node_controllers import NodeControllers
from kroute.firewall.backend import Choice, settled_on
from kroute.inspect import planned_state, snapshot, support
from kroute.inspect.agent_socket import NAMES, SETTINGS, Answer
from kroute.kernel.ipvs.client import Ipvs
from kroute.model.document import encode
from kroute.model.objects import ObjectKey
from kroute.planning.catalog import Catalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.settings import AUTO, Settings


class Answers:
    """Answers every question to an agent. No question changes anything."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        broadcaster: Broadcaster,
        firewall: Choice,
        controllers: NodeControllers,
    ) -> None:
        self._firewall = firewall
        self._controllers = controllers
        self._settings = settings
        self._catalog = catalog
        self._broadcaster = broadcaster
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
        shown = snapshot.of_agent(self._broadcaster.plans, table, self._controllers.set_fills(), self._firewall)
        return encode(shown)

    async def _answer_names(self, _about: str) -> bytes:
        return msgspec.json.encode(sorted(map(str, self._broadcaster.services)))

    async def _answer_settings(self, _about: str) -> bytes:
        """The settings contain no secrets, only the names of files that do."""
        settings = self._settings if self._firewall.given else settled_on(self._settings, AUTO)
        return msgspec.json.encode(settings, enc_hook=str)

    async def _answer_service(self, about: str) -> bytes:
        found = await planned_state.of_service(self._catalog, self._broadcaster, ObjectKey.parse(about))
        if found is not None:
            found.problems += self._controllers.ejected([server.key for server in found.virtual_servers])
        return msgspec.json.encode(found)

    async def _answer_frontend(self, about: str) -> bytes:
        """Raises ValueError for a malformed key; the socket then answers with nothing."""
        key = planned_state.read_key(about)
        found = await planned_state.of_frontend(self._catalog, self._broadcaster, key)
        found.problems += self._controllers.ejected([key])
        return msgspec.json.encode(found)

    async def _answer_plans(self, _about: str) -> bytes:
        return await support.plans_answer(self._broadcaster.plans)

    async def _answer_objects(self, _about: str) -> bytes:
        return await support.objects_answer(self._catalog, self._broadcaster.services)
