"""Start an agent: ask the API server for everything first, and load most of the program while it answers.

Importing an agent's modules takes as long as listing a thousand Services. The lists need only a quarter of the modules:
the settings, the API client, and the types of the objects. So these are loaded first, connections are opened, and the
lists are requested. The other modules follow in small steps. Between two steps the event loop processes what has
arrived: TLS handshakes continue, and objects are decoded and kept. Then `wiring.serve` checks the node, and takes the
objects that were kept.

An error of these early requests is not reported here. `wiring.serve` opens the API again in its usual place. So a
prerequisite that the node lacks is reported first, and every error where operators expect it.
"""

import asyncio
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING

from kroute.base.backoff import exhaustion
from kroute.model.kinds import watched
from kroute.runtime import memory
from kroute.runtime.runner import begun, stop_signal, unless
from kroute.settings import Settings
from kroute.watchers.kubernetes.errors import ConfigurationError

if TYPE_CHECKING:
    from kroute.telemetry.loop_watch import LoopWatch
    from kroute.watchers.kubernetes.watcher import FollowedCluster

STEPS = (
    "kroute.kernel.ipvs.client",
    "kroute.kernel.node_kernel",
    "kroute.checks.preflight",
    "kroute.reconcile.staged_controller",
    "kroute.controllers.route_fix",
    "kroute.controllers.ipvs.virtual_servers",
    "kroute.controllers.service_proxy.controller",
    "kroute.controllers.node_controllers",
    "kroute.planning.frontends",
    "kroute.planning.endpoint_reasons",
    "kroute.planning.catalog",
    "kroute.telemetry.statistics",
    "kroute.telemetry.events",
    "kroute.telemetry.observation",
    "kroute.agent.wiring",
)
"""The agent's modules, in an order in which each imports few that are not loaded yet. The last one imports all the
others; they are listed only to divide its import into steps of some 10 ms."""
TURNS = 4
"""Turns of the event loop before each step: what has arrived passes through so many tasks on its way."""


async def serve(settings: Settings, loop_watch: "LoopWatch") -> int:
    """Run an agent until SIGTERM; returns the exit code. `loop_watch` watches the event loop in which this runs."""
    stop = stop_signal()
    async with AsyncExitStack() as stack:
        stack.enter_context(memory.seldom())
        cluster = await unless(stop, _followed_early(settings, stack))
        memory.return_large_blocks()  # before a list comes
        await begun(stop, "loading kroute's modules", _load)
        if stop.is_set():
            return 0
        from kroute.agent import wiring  # noqa: PLC0415

        return await wiring.serve(settings, loop_watch, stop, cluster)


async def _followed_early(settings: Settings, stack: AsyncExitStack) -> "FollowedCluster | None":
    """The cluster, whose lists are requested now; None for manifests, or if it cannot be followed yet."""
    if settings.manifests is not None:
        return None
    from kroute.watchers.kubernetes.api import Api  # noqa: PLC0415  not for manifests
    from kroute.watchers.kubernetes.watcher import followed  # noqa: PLC0415

    try:
        return await stack.enter_async_context(followed(await Api.open(settings), watched(settings)))
    except Exception as error:
        if isinstance(error, ConfigurationError) or exhaustion(error) is not None:
            return None
        raise


async def _load() -> None:
    for name in STEPS:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        import_module(name)
