"""A client that asks thousands of times a second gets its share, and so do the others."""

import asyncio
import socket
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from kroute.http import fair_listener
from kroute.http.fair_listener import MOST_IN_ALL, Budget, FairListener
from kroute.http.messages import Request, Response, text
from kroute.http.server import BriefHttpServer

ATTACKER, VICTIM = "127.0.0.2", "127.0.0.3"


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


@pytest.mark.parametrize("slow", [False, True], ids=["3000 requests", "3000 requests beside clients that say nothing"])
async def test_three_thousand_requests_of_one_cost_no_other_its_answer(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr(FairListener.__init__, "__defaults__", (lambda: 7.0, Budget()))
    asked = 0

    async def answer(_: Request) -> Response:
        nonlocal asked
        asked += 1
        return text(HTTPStatus.OK, "fine")

    server = BriefHttpServer(answer)
    listening = await server.listen("127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    idle = [await asyncio.open_connection("127.0.0.1", port, local_addr=(ATTACKER, 0)) for _ in range(50 * slow)]
    victims = []
    for _ in range(60):
        await asyncio.gather(*(ask(port, ATTACKER) for _ in range(50)))
        victims.append(await ask(port, VICTIM))
    assert all(it.endswith(b"fine") for it in victims)
    assert asked <= fair_listener.MOST_A_SECOND + len(victims)
    for _, writer in idle:
        writer.close()
    await server.close([listening])
    server.cut_connections()


def test_the_next_second_has_shares_of_its_own() -> None:
    now = 1.0
    listener = FairListener(socket.create_server(("127.0.0.1", 0)), lambda: now, Budget())
    shares = [listener._has_share("10.0.0.1") for _ in range(fair_listener.MOST_A_SECOND + 1)]
    assert shares == [True] * fair_listener.MOST_A_SECOND + [False]
    assert listener._has_share("10.0.0.2")
    now = 2.0
    assert listener._has_share("10.0.0.1")
    assert len(listener._made) == 1
    listener.close()


async def test_three_thousand_requests_of_five_hundred_clients_cost_no_other_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FairListener.__init__, "__defaults__", (lambda: 7.0, Budget()))
    asked = 0

    async def answer(_: Request) -> Response:
        nonlocal asked
        asked += 1
        return text(HTTPStatus.OK, "fine")

    server = BriefHttpServer(answer)
    listening = await server.listen("127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    victims = []
    for at in range(60):
        await asyncio.gather(*(ask(port, f"127.0.2.{(at * 50 + one) % 250}") for one in range(25)))
        await asyncio.gather(*(ask(port, f"127.0.3.{(at * 50 + one) % 250}") for one in range(25)))
        victims.append(await ask(port, f"127.0.4.{at}"))
    assert all(it.endswith(b"fine") for it in victims)
    assert asked <= MOST_IN_ALL
    await server.close([listening])
    server.cut_connections()


class TestTheBudgetOfAll:
    """Two ports of one process, whose clock stands still."""

    @pytest.fixture
    def ports(self) -> Iterator[list[FairListener]]:
        budget = Budget()
        listeners = [FairListener(socket.create_server(("127.0.0.1", 0)), lambda: 7.0, budget) for _ in range(2)]
        yield listeners
        for listener in listeners:
            listener.close()

    def test_a_hundred_load_balancers_may_probe_ten_ports_a_second(self) -> None:
        budget = Budget()
        for _ in range(10):
            listener = FairListener(socket.create_server(("127.0.0.1", 0)), lambda: 7.0, budget)
            assert all(listener._has_share(f"10.0.0.{client}") for client in range(100))
            listener.close()

    @pytest.mark.parametrize("network", ["10.0.{}.{}", "fd00:{}:{}::1"], ids=["IPv4", "IPv6"])
    def test_those_who_ask_often_leave_room_for_those_who_ask_once(
        self, ports: list[FairListener], network: str
    ) -> None:
        attackers = [network.format(at // 200, at % 200) for at in range(500)]
        had = sum(ports[0]._has_share(attackers[at % 500]) for at in range(3000))
        assert had <= MOST_IN_ALL * 3 // 4
        assert all(port._has_share("192.0.2.1") for port in ports)
        assert not any(port._has_share("192.0.2.1") for port in ports)

    def test_no_more_are_accepted_than_the_process_can_answer(self, ports: list[FairListener]) -> None:
        asked = [ports[at % 2]._has_share(f"10.{at // 65536}.{at // 256 % 256}.{at % 256}") for at in range(5000)]
        assert asked == [True] * MOST_IN_ALL + [False] * (5000 - MOST_IN_ALL)


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("fd00::1", "fd00::2", True),
        ("fd00::1", "fd00:0:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_addresses_of_one_ipv6_network_share(one: str, another: str, same: bool) -> None:
    assert (fair_listener._client(one) == fair_listener._client(another)) is same
