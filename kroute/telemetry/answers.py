"""The agent's answers on its socket, except those that `observation` gives without loading more."""

from collections.abc import Mapping

import msgspec

from kroute.firewall.backend import settled_on
from kroute.inspect import peers, planned_state, pod_routes, policies, snapshot, support
from kroute.inspect.agent_socket import NAMES, SETTINGS, Answer
from kroute.kernel.ipvs.client import Ipvs
from kroute.model.document import encode
from kroute.model.objects import ObjectKey
from kroute.settings import AUTO
from kroute.telemetry.agent_parts import AgentParts


def answers_of(parts: AgentParts) -> Mapping[str, Answer]:
    """The answers by question. No question changes anything."""
    catalog, broadcaster, controllers = parts.catalog, parts.broadcaster, parts.controllers

    async def show(_about: str) -> bytes:
        async with Ipvs() as ipvs:
            table = await ipvs.read()
        return encode(snapshot.of_agent(broadcaster.plans, table, controllers.set_fills(), parts.firewall))

    async def names(_about: str) -> bytes:
        return msgspec.json.encode(sorted(map(str, broadcaster.services)))

    async def settings(_about: str) -> bytes:
        """The settings contain no secrets, only the names of files that do."""
        given = parts.settings if parts.firewall.given else settled_on(parts.settings, AUTO)
        return msgspec.json.encode(given, enc_hook=str)

    async def service(about: str) -> bytes:
        found = await planned_state.of_service(catalog, broadcaster, ObjectKey.parse(about))
        if found is not None:
            keys = [server.key for server in found.virtual_servers]
            found.problems += controllers.ejected(keys)
            found.learned = peers.learned(controllers.optional.announcing, {key.address for key in keys})
        return msgspec.json.encode(found)

    async def frontend(about: str) -> bytes:
        """Raises ValueError for a malformed key; the socket then answers with nothing."""
        key = planned_state.read_key(about)
        found = await planned_state.of_frontend(catalog, broadcaster, key)
        found.problems += controllers.ejected([key])
        found.learned = peers.learned(controllers.optional.announcing, [key.address])
        return msgspec.json.encode(found)

    return {
        snapshot.QUESTION: show,
        SETTINGS: settings,
        planned_state.SERVICE: service,
        planned_state.FRONTEND: frontend,
        NAMES: names,
        pod_routes.QUESTION: pod_routes.answer_about(controllers.optional.pod_routes),
        **policies.answers_about(parts.policies),
        **peers.answers_about(controllers.optional.announcing),
        support.PLANS: lambda _about: support.plans_answer(broadcaster.plans),
        support.OBJECTS: lambda _about: support.objects_answer(catalog, broadcaster.services),
        support.RECENT: support.recent_answer,
    }
