"""The health check ports follow the Services and the node. The sockets are real ones, on loopback."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

import pytest

from kroute.controllers.health_checks import HealthChecks
from kroute.model.addresses import Family
from kroute.model.objects import ObjectKey
from kroute.model.plan import HealthCheck, NodePlan, Problem, ServicePlan
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.controller import Shared
from tests.builders import facts, settings
from tests.unit.load_balancer import LOCALHOST, ask, ask_soon, free_ports, say, until
from tests.unit.watching import PATIENCE
from tests.virtual_time import virtual

WEB, SHOP = ObjectKey("default", "web"), ObjectKey("sales", "shop")


class Node:
    """Health checks that run as they do in the agent, on the real clock."""

    def __init__(self, *, nodeport_addresses: tuple[str, ...] = ("127.0.0.0/8", "::1/128")) -> None:
        self.broadcaster = Broadcaster()
        self.problems: list[tuple[ObjectKey, Problem]] = []
        self.is_healthy = True
        shared = Shared(
            settings(nodeport_addresses=nodeport_addresses),
            self.broadcaster,
            report=lambda key, problem: self.problems.append((key, problem)),
        )
        self.checks = HealthChecks(shared, healthy=lambda: self.is_healthy)

    def has(self, *addresses: str) -> None:
        """Publish the node's addresses."""
        self.broadcaster.publish([NodePlan(facts(own=addresses))])

    def serves(self, port: int | None, local_endpoints: int = 1, key: ObjectKey = WEB) -> None:
        """Publish the Service's plan; without a port it has no health check."""
        self.broadcaster.publish([plan(port, local_endpoints, key)])


def plan(port: int | None, local_endpoints: int = 1, key: ObjectKey = WEB) -> ServicePlan:
    return ServicePlan(key, health_check=HealthCheck(port, dict.fromkeys(Family, local_endpoints)) if port else None)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(Node()) as each:
        yield each


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[Node]:
    node.has(LOCALHOST)
    async with asyncio.TaskGroup() as group:
        group.create_task(node.checks.run())
        try:
            yield node
        finally:
            node.checks.stop()


@pytest.fixture
def port() -> int:
    return free_ports()[0]


async def until_refused(port: int, host: str = LOCALHOST) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await ask(port, host=host)
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                continue
            await asyncio.sleep(0.01)


async def test_the_answer_follows_the_endpoints_and_the_health(node: Node, port: int) -> None:
    node.serves(port, 1)
    assert (await ask_soon(port)).status == 200
    node.serves(port, 0)
    await until(lambda: node.broadcaster.statistics()[0].depth == 0)
    assert (await ask(port)).status == 503
    node.serves(port, 3)
    await until(lambda: node.broadcaster.statistics()[0].depth == 0)
    assert (await ask(port)).headers["X-Load-Balancing-Endpoint-Weight"] == "3"
    node.is_healthy = False
    assert (await ask(port)).status == 503


async def test_another_port_takes_the_place_of_the_first(node: Node) -> None:
    first, second = free_ports(2)
    node.serves(first)
    await ask_soon(first)
    node.serves(second)
    assert (await ask_soon(second)).status == 200
    await until_refused(first)


async def test_a_service_that_goes_releases_its_port(node: Node, port: int) -> None:
    node.serves(port)
    await ask_soon(port)
    node.serves(None)
    await until_refused(port)
    socket.create_server((LOCALHOST, port)).close()


@pytest.mark.parametrize("turns", range(10))
async def test_who_comes_while_a_port_closes_is_answered_or_refused(node: Node, port: int, turns: int) -> None:
    node.serves(port)
    await ask_soon(port)
    asking = asyncio.create_task(ask(port))
    for _ in range(turns):
        await asyncio.sleep(0)
    node.serves(None)
    with suppress(ConnectionError):
        assert (await asking).status in {200, 503}


@virtual()
async def test_stopping_releases_the_ports_and_ends_open_connections(port: int) -> None:
    async with running(Node()) as node:
        node.serves(port)
        await ask_soon(port)
        asking = asyncio.create_task(say(port, b"GET / HTTP/1.1"))
        await asyncio.sleep(0.05)  # the connection is open by then
    assert await asking == b""
    socket.create_server((LOCALHOST, port)).close()


