"""Network policies go from kube-router's firewall, the real one, to kroute, and at no moment nobody enforces them."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from tests.lab import kubernetes
from tests.lab.answers import ask_json
from tests.lab.cluster import Node, Pod
from tests.lab.deployment import Deployment, eventually
from tests.lab.feed import ApiFeed, control_plane
from tests.lab.kube_router import HEALTH_PORT, NFT_TABLES, KubeRouter
from tests.lab.load import Way, constant_load
from tests.lab.namespaces import CommandError
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.other_proxies import wiped
from tests.lab.policy_state import saved
from tests.lab.world import FAMILIES, World
from tests.scenarios.test_migrate import migrate
from tests.unit.planning.policies.cluster import ingress, namespace, pod, pods_with

pytestmark = [pytest.mark.nftables, pytest.mark.legacy]  # kube-router needs ip_set, even for its own tables
POLICIES = ("--network-policies", "--firewall", "nftables")
VIPS = tuple(family.service_ip for family in FAMILIES)
THEIRS = re.compile(r"KUBE-|kube-router")


def described(host: Pod) -> Object:
    made = pod(host.name, host.ip, host.ip6, on=host.node.name, app=host.name)
    made["status"]["hostIP"] = host.node.ip
    return made


def objects_of(world: World) -> list[Object]:
    """Only web-2 may call web-1."""
    policy = ingress(pods_with(app="web-2"), name="of-web-1", selector={"matchLabels": {"app": "web-1"}})
    versions = {"NetworkPolicy": "networking.k8s.io/v1"}
    items = [namespace("shop"), *map(described, (*world.web, world.visitor)), policy]
    return [{"apiVersion": versions.get(item["kind"], "v1"), **item} for item in items]


@pytest.fixture
def node1(world: World) -> Iterator[Node]:
    """A node that is wiped afterwards. Request it before `deployment`."""
    node = world.cluster.node("node1")
    with wiped(node):
        yield node
    for family, number in (("ip", 4), ("ip6", 6)):
        for table in ("filter", "nat", "mangle", f"kube-router-filter-ipv{number}"):
            with contextlib.suppress(CommandError):
                node.run("nft", "delete", "table", family, table)


@asynccontextmanager
async def refused_throughout(client: Pod, to: Pod) -> AsyncIterator[list[str]]:
    """Call again and again in both families; yields the addresses at which an answer came."""
    answered: list[str] = []

    async def call(address: str) -> None:
        while True:
            with contextlib.suppress(Exception):
                await client.http(address, 8080, timeout=0.3)
                answered.append(f"{datetime.now(UTC):%T.%f} {address}")
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(call(family.of(to))) for family in FAMILIES]
    yield answered
    for task in tasks:
        task.cancel()


def left(node: Node) -> list[str]:
    commands = ["nft list ruleset", "ipset list -n", "iptables-legacy-save", "ip6tables-legacy-save"]
    lines = [line for it in commands for line in saved(node, *it.split()).splitlines() if THEIRS.search(line)]
    return [re.sub(r"packets \d+ bytes \d+", "", line) for line in lines]


def said_of_policies(report: dict) -> list[tuple[str, str]]:
    return [(it["level"], it["message"]) for it in report["items"] if it["check"] == "network policies"]


@asynccontextmanager
async def isolated(world: World, deployment: Deployment, how: str, *, serves: bool) -> AsyncIterator[KubeRouter]:
    """Run kube-router on node1, with a policy for web-1 that holds at every moment until the end of the `with`."""
    program = kubernetes.program("kube-router")
    if program is None:
        pytest.skip(str(kubernetes.missing("kube-router")))
    web, allowed, denied = world.web
    await asyncio.gather(*(denied.http(family.of(web), 8080) for family in FAMILIES))
    items = objects_of(world)
    feed = ApiFeed(control_plane(world.cluster))
    for item in (*deployment.node_objects, *items):
        feed.put(item)
    deployment.apply(*items)
    router = KubeRouter(world.cluster.node("node1"), feed, program, how, serves=serves)
    try:
        await router.start(web.ip, web.ip6)
        async with (
            refused_throughout(denied, web) as answered,
            constant_load([Way(allowed, family.of(web), 8080) for family in FAMILIES], pace=0.2) as load,
        ):
            yield router
            await load.goes_on(1)
        assert answered == []
        assert not load.failures
    finally:
        router.close()


@pytest.mark.parametrize("how", ["legacy", "nft-variant", NFT_TABLES])
async def test_kube_routers_rules_of_policies_go_when_kroutes_stand(
    how: str, world: World, node1: Node, deployment: Deployment
) -> None:
    async with isolated(world, deployment, how, serves=False) as router:
        await beside_its_firewall(deployment, node1)
        router.end()
        _, report = await ask_json(node1, *check(deployment))
        assert any("it may have ended" in message for _, message in said_of_policies(report))
        assert "nothing of kube-router's is left" in await migrate(node1, "--from", "kube-router", "--take-over")
        assert left(node1) == []
        _, report = await ask_json(node1, *check(deployment))
        assert all(level == "OK" for level, _ in said_of_policies(report)), report


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
async def test_an_agent_that_takes_a_node_over_takes_the_policies_too(
    backend: str, world: World, node1: Node, deployment: Deployment
) -> None:
    web = world.web[0]
    deployment.apply(service("web", *VIPS), *endpoint_slices("web", world.web))
    async with isolated(world, deployment, "legacy", serves=True) as router:
        flags = ("--network-policies", "--firewall", backend, "--take-over-after", "1s")
        await deployment.start(*flags, nodes=("node1",), wait=False)

        async def waits() -> None:
            _, status = await ask_json(node1, "status", "--state-dir", str(node1.state_dir))
            assert "WaitingForServiceProxy" in json.dumps(status)

        await eventually(waits, within=60)
        assert [line for line in left(node1) if "KUBE-POD-FW-" in line and web.ip in line]
        router.end()

        async def is_alone() -> None:
            assert left(node1) == []

        await eventually(is_alone, within=120)


async def beside_its_firewall(deployment: Deployment, node: Node) -> None:
    """Start kroute beside it, which says so; nothing of kube-router's is removed."""
    before = left(node)
    await migrate(node, "--from", "kube-router", "--take-over", *deployment.source, *POLICIES)
    assert left(node) == before, "without an agent kroute has no policies of its own"
    await deployment.start(*POLICIES, nodes=(node.name,))
    said = await migrate(node, "--from", "kube-router", "--take-over")
    assert "rules of network policies stay: its firewall seems to run (process " in said
    assert left(node) == before
    port = f"kube-router's health port {HEALTH_PORT} is open"
    _, report = await ask_json(node, *check(deployment))
    assert [message for level, message in said_of_policies(report) if level == "FAIL" and port in message]

    async def is_said() -> None:
        _, status = await ask_json(node, "status", "--state-dir", str(node.state_dir))
        assert "RivalPolicyEnforcer" in json.dumps(status)

    await eventually(is_said, within=30)


def check(deployment: Deployment) -> tuple[str, ...]:
    return ("check", *deployment.source, "--node-name", "node1", *POLICIES)
