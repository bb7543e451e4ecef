"""The kernel says which user of this node has the other end of a connection. The sockets are real ones, on loopback."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kroute.kernel.netlink import socket_diag
from kroute.kernel.netlink.socket_diag import listening_ports, owner_of


class Pair:
    """A connection, and the listener that has accepted it."""

    def __init__(self, listener: socket.socket, client: socket.socket) -> None:
        self.listener = listener
        self.client = client
        self.accepted, _ = listener.accept()


@pytest.fixture(params=["127.0.0.1", "::1", "mapped"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    mapped = request.param == "mapped"
    family = socket.AF_INET if request.param == "127.0.0.1" else socket.AF_INET6
    with ExitStack() as stack:
        where = ("" if mapped else request.param, 0)
        listener = stack.enter_context(socket.create_server(where, family=family, dualstack_ipv6=mapped))
        address = ("127.0.0.1" if mapped else request.param, listener.getsockname()[1])
        pair = Pair(listener, stack.enter_context(socket.create_connection(address)))
        stack.enter_context(pair.accepted)
        yield pair


def test_a_process_of_this_node_has_a_user(pair: Pair) -> None:
    assert owner_of(pair.accepted) == os.getuid()


def test_the_user_is_that_of_the_other_end() -> None:
    before = os.geteuid()
    user = 65534 if before == 0 else before  # only root can become another user
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.seteuid(user)
        try:
            client = socket.socket()
        finally:
            os.seteuid(before)
        client.connect(listener.getsockname())
        with client, listener.accept()[0] as accepted:
            assert owner_of(accepted) == user


def test_a_closed_socket_is_nobodys_and_not_roots(pair: Pair) -> None:
    pair.client.close()
    assert owner_of(pair.accepted) is None


class Elsewhere:
    """A connection of another machine, from a port on which a process of this node listens."""

    def __init__(self, port: int) -> None:
        self.port = port

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.7", self.port

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 10256


def test_another_machine_is_none_of_this_nodes_listeners() -> None:
    with socket.create_server(("", 0)) as listener:
        assert owner_of(Elsewhere(listener.getsockname()[1])) is None  # type: ignore[arg-type]


def test_a_kernel_that_cannot_say_says_nobody(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_diag, "NETLINK_SOCK_DIAG", 31)
    assert owner_of(pair.accepted) is None
    assert listening_ports() is None


def test_the_ports_of_all_listeners_are_known_and_no_others(pair: Pair) -> None:
    connected, listens = pair.client.getsockname()[1], pair.listener.getsockname()[1]
    ports = listening_ports()
    assert ports is not None
    assert listens in ports
    assert connected not in ports
    with ExitStack() as stack:
        many = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(600)]
        assert set(many) <= (listening_ports() or set())  # in several parts
    pair.listener.close()
    assert listens not in (listening_ports() or set())


def test_a_kernel_without_the_module_for_a_protocol_does_not_say_that_nobody_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "IPPROTO_TCP", 200)  # sock_diag has no module for it
    assert listening_ports() is None
