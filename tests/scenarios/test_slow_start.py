"""A new endpoint's share of the connections climbs beside those that serve already, through a restart of the agent."""

from collections import Counter
from collections.abc import Iterator

import pytest

from kroute.model.plan import SLOW_START_STEPS
from tests.lab.deployment import Deployment, deployed, eventually, goes_on
from tests.lab.objects import endpoint_slices, service
from tests.scenarios.conftest import World

ADDRESSES = ("10.254.0.90", "fd00:10:254::90")
SECONDS = 30
CALLS = 30
"""Calls between two looks at the weights."""
ANNOTATIONS = {"kroute.io/service.scheduler": "wrr", "kroute.io/slow-start": f"{SECONDS}s"}


@pytest.fixture(scope="module")
def running(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(world.cluster, tmp_path_factory.mktemp("feed"), "--masquerade-all", nodes=("node1",)) as running:
        yield running


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

    running.apply(service("web", *ADDRESSES, annotations=ANNOTATIONS), *endpoint_slices("web", old))
    await eventually(lambda: serve(len(old)))
    assert set(weights().values()) == {SLOW_START_STEPS}, "of the first ones none has to be spared"
    stream = await world.visitor.open_stream(address, 8080)
    running.apply(*endpoint_slices("web", world.web))
    await eventually(lambda: serve(len(world.web)))
    assert 0 < weight_of_new() < SLOW_START_STEPS // 2

    async def shares_until(weight: int) -> tuple[float, float]:
        """Call until the new endpoint has this weight. Returns its share, and the share that its weights meant."""
        hosts: Counter[str] = Counter()
        meant = 0.0
        while (before := weight_of_new()) < weight:
            hosts += await world.visitor.spread(address, 8080, CALLS)
            weight_between = (before + weight_of_new()) / 2
            meant += CALLS * weight_between / (weight_between + SLOW_START_STEPS * len(old))
        return hosts[new.name] / hosts.total(), meant / hosts.total()

    share, meant = await shares_until(SLOW_START_STEPS // 2)
    assert share == pytest.approx(meant, abs=0.05)
    assert share < 0.75 / (len(old) + 1)

    before = weight_of_new()
    await running.agents["node1"].kill()
    await running.start("--masquerade-all", nodes=("node1",))
    assert before <= weight_of_new() < SLOW_START_STEPS, "a restart neither begins anew nor ends it"

    def has_climbed() -> None:
        assert weight_of_new() == SLOW_START_STEPS

    await eventually(has_climbed, within=SECONDS)
    hosts = await world.visitor.spread(address, 8080, 10 * (len(old) + 1))
    assert hosts[new.name] == pytest.approx(10, abs=1)
    await goes_on(stream)
    await stream.close()
    running.delete(service("web", *ADDRESSES), *endpoint_slices("web", world.web))
