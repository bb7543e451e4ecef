"""Everything that an agent or a director opens on its way to being ready fails once; it is ready all the same."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kroute import agent
from kroute.checks import preflight
from kroute.director import director
from kroute.firewall import backend, succession
from kroute.kernel import modules
from kroute.kernel.net.addresses import Addresses, InterfaceAddress
from tests import starting
from tests.fakes.kernel import FakeKernel, FakeLink
from tests.fakes.node_kernel import FakeNodeKernel, open_fake_kernel
from tests.openings import EVENTS, Openings
from tests.unit.fake_node import new_kernel

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

    for module in (agent, director, backend, succession):
        monkeypatch.setattr(module, "open_kernel", opened)
    monkeypatch.setattr(modules, "load", load_all)
    monkeypatch.setattr(preflight, "has_capability", _after(preflight.has_capability))
    return fake


def _after(look: Callable[[int], bool]) -> Callable[[int], bool]:
    """Return a look at the process's capabilities that finds every one."""

    def has(number: int) -> bool:
        look(number)
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
