"""A new endpoint's share of the connections climbs beside those that serve already, through a restart of the agent.

The test changes how long a slow start takes: of an hour, which is the longest, nothing passes while it looks.
"""

from collections.abc import Iterator

import pytest

from kroute.model.plan import SLOW_START_STEPS
from tests.lab.deployment import Deployment, deployed, eventually, goes_on
from tests.lab.objects import Object, endpoint_slices, service
from tests.scenarios.conftest import World

ADDRESSES = ("10.254.0.90", "fd00:10:254::90")
STANDING = 3600
"""Seconds in which the weight takes a step every three minutes."""
CLIMBING = 120
"""Seconds in which it takes a step every six seconds."""
A_TENTH = SLOW_START_STEPS // 10
A_QUARTER = SLOW_START_STEPS // 4


@pytest.fixture(scope="module")
def running(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(world.cluster, tmp_path_factory.mktemp("feed"), "--masquerade-all", nodes=("node1",)) as running:
        yield running


def web(seconds: int) -> Object:
    annotations = {"kroute.io/scheduler": "wrr", "kroute.io/slow-start": f"{seconds}s"}
    return service("web", *ADDRESSES, annotations=annotations)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("address", ADDRESSES, ids=["IPv4", "IPv6"])
async def test_the_share_of_a_new_endpoint_climbs_with_its_weight_and_a_restart_goes_on(
    world: World, running: Deployment, address: str
) -> None:
    *old, new = world.web
    node = world.cluster.node("node1")
    key = f"TCP [{address}]:8080" if ":" in address else f"TCP {address}:8080"

    def weights() -> dict[str, int]:
        table = node.ipvs()
        return {name: it.weight for name, it in table[key].real_servers.items()} if key in table else {}

    def weight_of_new() -> int:
        return weights().get(f"[{new.ip6}]:8080" if ":" in address else f"{new.ip}:8080", 0)

    def serve(count: int) -> None:
        assert len(weights()) == count
        assert f"{address}/{128 if ':' in address else 32}" in node.addresses("kube-ipvs0")

    def has_at_least(weight: int) -> None:
        assert weight_of_new() >= weight

    async def has_the_share_of(weight: int) -> None:
        """Call once for each unit of all weights: wrr gives each real server as many calls as its weight."""
        hosts = await world.visitor.spread(address, 8080, weight + SLOW_START_STEPS * len(old))
        assert hosts[new.name] == pytest.approx(weight, abs=1), hosts

    running.apply(web(STANDING), *endpoint_slices("web", old))
    await eventually(lambda: serve(len(old)))
    assert set(weights().values()) == {SLOW_START_STEPS}, "of the first ones none has to be spared"
    stream = await world.visitor.open_stream(address, 8080)
    running.apply(*endpoint_slices("web", world.web))
    await eventually(lambda: serve(len(world.web)))
    assert weight_of_new() == A_TENTH
    await has_the_share_of(A_TENTH)

    running.apply(web(CLIMBING))
    await eventually(lambda: has_at_least(A_QUARTER), within=CLIMBING)
    running.apply(web(STANDING))
    await running.agents["node1"].kill()
    before = weight_of_new()
    await running.start("--masquerade-all", nodes=("node1",))
    assert before == weight_of_new() < SLOW_START_STEPS, "a restart neither begins anew nor ends it"
    await has_the_share_of(before)

    running.apply(web(1))
    await eventually(lambda: has_at_least(SLOW_START_STEPS))
    await has_the_share_of(SLOW_START_STEPS)
    await goes_on(stream)
    await stream.close()
    running.delete(web(1), *endpoint_slices("web", world.web))
