"""The addresses from which the API server has answered lately, and those from which it was asked."""

import gc

import pytest

from kroute.watchers.kubernetes.server_presence import LATELY, MOST_PEERS, Peers


class Transport:
    is_aborted = False

    def __init__(self, *name: object, source: str = "") -> None:
        self.names = {"peername": name or None, "sockname": (source, 50_000) if source else None}

    def get_extra_info(self, what: str) -> object:
        return self.names[what]

    def abort(self) -> None:
        self.is_aborted = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_new_one_is_news_and_an_old_one_is_forgotten() -> None:
    clock = Clock()
    peers = Peers(clock)
    peers.saw(Transport("10.0.0.1", 6443))
    assert peers.changed.is_set()
    peers.changed.clear()
    peers.saw(Transport("10.0.0.1", 6443))
    assert not peers.changed.is_set()
    clock.now = LATELY + 1
    peers.saw(Transport("FD00:0::1", 6443, 0, 0))
    assert (peers.recent(), peers.changed.is_set()) == ({"fd00::1"}, True)


NOBODY = {"closed": None, "nameless": Transport(), "no address": Transport("nonsense")}


@pytest.mark.parametrize("transport", NOBODY.values(), ids=list(NOBODY))
def test_what_has_no_address_is_nobody(transport: Transport | None) -> None:
    peers = Peers()
    peers.saw(transport)
    assert (peers.recent(), peers.changed.is_set()) == (frozenset(), False)


def test_no_more_than_a_few_are_remembered() -> None:
    peers = Peers()
    for number in range(MOST_PEERS + 4):
        peers.saw(Transport(f"10.0.0.{number}", 6443))
    assert len(peers.recent()) == MOST_PEERS
    assert "10.0.0.3" not in peers.recent()


def test_connections_from_an_address_that_has_left_the_node_are_ended_and_no_others() -> None:
    peers = Peers()
    sources = ("10.0.0.7", "fd00::7", "10.0.0.8", "127.0.0.1")
    transports = {source: Transport("10.0.0.1", 6443, source=source) for source in sources}
    peers.keep_to(frozenset({"10.0.0.7", "fd00::7", "10.0.0.8"}))
    for transport in transports.values():
        peers.saw(transport)
    peers.keep_to(frozenset({"10.0.0.8", "10.0.0.9"}))
    assert {source for source, it in transports.items() if it.is_aborted} == {"10.0.0.7", "fd00::7"}


def test_a_connection_that_has_been_closed_is_forgotten() -> None:
    peers = Peers()
    peers.keep_to(frozenset({"10.0.0.7"}))
    peers.saw(Transport("10.0.0.1", 6443, source="10.0.0.7"))
    gc.collect()
    peers.keep_to(frozenset())
    assert not peers._sources
