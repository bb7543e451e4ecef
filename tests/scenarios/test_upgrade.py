"""From the previous release to this version and back, under traffic: nothing is written, and no connection is lost."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kroute import __version__
from tests import releases
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.firewall import backend
from tests.lab.hosts import OpenStream
from tests.lab.kernel_events import kernel_events
from tests.lab.load import Load, Way, constant_load
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, World
from tests.scenarios.test_observation import scraped

PREVIOUS = "0.1.0"
CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
NODE_PORT = 30080
CALLS = 3
"""How many calls of each caller end after each start: all but the first of them began after it."""
OF_RULES = re.compile(r"(add|create|delete) ((rule|chain) ip6? kroute |set ip6? kroute source-(range|network)\b)")
"""What nft reports of rules that are replaced, and of the set of source ranges, of which each release has its own."""


class Releases:
    """The agent of one node, of one version after the other."""

    def __init__(self, deployment: Deployment, node: Node, directory: Path) -> None:
        self.node = node
        self._deployment = deployment
        self._of_previous = releases.environment(PREVIOUS, directory)

    async def run(self, version: str, firewall: str = backend()) -> None:
        """End the agent that runs, and start that of a version. Returns when it has looked at the kernel once more."""
        if self.node.name in self._deployment.agents:
            assert await self._deployment.agents.pop(self.node.name).terminate() == 0
        environment = self._of_previous if version == PREVIOUS else None
        flags = ("--firewall", firewall, "--masquerade-all", "--resync-period", "2s")
        await self._deployment.start(*flags, nodes=(self.node.name,), environment=environment)
        assert self.logged("kroute.starting")[0]["version"] == version
        first = await eventually(self._looks)

        def has_looked() -> None:
            assert min(self._looks()) > max(first)

        await eventually(has_looked, within=20)

    def logged(self, event: str) -> list[dict[str, str]]:
        """Return the lines of this agent's log that begin with `event`."""
        lines = self._deployment.agents[self.node.name].log.read_text().splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [it for it in entries if it["event"].startswith(event)]

    def written(self) -> dict[str, float]:
        """Return how many writes the agent counts, by controller: those of its passes, and its repairs."""
        names = ("kroute_writes_total", "kroute_repairs_total", "kroute_failures_total")
        return {" ".join(key): value for key, value in scraped(self.node).items() if key[0] in names and value}

    def ledger(self) -> list[bytes]:
        """Return the lines of the ledger."""
        return sorted((self.node.state_dir / "ledger").read_bytes().splitlines())

    def _looks(self) -> list[float]:
        """When each controller has looked last. Before 0.2.0 every look was a resync."""
        figures, found = scraped(self.node), []
        for name in ("kroute_last_audit_timestamp_seconds", "kroute_last_look_timestamp_seconds"):
            found = [value for key, value in figures.items() if key[0] == name] or found
        return found


@pytest.fixture
def agents(world: World, deployment: Deployment, tmp_path: Path) -> Releases:
    made = service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}, sessionAffinity="ClientIP")
    udp = service("dns", *(it.other_service_ip for it in FAMILIES), ports={"UDP": 53})
    deployment.apply(made, *endpoint_slices("web", world.web), udp, *endpoint_slices("dns", world.web, {"UDP": 5353}))
    return Releases(deployment, world.cluster.node("node1"), tmp_path)


@asynccontextmanager
async def traffic(world: World, node: Node) -> AsyncIterator[Load]:
    """Open streams that must go on, and new connections all the time, from a pod, the node and outside."""
    callers = [(client, ip, 8080) for client in (world.visitor, node) for ip in CLUSTER_IPS]
    ways = [*callers, *((world.cluster.client, family.of(node), NODE_PORT) for family in FAMILIES)]
    streams: list[OpenStream] = [await client.open_stream(ip, port) for client, ip, port in ways]
    async with constant_load([Way(*way) for way in ways], pace=0.1) as load:
        yield load
        for stream in streams:
            await goes_on(stream)
            await stream.close()
    assert load.failures == []


async def test_the_previous_release_this_one_and_back_write_rules_alone(world: World, agents: Releases) -> None:
    """0.2.0 has other rules, and with nf_tables another set of source ranges. Nothing else is written.

    0.1.0 leaves the chain KROUTE-KEEP of iptables, which it does not know.
    """
    await agents.run(PREVIOUS)
    before, ledger = agents.node.snapshot(), agents.ledger()
    with kernel_events(agents.node) as events:
        async with traffic(world, agents.node) as load:
            for version in (__version__, PREVIOUS):
                await agents.run(version)
                await load.goes_on(CALLS)
                assert (version, agents.written()) == (version, {})
                assert agents.logged("ledger.") == []
                assert agents.ledger() == ledger
        changed = [line for line in before.diff(agents.node.snapshot()).splitlines() if "KROUTE-KEEP" not in line]
        others = [line for line in events() if not OF_RULES.match(line)]
        lost, come = (Counter(line[3:] for line in changed if line.startswith(f"  {sign}")) for sign in "-+")
        assert (lost, others) == (come, []), "a set that is made again stands at its table's end"


@pytest.mark.thorough
@pytest.mark.legacy
async def test_an_upgrade_to_another_backend_and_back_loses_no_connection(world: World, agents: Releases) -> None:
    """The rules are another backend's; virtual servers, addresses and routes stay as they are."""
    await agents.run(PREVIOUS, "iptables")
    ledger = agents.ledger()
    with kernel_events(agents.node) as events:
        async with traffic(world, agents.node) as load:
            for version, firewall in ((__version__, "nftables"), (PREVIOUS, "iptables")):
                await agents.run(version, firewall)
                await eventually(lambda: _replaced(agents), within=20)
                await load.goes_on(CALLS)
                assert {it for it in agents.written() if "masquerade" not in it} == set()
                assert agents.ledger() == ledger
        assert [line for line in events() if " kroute" not in line] == []


def _replaced(agents: Releases) -> None:
    assert agents.logged("firewall.replaced")
