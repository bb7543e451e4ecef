"""On a real kernel, too, everything that kroute opens on its way to being ready fails once, and it is ready."""

from pathlib import Path

import pytest

from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.net.addresses import Addresses
from kroute.settings import Settings
from tests import starting
from tests.kernel.nodes import NODE_IP, run
from tests.kernel.test_kill_between_writes import in_child
from tests.openings import Openings


async def a_director(settings: Settings) -> int:
    return await starting.a_director(settings, "e0")


async def is_served() -> bool:
    async with Ipvs() as ipvs, Addresses() as addresses:
        bound = {it.address for it in await addresses.of_node()}
        return starting.VIP in bound and starting.VIP in {key[1] for key in await ipvs.read()}


async def is_bound() -> bool:
    async with Addresses() as addresses:
        return starting.VIP in {it.address for it in await addresses.of_node()}


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize(
    ("serve", "is_done"), [(starting.an_agent, is_served), (a_director, is_bound)], ids=["agent", "director"]
)
def test_it_is_ready_though_everything_that_it_opens_fails_once(
    namespace: None, tmp_path: Path, serve: starting.Serve, is_done: starting.IsDone, number: int
) -> None:
    run("ip link add e0 type dummy")
    run("ip link set e0 addrgenmode none up")
    run(f"ip addr add {NODE_IP}/24 dev e0")

    async def attempt() -> None:
        openings = Openings(number)
        with pytest.MonkeyPatch.context() as patch:
            starting.do_not_wait(patch)
            logs = await starting.start(serve, tmp_path, openings, is_done)
        assert not starting.DEFECTS & {line["event"] for line in logs}
        assert len(openings.failed) > 30

    assert in_child(attempt) == 0
