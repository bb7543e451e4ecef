"""An agent or a director starts, with the stand-in API server, while what it opens fails."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from kroute.agent import start as start_of_an_agent
from kroute.base import backoff
from kroute.checks import running_proxies
from kroute.director import wiring as director
from kroute.director.settings import DirectorSettings, LeaseSettings
from kroute.settings import ListenAddress, Settings
from kroute.telemetry.loop_watch import LoopWatch
from kroute.watchers.kubernetes import server_presence
from kroute.watchers.kubernetes.authentication import kubeconfig
from tests.apiserver import ApiServer
from tests.openings import Openings
from tests.unit.watching import service

VIP = "203.0.113.9"
DEFECTS = {"observation.failed", "request.failed", "kroute.refused", "prerequisite.missing"}
_WITHIN = 100.0
"""Seconds."""
_SLICE = {
    "kind": "EndpointSlice",
    "apiVersion": "discovery.k8s.io/v1",
    "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"name": "", "port": 8080}],
    "endpoints": [{"addresses": ["10.244.1.2"], "conditions": {"ready": True}}],
}

assert kubeconfig  # PyYAML cannot be imported a second time after an import that failed halfway

Serve = Callable[[Settings], Awaitable[int]]
IsDone = Callable[[], Awaitable[bool]]


async def an_agent(settings: Settings) -> int:
    return await start_of_an_agent.serve(settings, LoopWatch())


async def a_director(settings: Settings, interface: str = "lo") -> int:
    return await director.serve(DirectorSettings(settings, interface, lease=LeaseSettings(retry_period=0.1)))


def do_not_wait(patch: pytest.MonkeyPatch) -> None:
    """Let every attempt follow the one before at once."""
    patch.setattr(backoff.Backoff, "delay", lambda *_: 0.01)
    patch.setattr(server_presence.ServerPresence, "pause", lambda *_: 0.01)


async def start(serve: Serve, scratch: Path, openings: Openings, is_served: IsDone) -> list[dict[str, Any]]:
    """Serve until `is_served` and kroute is ready, stop it, and return what it has logged."""
    async with ApiServer(token="secret") as server:
        for item in (service("web", externalIPs=[VIP]), _SLICE):
            server.apply(item)
        (scratch / "token").write_text("secret")
        settings = Settings(
            node_name="node1",
            kubeconfig=server.kubeconfig(scratch / "config", tokenFile=str(scratch / "token")),
            state_dir=scratch / "state",
            scheduler="wrr",
            external_ip_ranges=("203.0.113.0/24",),
            resync_period=5.0,
            healthz_bind_address=ListenAddress("127.0.0.1", 0),
            metrics_bind_address=ListenAddress("127.0.0.1", 0),
            own_bind_address=ListenAddress("127.0.0.1", 0),
        )
        # What listens on the machine that runs the test is no other proxy of the agent's node.
        with capture_logs() as logs, patch.object(running_proxies, "LISTENERS", ()):
            try:
                await _start(serve, settings, openings, logs, is_served)
            finally:
                print("failed:", *openings.failed, "logged:", *logs, sep="\n")
    return list(logs)


async def _start(
    serve: Serve,
    settings: Settings,
    openings: Openings,
    logs: list[Any],
    is_served: IsDone,
) -> None:
    async def served() -> int:
        return await serve(settings)

    async with asyncio.timeout(_WITHIN), asyncio.TaskGroup() as group:
        with openings.failing():
            serving = group.create_task(served())
        while True:
            if "kroute.ready" in {line["event"] for line in logs} and await is_served():
                break
            await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 0
