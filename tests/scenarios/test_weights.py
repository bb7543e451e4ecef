"""Connections are divided by weight, and a weight that changes costs no open connection."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from tests.lab.allocation import Allocator
from tests.lab.crowd import clients, crowd, targets
from tests.lab.deployment import Deployment, deployed, eventually, goes_on
from tests.lab.objects import Object, endpoint_slices, node, service
from tests.scenarios.conftest import World

WEIGHTS = {"web-1": 6, "web-2": 3, "web-3": 1}
"""web-1 by its Pod's label (2) and its zone (3), web-2 by its Node (3)."""

CONNECTIONS = {"wrr": 700, "wlc": 700, "sed": 700, "mh": 3000}
"""In each family: 10,200 altogether. mh is a sample, which needs more: its deviation is 0.9 % with so many."""

TOLERANCE = 0.03
"""Of all connections."""


def pod(name: str, weight: int | None) -> Object:
    labels = {"kroute.io/weight": str(weight)} if weight is not None else {}
    metadata = {"namespace": "default", "name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}


def slices(world: World) -> list[Object]:
    """The slices of the web pods, which name their Pods."""
    made = endpoint_slices("web", world.web)
    for piece in made:
        for endpoint, host in zip(piece["endpoints"], world.web, strict=True):
            endpoint["targetRef"] = {"kind": "Pod", "namespace": "default", "name": host.name}
    return made


def nodes(world: World, **weights: int) -> list[Object]:
    """The Nodes with these weights; node1 is in zone a, the others in zone b."""
    made = [node(it, zone="a" if it.name == "node1" else "b") for it in world.nodes]
    for item in made:
        name = item["metadata"]["name"]
        item["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        if name in weights:
            item["metadata"]["annotations"] = {"kroute.io/weight": str(weights[name])}
    return made


@pytest.fixture(scope="module")
def running(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """kroute on node1, which watches the Pods that have weights, for all tests of this file."""
    flags = ("--masquerade-all", "--pod-weights", "--resync-period", "1h")
    with deployed(world.cluster, tmp_path_factory.mktemp("feed"), *flags, nodes=("node1",)) as running:
        yield running


class Served:
    """The Service of the web pods at both of its addresses, as node1 serves it."""

    def __init__(self, world: World, running: Deployment, *addresses: str) -> None:
        self.world, self.running, self.addresses = world, running, addresses
        self.node = world.cluster.node("node1")

    def apply(self, scheduler: str, **annotations: str) -> None:
        named = {f"kroute.io/{name}": text for name, text in annotations.items()}
        flags = {"kroute.io/scheduler-flags": "mh-port,mh-fallback"} if scheduler == "mh" else {}
        self.running.apply(
            service("web", *self.addresses, annotations={"kroute.io/scheduler": scheduler, **flags, **named}),
            *slices(self.world),
        )

    def weights(self, address: str) -> dict[str, int]:
        row = self.node.ipvs()[f"TCP {f'[{address}]' if ':' in address else address}:8080"]
        by_address = {f"{it.ip}:8080": it.name for it in self.world.web}
        by_address |= {f"[{it.ip6}]:8080": it.name for it in self.world.web}
        return {by_address[server]: it.weight for server, it in row.real_servers.items()}

    async def until(self, scheduler: str, weights: dict[str, int]) -> None:
        """Wait until connections go to the pods by these weights."""

        def has_both() -> None:
            bound = {it.partition("/")[0] for it in self.node.addresses("kube-ipvs0")}
            assert bound.issuperset(self.addresses), "an address goes live last"
            for address in self.addresses:
                row = self.node.ipvs()[f"TCP {f'[{address}]' if ':' in address else address}:8080"]
                assert (row.scheduler, self.weights(address)) == (scheduler, weights)

        await eventually(lambda: _found(has_both))
        for address in self.addresses:  # the firewall refuses a port that had no endpoints until its sets are written
            await eventually(partial(self.world.visitor.http, address, 8080))


def _found(check: object) -> None:
    try:
        check()  # type: ignore[operator]
    except KeyError as error:
        raise AssertionError(f"{error} is not served yet") from error


@pytest.fixture
async def web(running: Deployment, world: World, free: Allocator) -> Served:
    addresses = free.cluster_ips()
    return Served(world, running, addresses.ip, addresses.ip6)


@pytest.fixture(autouse=True)
async def cleared(running: Deployment) -> object:
    yield
    await running.clear()


async def test_connections_are_divided_by_weight(web: Served, world: World, running: Deployment) -> None:
    running.apply(*nodes(world, node2=3), pod("web-1", 2), pod("web-3", None))
    names = {it.ip: it.name for it in world.web} | {it.ip6: it.name for it in world.web}
    with crowd(world.visitor) as visitor:
        for scheduler, count in CONNECTIONS.items():
            web.apply(scheduler, weights="zone/a=3")
            await web.until(scheduler, WEIGHTS)
            for address, family in zip(web.addresses, ("IPv4", "IPv6"), strict=True):
                found = await targets(visitor, address, 8080, clients(family, count))
                assert None not in found.values()
                went = Counter(names[str(it).rpartition(":")[0].strip("[]")] for it in found.values())
                assert sum(went.values()) == count
                off = {name: went[name] / count - weight / 10 for name, weight in WEIGHTS.items()}
                assert max(map(abs, off.values())) <= TOLERANCE, (scheduler, family, went)


async def test_a_weight_that_changes_costs_no_open_connection(web: Served, world: World, running: Deployment) -> None:
    running.apply(*nodes(world), pod("web-1", 2))
    web.apply("wrr")
    await web.until("wrr", {"web-1": 2, "web-2": 1, "web-3": 1})
    streams = [await world.visitor.open_stream(address, 8080) for address in web.addresses for _ in range(6)]
    for weight in (5, 0, 3):
        running.apply(pod("web-1", weight), *nodes(world, node3=weight))
        await web.until("wrr", {"web-1": weight, "web-2": 1, "web-3": weight})
        for stream in streams:
            await goes_on(stream)
        if not weight:
            hosts = {(await world.visitor.http(address, 8080)).host for address in web.addresses for _ in range(4)}
            assert hosts == {"web-2"}
    running.delete(pod("web-1", 3))
    await web.until("wrr", {"web-1": 1, "web-2": 1, "web-3": 3})
    for stream in streams:
        await goes_on(stream)
        await stream.close()


async def test_near_servers_come_first(web: Served, world: World, running: Deployment) -> None:
    running.apply(*nodes(world))
    web.apply("wrr", locality="prefer-node, spill 80%")
    # 80 % at home, and of the rest each of three servers has a third, having the same room left.
    await web.until("wrr", {"web-1": 13, "web-2": 1, "web-3": 1})
    with crowd(world.visitor) as visitor:
        for address, family in zip(web.addresses, ("IPv4", "IPv6"), strict=True):
            found = await targets(visitor, address, 8080, clients(family, 300))
            near = sum(str(it).startswith((f"{world.web[0].ip}:", f"[{world.web[0].ip6}]:")) for it in found.values())
            assert abs(near / 300 - 13 / 15) <= TOLERANCE
