"""One agent, and the API stand-in restarts, or one of three API servers goes: when a change is in the kernel."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from bench.phases.lengths import BenchError
from bench.phases.session import NO_RESYNCS, Session
from bench.place.node import API_ADDRESS, node_under_test
from bench.run import FIREWALLS
from bench.workload import PORT, TARGET_PORT, Workload
from tests.apiserver.relay import RelayProcess
from tests.apiserver.restart import Restart

SERVICES, ENDPOINTS = 100, 10
AWAY = (10.0, 29.0)
"""Seconds for which the port is closed, as kube-proxy and kube-router were measured."""
SERVERS = 3
WAYS: dict[str, Callable[[RelayProcess], None]] = {"killed": RelayProcess.kill, "hangs": RelayProcess.stop}
"""How an API server goes: its connections are reset, or nothing is answered on them."""
_CALM = 25.0
"""Seconds between two of them, after which a silent server has as little time again as at first."""
_LATEST = 120.0
_LOOK_EVERY = 0.05


async def measure(runs: int, say: Callable[[str], None]) -> tuple[str, list[dict[str, float]]]:
    """The lab, and seconds from /readyz to the changed endpoint in the kernel (negative: before) for each run."""
    figures = []
    workload = Workload(SERVICES, ENDPOINTS)
    async with node_under_test() as node, Session.open(node, workload, FIREWALLS[0]) as session:
        await session.start_agent(NO_RESYNCS)
        for number in range(runs):
            for away in AWAY:
                seconds = await _one(session, away, number)
                figures.append({"away": away, "seconds": seconds})
                say(f"away for {away:g} s: the change was in the kernel {seconds:+.2f} s after /readyz")
        await node.ask("stop")
    return node.lab, figures


async def _one(session: Session, away: float, number: int) -> float:
    restart = Restart.recorded().lasting(away)
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        restarting = group.create_task(_moment_of(restart.of(session.api)))
        await asyncio.sleep((restart.broken + restart.listening) / 2)
        session.apply(session.next_slice(number))
        await asyncio.sleep(began + restart.listening - time.monotonic())
        changed = group.create_task(_moment_of(_in_kernel(session)))
    return changed.result() - restarting.result()


async def measure_servers(runs: int, say: Callable[[str], None]) -> tuple[str, list[dict[str, Any]]]:
    """The lab, and seconds from the end of the API server in use to a change of that moment in the kernel."""
    figures: list[dict[str, Any]] = []
    workload = Workload(SERVICES, ENDPOINTS)
    async with node_under_test() as node, Session.open(node, workload, FIREWALLS[0]) as session:
        with ExitStack() as stack:
            port = urlsplit(session.api.url).port or 0
            relays = [RelayProcess(port, host=API_ADDRESS, scheme="https") for _ in range(SERVERS)]
            servers = {stack.enter_context(relay).url: relay for relay in relays}
            await session.start_agent({**NO_RESYNCS, "KROUTE_MASTER": ",".join(servers)})
            for number in range(runs):
                for way, end in WAYS.items():
                    await asyncio.sleep(_CALM)
                    in_use = servers[(await session.statistics()).api.server]
                    began = time.monotonic()
                    end(in_use)
                    session.apply(session.next_slice(number))
                    await _in_kernel(session)
                    seconds = time.monotonic() - began
                    figures.append({"way": way, "seconds": seconds})
                    say(f"one of {SERVERS} API servers {way}: the change was in the kernel after {seconds:.2f} s")
                    in_use.kill()
                    in_use.start()
            counted = (await session.statistics()).api.failovers
            if counted != len(figures):
                raise BenchError(f"{counted} fail-overs were counted, of {len(figures)}")
            await node.ask("stop")
    return node.lab, figures


async def _in_kernel(session: Session) -> None:
    expected: dict[str, Any] = {"expected": session.expected_table(), "port": PORT, "target_port": TARGET_PORT}
    async with asyncio.timeout(_LATEST):
        while await session.node.ask("differences", **expected):  # noqa: ASYNC110  the kernel sets no event
            await asyncio.sleep(_LOOK_EVERY)


async def _moment_of(step: Any) -> float:
    await step
    return time.monotonic()
