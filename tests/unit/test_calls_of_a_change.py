"""How many functions of kroute one changed endpoint costs, from the line of the watch to the writes of the controllers.

And how many one more Service costs at a start, from the decoded objects to the bound address. A call costs a tenth of
a microsecond to some; more than that, it is something to read. The clients of the kernel are the fakes, so their calls
are not counted.
"""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec
import pytest
import structlog

import kroute
from kroute.controllers.node_controllers import NodeControllers
from kroute.kernel.ipvs.objects import SetRealServer
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Applied, Change, EndpointSlice, Listed, Node, Service
from kroute.planning.catalog import Catalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.settings import Settings
from kroute.telemetry.changes import ChangeObserver
from kroute.watchers.kubernetes.decoding import Malformed, ObjectDecoder, read_event, trigger_time
from kroute.watchers.kubernetes.reflector import Inventory
from tests.builders import endpoint, endpoint_slice, service
from tests.fakes.node_kernel import FakeNodeKernel
from tests.unit.fake_node import NODE_IPV4, NODE_IPV6, new_kernel

MOST_CALLS = 325
MOST_CALLS_OF_A_START = 475
"""For each Service of 10 endpoints."""
"""Comprehensions are no functions, and are not counted."""
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
PACKAGE = str(Path(kroute.__file__).parent)


class Calls:
    """Counts the calls of kroute's functions, also those that a coroutine is resumed with, while it is entered."""

    def __init__(self) -> None:
        self.by_function: Counter[str] = Counter()

    def __enter__(self) -> "Calls":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_exc: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in COMPREHENSIONS:
            self.by_function[f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_qualname}"] += 1


class SmallAgent:
    """What an agent does with the changes of one watch, without a server, a socket and the kernel."""

    def __init__(self, state_dir: Path) -> None:
        settings = Settings(node_name="node3", state_dir=state_dir, firewall="nftables")
        self.changes = ChangeObserver("node3", now=lambda: 0.0)
        self.catalog = Catalog(settings, NodeFacts("node3", NODE_IPV4, NODE_IPV6))
        self.broadcaster = Broadcaster()
        self.kernel = new_kernel()
        self.clients = FakeNodeKernel.of(self.kernel)
        self.controllers = NodeControllers(settings, self.broadcaster, lambda *_: None, self.clients)
        self.controllers.stage_gate.follow(self.changes.passed)
        self._decoder, self._inventory = ObjectDecoder(EndpointSlice), Inventory(EndpointSlice)

    def take(self, changes: Sequence[Change]) -> None:
        self.changes.read(changes)
        self.catalog.take(changes)
        while self.catalog.has_marked:
            plans = self.catalog.plan_marked(64, 4000)
            if self.broadcaster.has_started:
                self.changes.published(plans)
            self.broadcaster.publish(plans, more=self.catalog.has_marked)
        self.changes.planned()

    async def follow_line(self, line: bytes) -> None:
        """Do what a Reflector does with a line of a watch, until the change is in the kernel and all is quiet."""
        raw = read_event(line).object
        item = self._decoder.decode(raw)
        assert not isinstance(item, Malformed)
        self.take(self._inventory.apply(item.key, item, trigger_time(item)))
        for _ in range(50):
            await asyncio.sleep(0)


def changed(addresses: Sequence[str], version: str) -> bytes:
    """A line of the watch of EndpointSlices."""
    item = {
        "metadata": {
            "name": "web-1",
            "namespace": "default",
            "resourceVersion": version,
            "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [it], "conditions": {"ready": True}, "nodeName": "node1"} for it in addresses],
    }
    return msgspec.json.encode({"type": "MODIFIED", "object": item})


async def test_one_changed_endpoint_costs_few_calls(tmp_path: Path) -> None:
    agent, pods = SmallAgent(tmp_path), [f"10.1.0.{number}" for number in range(1, 11)]
    services = [service("web"), *(service(f"other{number}", f"10.96.1.{number}") for number in range(1, 20))]
    slices = [endpoint_slice("web-1", *map(endpoint, pods))]
    await agent.clients.open()
    async with agent.controllers:
        running = asyncio.create_task(agent.controllers.run())
        agent.take([*map(Applied, services), *map(Applied, slices), *map(Listed, (Service, EndpointSlice, Node))])
        await agent.controllers.live()
        await agent.follow_line(changed(pods[:9], "2"))
        agent.kernel.writes.clear()
        with Calls() as calls:
            await agent.follow_line(changed(pods[:8], "3"))
        assert agent.kernel.writes == [SetRealServer((6, "10.96.0.10", 80), ("10.1.0.9", 8080), 0)]
        agent.controllers.stop()
        await running
    counted = calls.by_function
    assert counted.total() <= MOST_CALLS, counted.most_common(50)


async def calls_of_a_start(state_dir: Path, count: int) -> Counter[str]:
    """The calls of an agent's start with so many Services, until all are live."""
    agent, numbers = SmallAgent(state_dir), range(count)
    services = [service(f"web{number}", f"10.96.{number}.10") for number in numbers]
    slices = [
        endpoint_slice(f"web{number}-1", *(f"10.1.{number}.{pod}" for pod in range(10)), of=f"web{number}")
        for number in numbers
    ]
    await agent.clients.open()
    async with agent.controllers:
        running = asyncio.create_task(agent.controllers.run())
        with Calls() as calls:
            agent.take([*map(Applied, services), *map(Applied, slices), *map(Listed, (Service, EndpointSlice, Node))])
            await agent.controllers.live()
        agent.controllers.stop()
        await running
    assert len(agent.kernel.virtual_servers) == count
    return calls.by_function


@pytest.fixture
def _as_an_agent_logs() -> Iterator[None]:
    """At level info: no line for each of many changes."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("_as_an_agent_logs")
async def test_one_more_service_at_a_start_costs_few_calls(tmp_path: Path) -> None:
    few, many = [await calls_of_a_start(tmp_path / str(count), count) for count in (100, 200)]
    assert (many - few).total() / 100 <= MOST_CALLS_OF_A_START, (many - few).most_common(50)