async def test_a_port_that_another_process_has_is_reported_once_and_opened_when_it_is_free(
    node: Node, port: int
) -> None:
    with socket.create_server((LOCALHOST, port)):
        node.serves(port)
        await until(lambda: node.checks.statistics().failures >= 2)
        [(key, problem)] = node.problems
        assert (key, problem.reason) == (WEB, "HealthCheckPortUnavailable")
        assert problem.subject == f"healthCheckNodePort {port}"
        assert "Address already in use" in problem.message
        assert f"ss -ltnp sport = :{port}" in problem.message
        assert node.checks.statistics().waiting == 1
    await until(lambda: node.checks.statistics().writes == 1)
    assert (await ask(port)).status == 200
    assert len(node.problems) == 1
    await until(lambda: node.checks.statistics().waiting == 0)


async def test_an_address_that_the_node_lacks_is_tried_again(node: Node, port: int) -> None:
    node.has("192.0.2.1")
    node.serves(port)
    await until(lambda: node.problems)
    assert "192.0.2.1 of this node: Cannot assign requested address" in node.problems[0][1].message
    node.has(LOCALHOST)
    assert (await ask_soon(port)).status == 200


async def test_a_port_that_is_taken_keeps_no_other_port_from_being_opened(node: Node) -> None:
    taken, free = free_ports(2)
    with socket.create_server((LOCALHOST, taken)):
        node.broadcaster.publish([plan(taken), plan(free, key=SHOP)])
        assert (await ask_soon(free)).status == 200


async def test_who_gets_a_port_next_does_not_wait_for_the_last_ones_retries(node: Node, port: int) -> None:
    with socket.create_server((LOCALHOST, port)):
        node.serves(port)
        await until(lambda: node.checks.statistics().failures >= 3)  # the next attempt follows 2 s later
    node.broadcaster.publish([plan(None), plan(port, key=SHOP)])
    assert (await ask_soon(port)).status == 200


async def test_of_two_services_with_one_port_the_first_keeps_it(node: Node, port: int) -> None:
    node.serves(port)
    await ask_soon(port)
    node.serves(port, key=SHOP)
    await until(lambda: node.problems)
    node.serves(port, 5, key=SHOP)
    await until(lambda: node.broadcaster.statistics()[0].depth == 0)
    assert json.loads((await ask(port)).body)["service"]["name"] == "web"
    [(key, problem)] = node.problems
    assert (key, problem.reason) == (SHOP, "HealthCheckPortConflict")
    assert "default/web" in problem.message
    node.serves(None)
    await until(lambda: node.broadcaster.statistics()[0].depth == 0)
    assert json.loads((await ask(port)).body) == {
        "service": {"namespace": "sales", "name": "shop"},
        "localEndpoints": 5,
        "serviceProxyHealthy": True,
    }


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["leaves first", "comes first"])
async def test_a_port_may_pass_from_one_service_to_another(node: Node, port: int, order: Iterable[int]) -> None:
    node.serves(port)
    await ask_soon(port)
    plans = [plan(None), plan(port, 0, key=SHOP)]
    node.broadcaster.publish([plans[index] for index in order])
    await until(lambda: node.broadcaster.statistics()[0].depth == 0)
    assert json.loads((await ask(port)).body)["service"]["name"] == "shop"
    assert not node.problems


async def test_named_addresses_are_followed(node: Node, port: int) -> None:
    node.serves(port)
    await ask_soon(port)
    with pytest.raises(ConnectionRefusedError):
        await ask(port, host="127.0.0.2")
    node.has("127.0.0.2", "::1")
    assert (await ask_soon(port, host="127.0.0.2")).status == 200
    assert (await ask_soon(port, host="::1")).status == 200
    await until_refused(port)


async def test_without_named_addresses_all_are_listened_on(port: int) -> None:
    async with running(Node(nodeport_addresses=())) as node:
        node.serves(port)
        for host in (LOCALHOST, "127.0.0.2", "::1"):
            assert (await ask_soon(port, host)).status == 200


async def test_many_load_balancers_ask_at_once(node: Node) -> None:
    ports = free_ports(20)
    node.broadcaster.publish([plan(port, port, ObjectKey("default", f"web-{port}")) for port in ports])
    for port in ports:
        await ask_soon(port)
    asked = ports * 10
    answers = await asyncio.gather(*(ask(port) for port in asked))
    assert [json.loads(answer.body)["localEndpoints"] for answer in answers] == asked
