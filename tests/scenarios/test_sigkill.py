"""kroute is killed at random moments while objects change all the time.

After each start the kernel must match the objects, and state that was right must never be interrupted: a Service that
nobody changes is polled while kroute dies and starts again, and a connection through it stays open. The moments and the
changes come from a seed.
"""

import asyncio
import itertools
import random
import socket
from collections.abc import Callable

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.kernel_state import connections_ever
from tests.lab.objects import Object, endpoint_slices, identity, service
from tests.lab.thoroughness import is_thorough, seed
from tests.scenarios.conftest import FAMILIES, World
from tests.scenarios.expected_state import assert_right

KILLS = 50 if is_thorough() else 16
CHURNING = 8
LONGEST_LIFE = 1.5
"""Each run is killed within so many seconds: some during their start, others after it."""
LOOKS = 2
"""How often the anchor is looked at in each two runs at least."""
ANCHOR_IPS = tuple(family.service_ip for family in FAMILIES)
ANCHOR_SERVERS = {f"TCP {family.at(family.service_ip, 8080)}" for family in FAMILIES}


class Churn:
    """Services and endpoints that change at random. `items` are the objects that exist now."""

    def __init__(self, world: World, deployment: Deployment, seed: int) -> None:
        self._world = world
        self._deployment = deployment
        self._random = random.Random(seed)
        self.items: dict[tuple[str, str, str], Object] = {}

    def create(self, *items: Object) -> None:
        self.items |= {identity(item): item for item in items}
        self._deployment.apply(*items)

    def step(self) -> None:
        """Change one object."""
        number = self._random.randrange(CHURNING)
        name = f"churn-{number}"
        present = [item for item in self.items.values() if item["metadata"]["name"].startswith(name)]
        if present and self._random.random() < 0.3:
            for item in present:
                del self.items[identity(item)]
            self._deployment.delete(*present)
            return
        pods = self._random.sample(self._world.web, self._random.randint(0, 3))
        scheduler = self._random.choice(["rr", "lc", "sh"])
        self.create(
            service(
                name, f"10.254.1.{number}", f"fd00:10:254::1:{number}",
                ports=self._random.choice([{"TCP": 80}, {"TCP": 80, "UDP": 53}, {"TCP": 81}]),
                annotations={"kroute.io/scheduler": scheduler},
            ),
            *endpoint_slices(name, pods, {"TCP": 8080, "UDP": 5353}),
        )  # fmt: skip

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.step()
            await asyncio.sleep(0.05)


async def watch_anchor(node: Node, stop: asyncio.Event) -> None:
    """Poll the anchor until `stop` is set, twice at least."""
    looks = 0
    while looks < LOOKS or not stop.is_set():
        table = await asyncio.to_thread(node.ipvs)
        for key in ANCHOR_SERVERS:
            if key not in table:  # a read of procfs, page by page, skips some while others go: read this one
                await asyncio.to_thread(node.run, "ipvsadm", "-Ln", "-t", key.removeprefix("TCP "))
                continue
            weights = [real.weight for real in table[key].real_servers.values()]
            assert weights == [1, 1, 1], f"virtual server {key} had weights {weights}"
        bound = await asyncio.to_thread(_bound_addresses, node)
        assert set(ANCHOR_IPS) <= bound, f"of the addresses {ANCHOR_IPS} only {bound} were bound"
        looks += 1


def _bound_addresses(node: Node) -> set[str]:
    """Return the anchor's local addresses, from procfs, which is faster than a command."""
    trie = node.namespace.read("/proc/net/fib_trie").splitlines()
    ipv4 = {line.split()[1] for line, below in itertools.pairwise(trie) if "host LOCAL" in below}
    ipv6 = {line.split()[0] for line in node.namespace.read("/proc/net/if_inet6").splitlines()}
    packed = {ip: socket.inet_pton(socket.AF_INET6, ip).hex() for ip in ANCHOR_IPS if ":" in ip}
    return {ip for ip in ANCHOR_IPS if ip in ipv4 or packed.get(ip) in ipv6}


async def test_sigkill_at_random_moments_leaves_nothing_wrong(
    world: World, deployment: Deployment, record_property: Callable[[str, object], None]
) -> None:
    by = seed()
    record_property("measured", f"kroute is killed at {KILLS} moments, seed {by}")
    print(f"seed {by}")
    node1 = world.cluster.node("node1")
    churn = Churn(world, deployment, by)
    churn.create(service("anchor", *ANCHOR_IPS), *endpoint_slices("anchor", world.web))
    for _ in range(CHURNING):
        churn.step()
    node_objects = [item for item in deployment.node_objects if identity(item)[2] == "node1"]
    await deployment.start(nodes=("node1",))
    streams = [await world.visitor.open_stream(ip, 8080) for ip in ANCHOR_IPS]
    dice = random.Random(by)
    for _ in range(KILLS // 2):
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(watch_anchor(node1, stop))
            group.create_task(churn.run(stop))
            await asyncio.sleep(dice.uniform(0, LONGEST_LIFE))
            await deployment.agents["node1"].kill()
            churn.step()
            await deployment.start(nodes=("node1",), wait=False)
            await asyncio.sleep(dice.uniform(0, LONGEST_LIFE))
            await deployment.agents["node1"].kill()
            await deployment.start(nodes=("node1",))
            stop.set()
        items = [*churn.items.values(), *node_objects]
        await eventually(lambda items=items: assert_right(node1, items), within=15)
    for stream in streams:
        await stream.close()
    for key in ANCHOR_SERVERS:
        assert connections_ever(node1.namespace, key.removeprefix("TCP ")) == 1
