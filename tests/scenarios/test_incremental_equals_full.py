"""After any changes and restarts the real kernel holds what a full computation from the final objects gives."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from kroute.settings import Settings
from tests.lab import objects
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.feed import Feed
from tests.lab.namespaces import CommandError
from tests.lab.objects import Object, identity
from tests.lab.thoroughness import is_thorough
from tests.scenarios.conftest import World
from tests.scenarios.expected_state import assert_right

PARTS, SEQUENCES = (5, 40) if is_thorough() else (1, 16)
"""Of a thorough run, and of any other. A test's end is awaited for a quarter of an hour, also in a slow machine, so
there are several parts; their sequences are others.
"""
NAMES = ("a", "b", "c", "d")
CLUSTER_IPS = (
    ("10.254.2.1", "fd00:10:254::2:1"),
    ("10.254.2.2", "fd00:10:254::2:2"),
    ("10.254.2.3",),
    ("fd00:10:254::2:4",),
)
"""Fewer node ports than Services times ports, so that some Services ask for the same one."""
SECOND_ADDRESSES = ("192.168.123.240", "fd00:192:168:123::240")
EXTERNAL_IP = "192.168.123.241"
"""An external IP of Services that is also an address of node1 at times."""


@dataclass
class Story:
    """kroute on node1, and the objects that it is given.

    `items` have the times of their creation, if they come from an API server: of two Services that claim the same
    address the older one has it.
    """

    world: World
    deployment: Deployment
    items: dict[tuple[str, str, str], Object] = field(default_factory=dict)

    def create(self, *items: Object) -> None:
        self.items |= {identity(item): item for item in self.deployment.apply(*items)}

    def delete(self, kind: str, name: str) -> None:
        for item in [item for key, item in self.items.items() if key[0] == kind and key[2].startswith(name)]:
            del self.items[identity(item)]
            self.deployment.delete(item)

    async def is_told(self) -> None:
        node1 = self.world.cluster.node("node1")
        await eventually(lambda: assert_right(node1, self.items.values(), SETTINGS), within=15)


Event = Callable[[Story], Any]
FLAGS = ("--external-ips-on-node-addresses",)
SETTINGS = Settings(node_name="node1", external_ips_on_node_addresses=True)
"""The external IP that moves onto an interface is then served there, and else bound."""


def service_applied(
    name: str, ips: tuple[str, ...], ports: dict[str, int], scheduler: str, spec: dict[str, Any], node_port: int
) -> Event:
    annotations = {"kroute.io/scheduler": scheduler}
    item = objects.service(name, *ips, ports=ports, annotations=annotations, **spec)
    for port in item["spec"]["ports"]:
        port["nodePort"] = node_port
    return lambda story: story.create(item)


def slices_applied(name: str, pods: list[int], conditions: dict[str, bool]) -> Event:
    ports = {"TCP": 8080, "UDP": 5353}
    return lambda story: story.create(
        *objects.endpoint_slices(name, [story.world.web[pod] for pod in pods], ports, **conditions)
    )


def deleted(kind: str, name: str) -> Event:
    return lambda story: story.delete(kind, name)


def node_moved(to_second: bool) -> Event:
    def move(story: Story) -> None:
        item = objects.node(story.world.cluster.node("node1"))
        if to_second:
            item["status"]["addresses"] = [{"type": "InternalIP", "address": ip} for ip in SECOND_ADDRESSES]
        story.create(item)

    return move


def external_ip_moved(*, present: bool) -> Event:
    """Add or delete the external IP on node1; no Node object names it."""
    return lambda story: move_external_ip(story.world.cluster.node("node1"), present=present)


def move_external_ip(node: Node, *, present: bool) -> None:
    verb = "replace" if present else "del"
    with contextlib.suppress(CommandError):  # it did not exist
        node.run("ip", "address", verb, f"{EXTERNAL_IP}/32", "dev", "eth0")


def restarted(*, killed: bool) -> Event:
    async def restart(story: Story) -> None:
        agent = story.deployment.agents["node1"]
        code = await (agent.kill() if killed else agent.terminate())
        assert code in {0, -9, -15}  # -15: SIGTERM came before its handler was installed
        await story.deployment.start(*FLAGS, nodes=("node1",), wait=False)

    return restart


NAME = st.sampled_from(NAMES)
EVENTS = st.one_of(
    st.builds(
        service_applied,
        NAME,
        st.sampled_from(CLUSTER_IPS),
        st.sampled_from([{"TCP": 80}, {"TCP": 80, "UDP": 53}, {"TCP": 81}]),
        st.sampled_from(["rr", "lc", "sh", "fastest"]),
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["ClusterIP", "NodePort", "ExternalName"]),
                "sessionAffinity": st.sampled_from(["None", "ClientIP"]),
                "externalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
                "internalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
                "externalIPs": st.sampled_from([[], ["198.51.100.7"], [EXTERNAL_IP, "fd00:192:168:123::7"]]),
            }
        ),
        st.sampled_from([30080, 30081]),
    ),
    st.builds(
        slices_applied,
        NAME,
        st.lists(st.integers(0, 2), unique=True),
        st.sampled_from([{}, {"ready": False}, {"ready": False, "serving": True, "terminating": True}]),
    ),
    st.builds(deleted, st.sampled_from(["Service", "EndpointSlice"]), NAME),
    st.builds(node_moved, st.booleans()),
    st.builds(lambda present: external_ip_moved(present=present), st.booleans()),
    st.builds(lambda killed: restarted(killed=killed), st.booleans()),
)


@pytest.fixture(scope="module")
def second_addresses(world: World) -> Iterator[None]:
    """Reserve further addresses of node1, to which its Node object can move; delete them all in the end."""
    node1 = world.cluster.node("node1")
    for address in SECOND_ADDRESSES:
        node1.run("ip", "address", "add", address, "dev", "eth0")
    yield
    for address, prefix in zip(SECOND_ADDRESSES, (32, 128), strict=True):
        node1.run("ip", "address", "del", f"{address}/{prefix}", "dev", "eth0")
    move_external_ip(node1, present=False)


@pytest.mark.usefixtures("second_addresses")
@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_the_kernel_holds_what_a_full_computation_gives(part: int, world: World, feed: Feed) -> None:
    deployment = Deployment(world.cluster, feed)
    story = Story(world, deployment, {identity(item): item for item in deployment.node_objects})
    del part
    played = 0

    with asyncio.Runner() as runner:
        # Without shrinking: each sequence starts from the kernel state that the previous one left.
        @hypothesis.settings(max_examples=SEQUENCES, deadline=None, database=None, phases=[hypothesis.Phase.generate])
        @hypothesis.given(st.lists(EVENTS, min_size=1, max_size=6))
        def play(sequence: list[Event]) -> None:
            nonlocal played
            for event in sequence:
                result = event(story)
                if asyncio.iscoroutine(result):
                    runner.run(result)
            runner.run(story.is_told())
            played += 1

        try:
            runner.run(deployment.start(*FLAGS, nodes=("node1",)))
            play()
            assert played >= SEQUENCES
            runner.run(deployment.agents["node1"].ready())  # the last event may have started it
        finally:
            runner.run(deployment.cleanup())
