"""Listings and events that the kernel gives in pieces or in error."""

import errno
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink import client as client_module
from kroute.kernel.netlink.message import HEADER, attribute, text
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.messages import NFNL_SUBSYS_NFTABLES, Message, elements_message, encode_element, query
from kroute.kernel.nftables.objects import Element, NftSet, Table
from kroute.kernel.nftables.table_monitor import TableMonitor

TABLE = Table(socket.AF_INET, "kroute")
OTHER = Table(socket.AF_INET, "other")
PORTS = NftSet("cluster-ip", ("ip", "port"))
ONE, TWO, THREE = (("10.0.0.1", 6, port) for port in (1, 2, 3))


def listing(*elements: Element) -> bytes:
    encoded = [encode_element(socket.AF_INET, PORTS.parts, it) for it in elements]
    return elements_message(Message.NEWSETELEM, TABLE, PORTS.name, encoded)[HEADER.size :]


class Kernel:
    """Answers each request with the next of these listings, which are in parts."""

    def __init__(self, *listings: list[bytes]) -> None:
        self.listings = list(listings)

    async def request(self, _message: bytes, parse: Callable[[bytes], Any]) -> list[Any]:
        return [parse(part) for part in self.listings.pop(0)]


async def read(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, of: NftSet = PORTS) -> set[Element]:
    monkeypatch.setattr(client_module, "REHASH_SECONDS", 0)
    client = Nftables()
    monkeypatch.setattr(client, "netlink", kernel)
    return {element async for part in client.elements(TABLE, of) for element in part}


async def test_a_set_that_was_rehashed_while_it_was_listed_is_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rehashed, complete = [listing(ONE, TWO), listing(TWO)], [listing(ONE, TWO), listing(THREE)]
    kernel = Kernel(rehashed, complete)
    assert await read(monkeypatch, kernel) == {ONE, TWO, THREE}
    assert kernel.listings == []


async def test_a_set_that_is_always_rehashed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match="faster than it can be read") as refused:
        await read(monkeypatch, Kernel(*[[listing(ONE, ONE)]] * client_module.LISTINGS))
    assert refused.value.errno == errno.EINTR


async def test_elements_of_another_kind_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match="make it again"):
        await read(monkeypatch, Kernel([listing(ONE)]), NftSet("cluster-ip", ("ip", "port", "ip")))


def event(kind: Message, table: Table, *more: bytes) -> bytes:
    made = query(kind, 0, text(1, table.name), *more, family=table.family)
    assert HEADER.unpack_from(made)[1] >> 8 == NFNL_SUBSYS_NFTABLES
    return made


def end(program: bytes = b"nft\0") -> bytes:
    return query(Message.NEWGEN, 0, *(attribute(kind, struct.pack("!I", 7)) for kind in (1, 2)), attribute(3, program))


@pytest.mark.parametrize(
    ("datagrams", "who"),
    [
        ([event(Message.NEWSETELEM, TABLE), end()], "nft (process 7)"),
        (
            [event(Message.NEWRULE, Table(socket.AF_INET, "other")) + event(Message.DELTABLE, TABLE) + end()],
            "nft (process 7)",
        ),
        ([event(Message.NEWSETELEM, Table(socket.AF_INET6, "kroute")), end()], ""),
        ([event(Message.NEWSETELEM, Table(socket.AF_INET, "kroute2")), end()], ""),
        ([event(Message.NEWSETELEM, Table(socket.AF_INET, "krout")), end()], ""),
        ([end()], ""),
        ([event(Message.NEWSETELEM, TABLE)], ""),
        ([event(Message.NEWSETELEM, TABLE), end(), end()], "nft (process 7)"),
        ([event(Message.NEWSETELEM, TABLE, text(2, "vip")), end(b"kube-proxy\0")], "kube-proxy (process 7)"),
    ],
)
def test_a_change_of_our_table_is_told_at_its_transactions_end(datagrams: list[bytes], who: str) -> None:
    monitor = TableMonitor([TABLE], port=1)
    told: list[str] = []
    for datagram in datagrams:
        monitor._read(told, datagram)
    assert told == ([who] if who else [])
