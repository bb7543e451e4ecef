"""A client that asks thousands of times a second gets its share, and so do the others."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

import pytest

from kroute.http import fair_listener, server
from kroute.http.fair_listener import MOST_IN_ALL, Budget, FairListener, client_of
from kroute.http.messages import Request, Response, text
from kroute.http.server import BriefHttpServer

ATTACKER, VICTIM = "127.0.0.2", "127.0.0.3"
KUBELET = "192.168.1.10"


def elsewhere() -> None:
    """The owner of a connection that comes from another machine."""


def asking(address: str, times: int, budget: Budget, owner: Callable[[], int | None] = elsewhere) -> int:
    return sum(budget.take(address, owner) for _ in range(times))


@pytest.fixture
def budget() -> Budget:
    """That of a process whose clock stands still."""
    return Budget(clock=lambda: 7.0)


async def ask(port: int, source: str) -> bytes:
    """Return the answer; nothing when the connection was closed."""
    loop, answer = asyncio.get_running_loop(), b""
    with socket.socket() as client:
        client.setblocking(False)
        client.bind((source, 0))
        try:
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            while more := await loop.sock_recv(client, 65536):
                answer += more
        except OSError:
            return b""
    return answer


class Served:
    """A port whose clients are the addresses of 127.0.0.0/8, as if each were a machine."""

    def __init__(self, http_server: BriefHttpServer, port: int) -> None:
        self.http_server = http_server
        self.port = port
        self.answered = 0


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch, budget: Budget) -> AsyncIterator[Served]:
    for module in (fair_listener, server):
        monkeypatch.setattr(module, "client_of", str)
    monkeypatch.setattr(fair_listener, "owner_of", lambda _: None)

    async def answer(_: Request) -> Response:
        at.answered += 1
        return text(HTTPStatus.OK, "fine")

    http_server = BriefHttpServer(answer, budget=budget)
    listening = await http_server.listen("127.0.0.1", 0)
    at = Served(http_server, listening.sockets[0].getsockname()[1])
    yield at
    await http_server.close([listening])
    http_server.cut_connections()


@pytest.mark.parametrize("slow", [False, True], ids=["3000 requests", "3000 requests beside clients that say nothing"])
async def test_three_thousand_requests_of_one_cost_no_other_its_answer(served: Served, slow: bool) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", served.port, local_addr=(ATTACKER, 0)) for _ in range(50 * slow)]
    victims = []
    for _ in range(60):
        await asyncio.gather(*(ask(served.port, ATTACKER) for _ in range(50)))
        victims.append(await ask(served.port, VICTIM))
    assert all(answer.endswith(b"fine") for answer in victims[:50]), "what one client may have beside another"
    assert served.answered <= MOST_IN_ALL // 4 + len(victims)
    for _, writer in idle:
        writer.close()


async def test_three_thousand_requests_of_five_hundred_clients_cost_no_other_its_answer(served: Served) -> None:
    victims = []
    for at in range(60):
        await asyncio.gather(*(ask(served.port, f"127.0.2.{(at * 50 + one) % 250}") for one in range(25)))
        await asyncio.gather(*(ask(served.port, f"127.0.3.{(at * 50 + one) % 250}") for one in range(25)))
        victims.append(await ask(served.port, f"127.0.4.{at}"))
    assert all(answer.endswith(b"fine") for answer in victims)
    assert served.answered <= MOST_IN_ALL


async def test_all_ports_of_a_server_have_one_budget(served: Served, budget: Budget) -> None:
    for number in range(MOST_IN_ALL // 2):
        budget.take(f"10.0.{number >> 8}.{number & 255}", elsewhere)
    other = await served.http_server.listen("127.0.0.1", 0)
    ports = [served.port, other.sockets[0].getsockname()[1]]
    answered = [await ask(ports[number % 2], ATTACKER) for number in range(14)]
    assert [bool(answer) for answer in answered] == [True] * (MOST_IN_ALL // 100) + [False] * 4
    await served.http_server.close([other])


async def test_too_many_open_connections_are_those_of_the_client_that_has_most(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(server, "CONNECTION_SECONDS", 3600.0)
    victim, writer = await asyncio.open_connection("127.0.0.1", served.port, local_addr=(VICTIM, 0))
    held = [await asyncio.open_connection("127.0.0.1", served.port, local_addr=(ATTACKER, 0)) for _ in range(9)]
    assert [await reader.read() for reader, _ in held[:6]] == [b""] * 6
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await victim.read()).endswith(b"fine")
    for _, each in (*held, (None, writer)):
        each.close()


async def test_who_has_asked_in_time_is_answered_however_late(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, stood_still = asyncio.get_running_loop(), 0.0
    began, clock = asyncio.Event(), loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + stood_still)
    made = server._Connection.connection_made
    monkeypatch.setattr(server._Connection, "connection_made", lambda *args: (made(*args), began.set()))
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        await began.wait()
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        stood_still = 3600.0
        reader, writer = await asyncio.open_connection(sock=client)
        assert (await reader.read()).endswith(b"fine")
        writer.close()


@pytest.mark.parametrize("most", [0, MOST_IN_ALL], ids=["refused", "accepted"])
async def test_all_ports_of_a_budget_accept_so_many_in_a_turn(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(fair_listener, "MOST_A_TURN", 8)
    asked: list[int] = []

    class Counting(Budget):
        def take(self, address: str, owner: Callable[[], int | None]) -> bool:
            asked[-1] += 1
            return super().take(address, owner)

    budget = Counting(most)
    with contextlib.ExitStack() as stack:
        ports = [
            stack.enter_context(FairListener(socket.create_server(("127.0.0.1", 0), backlog=20), budget))
            for _ in range(3)
        ]
        for port in ports:
            port.setblocking(False)
            for _ in range(20):
                stack.enter_context(socket.create_connection(port.getsockname()))
        for _ in range(2):
            asked.append(0)
            for port in ports:
                with contextlib.suppress(BlockingIOError):
                    for _ in range(100):  # as asyncio does
                        stack.enter_context(port.accept()[0])
            await asyncio.sleep(0)
        assert asked == [8 + 1 + 1, 8 + 1 + 1]


def test_the_next_second_has_shares_of_its_own() -> None:
    now = 1.0
    budget = Budget(clock=lambda: now)
    assert asking("10.0.0.1", MOST_IN_ALL, budget) == MOST_IN_ALL // 4
    assert asking("10.0.0.2", 1, budget)
    now = 2.0
    assert asking("10.0.0.1", 1, budget)
    assert len(budget._made) == 1


class TestTheBudgetOfAll:
    """One for all ports that have it: how many ports there are changes nothing."""

    def test_a_hundred_load_balancers_may_probe_seven_ports_a_second(self, budget: Budget) -> None:
        for _ in range(7):
            assert all(asking(f"10.0.0.{client}", 1, budget) for client in range(100))

    @pytest.mark.parametrize("network", ["10.0.{}.{}", "fd00:{}:{}::1"], ids=["IPv4", "IPv6"])
    def test_those_who_ask_often_leave_room_for_those_who_ask_once(self, budget: Budget, network: str) -> None:
        attackers = [network.format(at // 200, at % 200) for at in range(250)]
        had = sum(asking(attackers[at % 250], 1, budget) for at in range(5000))
        assert had <= MOST_IN_ALL * 3 // 4
        assert asking("192.0.2.1", 5, budget) == 1

    def test_no_more_are_accepted_than_the_process_can_answer(self, budget: Budget) -> None:
        asked = [asking(f"10.{at // 65536}.{at // 256 % 256}.{at % 256}", 1, budget) for at in range(5000)]
        assert asked == [True] * MOST_IN_ALL + [False] * (5000 - MOST_IN_ALL)

    @pytest.mark.parametrize(("clients", "ports"), [(1, 2768), (2, 205), (5, 85), (10, 45), (20, 25)])
    def test_few_clients_of_many_ports_leave_room_for_a_probe(self, budget: Budget, clients: int, ports: int) -> None:
        for _, client in itertools.product(range(ports), range(clients)):
            asking(f"10.244.3.{client}", 100, budget)
        assert asking(KUBELET, 1, budget)


class TestThisNode:
    """A process of the node, told by its socket, whatever address it has given itself."""

    @pytest.mark.parametrize("network", ["127.0.{}.{}", "10.96.{}.{}"], ids=["loopback", "VIPs on the node"])
    def test_all_users_are_one_client(self, budget: Budget, network: str) -> None:
        had = sum(asking(network.format(at >> 8, at & 255), 1, budget, lambda: 1000) for at in range(1, 5000))
        assert had <= MOST_IN_ALL // 2
        assert asking(KUBELET, 1, budget)

    def test_root_has_a_share_that_nobody_else_can_take(self, budget: Budget) -> None:
        for at in range(MOST_IN_ALL * 2):
            asking(f"10.0.{at >> 8}.{at & 255}", 1, budget)
            asking("127.0.0.1", 1, budget, lambda: 1000)
        assert not asking(KUBELET, 1, budget)
        assert asking("127.0.0.1", MOST_IN_ALL, budget, lambda: 0) == MOST_IN_ALL // 4

    def test_nobody_looks_whose_a_socket_is_while_there_is_room(self, budget: Budget) -> None:
        def fail() -> int:
            raise AssertionError

        assert asking("127.0.0.1", MOST_IN_ALL // 4, budget, fail) == MOST_IN_ALL // 4


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("fd00::1", "fd00::2", True),
        ("fd00::1", "fd00:0:0:1::1", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("127.0.0.1", "127.3.2.1", True),
        ("127.0.0.1", "::ffff:127.0.0.9", True),
        ("127.0.0.1", "::1", True),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_addresses_of_one_client_share(one: str, another: str, same: bool) -> None:
    assert (client_of(one) == client_of(another)) is same
