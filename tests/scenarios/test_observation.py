"""kroute's reports on a real node: probes, metrics that follow packets, and Events about the node."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.lab import objects
from tests.lab.allocation import Allocator
from tests.lab.api_server import EVENTS, ApiServer
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.objects import Object
from tests.lab.xtables_lock import held
from tests.scenarios.conftest import FAMILIES, Family, World

HEALTHZ, METRICS = 10256, 10249
CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)


def asked(node: Node, path: str, port: int = METRICS) -> tuple[int, str]:
    """Return status and body of a GET request to a process on the node, over loopback."""
    with node.namespace.inside():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.connect()
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


async def statuses(world: World, family: Family, node: Node) -> tuple[int, ...]:
    """Return the probes' status codes, as a load balancer outside the cluster sees them."""
    paths = ("/healthz", "/livez", "/readyz")
    return tuple([await world.cluster.client.http_status(family.of(node), HEALTHZ, path) for path in paths])


async def are(world: World, family: Family, node: Node, wanted: tuple[int, ...]) -> None:
    assert await statuses(world, family, node) == wanted


def scraped(node: Node) -> dict[tuple[str, ...], float]:
    """Return every sample by its metric's name and the values of its labels."""
    status, text = asked(node, "/metrics")
    assert status == 200
    return {
        (it.name, *(it.labels[name] for name in sorted(it.labels))): it.value
        for family in text_string_to_metric_families(text)
        for it in family.samples
    }


@pytest.mark.legacy
async def test_health_follows_what_the_kernel_lets_kroute_do(
    world: World, deployment: Deployment, family: Family, free: Allocator, tmp_path: Path
) -> None:
    """The health check ports of Services agree. A held lock alone does no harm while the rules are right."""
    node, check = world.nodes[0], free.node_port()
    balanced = objects.service(
        "balanced",
        *free.cluster_ips(),
        node_ports={"TCP": free.node_port()},
        ingress=free.external_ips(),
        externalTrafficPolicy="Local",
        healthCheckNodePort=check,
    )
    deployment.apply(balanced, *objects.endpoint_slices("balanced", world.web[:1]))
    await deployment.start("--resync-period", "2s", nodes=("node1",))
    ask_check = partial(world.cluster.client.http_status, family.of(node), check)

    async def both(status: int) -> None:
        assert await statuses(world, family, node) == (status,) * 3
        assert await ask_check() == status

    async def complains() -> None:
        """On a busy machine the pass alone may take so long, and end before the attempts have failed for so long."""
        await both(503)
        body = json.loads(asked(node, "/healthz", HEALTHZ)[1])
        assert "masquerade" in (cause := "".join(body.get("causes", ())))
        assert "xtables lock" in cause or "at one pass" in cause
        assert body["nodeEligible"] is True

    await eventually(partial(both, 200))
    with held():
        node.run("env", f"XTABLES_LOCKFILE={tmp_path}/lock", "iptables-legacy", "-D", "INPUT", "1")
        await eventually(complains, within=20)
    await eventually(partial(both, 200), within=20)


