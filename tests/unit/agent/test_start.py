"""Everything that an agent or a director opens on its way to being ready fails once; it is ready all the same."""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kroute.agent import start, wiring
from kroute.base.backoff import retry_when_exhausted
from kroute.checks import finding, preflight
from kroute.director import wiring as director
from kroute.firewall import backend, succession
from kroute.kernel import modules
from kroute.kernel.net.addresses import Addresses, InterfaceAddress
from kroute.runtime import runner
from kroute.settings import Settings
from kroute.telemetry.loop_watch import LoopWatch
from kroute.watchers.kubernetes.errors import ConfigurationError
from tests import starting
from tests.apiserver import ApiServer
from tests.fakes.kernel import FakeKernel, FakeLink
from tests.fakes.node_kernel import FakeNodeKernel, open_fake_kernel
from tests.openings import EVENTS, Openings
from tests.unit.fake_node import new_kernel
from tests.unit.watching import PATIENCE, eventually, service

MOST_ERRORS = max(map(len, EVENTS.values()))


@pytest.fixture
async def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    """Return a kernel in memory with this machine's addresses, which kroute takes for the node's."""
    fake = new_kernel()
    async with Addresses() as addresses:
        here = {it.address: InterfaceAddress("e1", it.address, it.prefix_length) for it in await addresses.of_node()}
    fake.links |= {"e1": FakeLink(98, addresses=here), "lo": FakeLink(99, kind="")}

    @asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[FakeNodeKernel]:
        async with open_fake_kernel(fake) as clients:
            yield clients

    async def load_all(_names: object) -> list[str]:
        return []

    for module in (wiring, director, backend, succession):
        monkeypatch.setattr(module, "open_kernel", opened)
    monkeypatch.setattr(modules, "load", load_all)
    monkeypatch.setattr(preflight, "has_capability", _after(preflight.has_capability))
    return fake


def _after(look: Callable[..., bool]) -> Callable[..., bool]:
    """Return a look at the process's capabilities that finds every one."""

    def has(*asked: Any) -> bool:
        look(*asked)
        return True

    return has


@pytest.mark.parametrize("number", range(MOST_ERRORS))
@pytest.mark.parametrize("serve", [starting.an_agent, starting.a_director])
async def test_it_is_ready_though_everything_that_it_opens_fails_once(
    kernel: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: starting.Serve, number: int
) -> None:
    starting.do_not_wait(monkeypatch)
    openings = Openings(number)

    async def is_served() -> bool:
        return any(starting.VIP in link.addresses for link in kernel.links.values())

    logs = await starting.start(serve, tmp_path, openings, is_served)
    assert not starting.DEFECTS & {line["event"] for line in logs}
    assert len(openings.failed) > 30


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT], ids=errno.errorcode.get)
@pytest.mark.parametrize("serve", [starting.an_agent, starting.a_director])
async def test_it_goes_on_while_it_cannot_write_that_it_is_ready(
    kernel: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: starting.Serve, number: int
) -> None:
    starting.do_not_wait(monkeypatch)
    touch, left = Path.touch, 3

    def fail(path: Path, *arguments: Any, **named: Any) -> None:
        nonlocal left
        if path.name == "ready" and (left := left - 1) >= 0:
            raise OSError(number, os.strerror(number))
        touch(path, *arguments, **named)

    monkeypatch.setattr(Path, "touch", fail)

    async def is_served() -> bool:
        return (tmp_path / "state/ready").exists()

    logs = await starting.start(serve, tmp_path, Openings(0, times=0), is_served)
    [lacking] = [it for it in logs if it["event"] == "resources.exhausted"]
    assert lacking["what"] == "creating the file that says ready"
    assert lacking["next_step"].endswith("trying again")


OF_AN_AGENT = ("loading kroute's modules", "looking for what is missing", "locking", "starting", "following the kernel")
OF_A_DIRECTOR = ("looking for what is missing", "locking", "starting", "following the machine's addresses")


@pytest.mark.parametrize(
    ("serve", "step"),
    [
        *((starting.an_agent, step) for step in (*OF_AN_AGENT, "opening the agent's socket")),
        *((starting.a_director, step) for step in (*OF_A_DIRECTOR, "opening the director's socket")),
    ],
)
async def test_one_that_waits_for_a_resource_is_stopped(
    kernel: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: starting.Serve, step: str
) -> None:
    async def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def without(what: str, attempt: Callable[[], Awaitable[object]]) -> object:
        return await retry_when_exhausted(what, fail if what == step else attempt)

    monkeypatch.setattr(runner, "retry_when_exhausted", without)
    async with ApiServer() as server, asyncio.timeout(PATIENCE):
        settings = Settings(
            node_name="n", master=(server.url,), state_dir=tmp_path, external_ip_ranges=("203.0.113.0/24",)
        )
        with capture_logs() as logs:
            serving = asyncio.create_task(serve(settings))  # type: ignore[arg-type]
            await eventually(lambda: any((it["event"], it.get("what")) == ("resources.exhausted", step) for it in logs))
            os.kill(os.getpid(), signal.SIGTERM)
            assert await serving == 0
    assert "kroute.stopping" in {it["event"] for it in logs}


class TestOrder:
    """The lists are requested before anything else is done; what goes wrong is said in its usual order."""

    async def test_all_is_listed_while_the_node_is_looked_at(
        self, kernel: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listed: list[set[str]] = []
        async with ApiServer() as server:
            server.apply(service("web"))

            async def look(_settings: Settings) -> tuple[None, list[finding.Finding]]:
                await eventually(lambda: len({it.path for it in server.requests}) == 3)
                listed.append({it.path for it in server.requests})
                return None, [finding.failed("modules", "something is missing", "get it")]

            monkeypatch.setattr(preflight, "look_at_node", look)
            settings = Settings(node_name="node1", master=(server.url,), state_dir=tmp_path)
            assert await start.serve(settings, LoopWatch()) == 1
        assert listed == [{"/api/v1/services", "/api/v1/nodes", "/apis/discovery.k8s.io/v1/endpointslices"}]

    async def test_what_is_missing_on_the_node_is_said_before_what_is_wrong_with_the_kubeconfig(
        self, kernel: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = Settings(node_name="node1", kubeconfig=tmp_path / "absent", state_dir=tmp_path)
        with pytest.raises(ConfigurationError, match="absent cannot be read"):
            await start.serve(settings, LoopWatch())
        monkeypatch.setattr(preflight, "has_capability", lambda *_: False)
        assert await start.serve(settings, LoopWatch()) == 1