async def test_a_node_that_the_autoscaler_removes_gets_no_more_traffic(
    world: World, deployment: Deployment, family: Family
) -> None:
    node = world.nodes[0]
    await deployment.start(nodes=("node1",))
    await eventually(partial(are, world, family, node, (200, 200, 200)))
    item = objects.node(node)
    item["spec"]["taints"] = [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule", "value": "1"}]
    deployment.apply(item)
    await eventually(partial(are, world, family, node, (503, 200, 200)))
    deployment.apply(objects.node(node))
    await eventually(partial(are, world, family, node, (200, 200, 200)))


async def test_metrics_move_with_packets(world: World, deployment: Deployment, family: Family, free: Allocator) -> None:
    node, addresses = world.nodes[0], free.cluster_ips()
    deployment.apply(objects.service("counted", *addresses), *objects.endpoint_slices("counted", world.web))
    await deployment.start(nodes=("node1",))
    before = await eventually(lambda: scraped(node))
    labels = ("default", "counted")
    assert before["kroute_service_connections_total", *labels] == 0
    assert before["kroute_virtual_servers", "serving"] >= 2
    assert before["kroute_real_servers", "serving"] >= 6
    connection = await node.connect(family.of(addresses), 8080)
    await connection.ask()
    for _ in range(5):
        await node.http(family.of(addresses), 8080)

    def moved() -> dict[tuple[str, ...], float]:
        after = scraped(node)
        assert after["kroute_service_connections_total", *labels] == 6
        assert after["kroute_service_connections", *labels, "active"] == 1
        assert after["kroute_service_packets_total", "in", *labels] >= 6 * 4
        assert (
            after["kroute_service_bytes_total", "out", *labels] > after["kroute_service_packets_total", "out", *labels]
        )
        return after

    after = await eventually(moved)
    await connection.close()
    assert after["kroute_connections", "active"] >= 1
    assert after["kroute_netlink_messages_total", "ipvs"] > 0
    assert after["kubeproxy_sync_proxy_rules_duration_seconds_count", "IPv4"] > 0


async def test_a_repair_is_counted(world: World, deployment: Deployment, free: Allocator) -> None:
    node, addresses = world.nodes[0], free.cluster_ips()
    deployment.apply(objects.service("repaired", *addresses), *objects.endpoint_slices("repaired", world.web))
    await deployment.start(nodes=("node1",))
    before = await eventually(lambda: scraped(node))
    node.namespace.ip(f"address delete {addresses[0]}/32 dev kube-ipvs0\n")

    def is_counted() -> None:
        assert scraped(node)["kroute_repairs_total", "service_proxy"] > before["kroute_repairs_total", "service_proxy"]

    await eventually(is_counted)


async def test_the_metrics_and_the_page_are_for_the_node_alone(
    world: World, deployment: Deployment, family: Family
) -> None:
    node = world.nodes[0]
    await deployment.start(nodes=("node1",))
    await eventually(lambda: scraped(node))
    with pytest.raises(ConnectionRefusedError):
        await world.cluster.client.http_status(family.of(node), METRICS)
    status, page = asked(node, "/")
    assert (status, "<title>kroute</title>" in page) == (200, True)


@pytest.fixture
async def api(world: World, tmp_path: Path) -> AsyncIterator[ApiServer]:
    """The API server on node1; kroute runs on node2, which is cleaned up afterwards."""
    items: list[Object] = [
        *(objects.node(node) for node in world.nodes),
        objects.service("web", *CLUSTER_IPS),
        *objects.endpoint_slices("web", world.web),
    ]
    server = ApiServer(world.cluster.node("node1"), tmp_path, items)
    server.start()
    node2 = world.cluster.node("node2")
    try:
        yield server
        for running in node2.processes:
            await running.terminate()
        assert await (await node2.kroute("cleanup")).wait() == 0
    finally:
        server.stop()


async def test_an_agent_is_not_ready_before_the_api_server_has_told_everything(world: World, api: ApiServer) -> None:
    """Losing the API server does not make it unhealthy: it goes on serving."""
    node2, family = world.cluster.node("node2"), FAMILIES[0]
    api.forbid(("watch", "services"), ("list", "services"))
    agent = await node2.kroute("run", "--kubeconfig", str(api.kubeconfig), "--node-name", "node2")
    await eventually(partial(are, world, family, node2, (200, 200, 503)))
    api.forbid()
    await agent.ready()
    await eventually(partial(are, world, family, node2, (200, 200, 200)))
    api.stop()
    await asyncio.sleep(1)
    await eventually(partial(are, world, family, node2, (200, 200, 200)))


async def test_what_happens_to_the_node_is_an_event_on_it(world: World, api: ApiServer) -> None:
    """The events: a port that another process holds for a while, a permission that comes late, a start. Each once."""
    node2, family = world.cluster.node("node2"), FAMILIES[0]
    await node2.serve(http=HEALTHZ)
    api.forbid(("watch", "endpointslices"), ("list", "endpointslices"))
    flags = ("--resync-period", "2s", "--other-proxies", "ignore")  # else kroute waits for the process with its port
    agent = await node2.kroute("run", "--kubeconfig", str(api.kubeconfig), "--node-name", "node2", *flags)

    def told_of(reason: str) -> Object:
        events = [event for event in api.list(EVENTS) if event["reason"] == reason]
        assert len(events) == 1
        return events[0]

    unavailable = await eventually(partial(told_of, "PortUnavailable"))
    assert (unavailable["type"], unavailable["regarding"]["kind"]) == ("Warning", "Node")
    assert "10256" in unavailable["note"]
    await node2.stop_serving()
    lost = await eventually(partial(told_of, "PrivilegeLost"), within=30)
    assert "EndpointSlice" in lost["note"]
    assert not [event for event in api.list(EVENTS) if event["reason"] == "PrivilegeRestored"]
    api.forbid()
    await agent.ready()
    restored = await eventually(partial(told_of, "PrivilegeRestored"), within=30)
    assert (restored["type"], "EndpointSlice" in restored["note"]) == ("Normal", True)
    started = await eventually(partial(told_of, "Started"))
    assert (started["type"], started["regarding"]["kind"], started["regarding"]["name"]) == ("Normal", "Node", "node2")
    await eventually(partial(are, world, family, node2, (200, 200, 200)), within=20)
    assert len([event for event in api.list(EVENTS) if event["regarding"]["kind"] == "Node"]) == 4


async def test_one_refusal_is_no_loss_of_a_permission(world: World, api: ApiServer) -> None:
    node2 = world.cluster.node("node2")
    for where in ("watch", "list"):  # the client first asks for a list as a watch
        api.fault(kind="answer", where=where, resource="endpointslices", status=403)
    agent = await node2.kroute(
        "run", "--kubeconfig", str(api.kubeconfig), "--node-name", "node2", "--resync-period", "1s"
    )
    await agent.ready()
    assert "403" in agent.log.read_text()
    await asyncio.sleep(3)  # three looks at what is denied
    assert "PrivilegeLost" not in agent.log.read_text()
