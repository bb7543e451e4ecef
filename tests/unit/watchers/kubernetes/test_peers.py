"""The addresses from which the API server has answered lately."""

import pytest

from kroute.watchers.kubernetes.peers import LATELY, MOST, Peers


class Transport:
    def __init__(self, *name: object) -> None:
        self.name = name

    def get_extra_info(self, what: str) -> object:
        assert what == "peername"
        return self.name or None


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
    for number in range(MOST + 4):
        peers.saw(Transport(f"10.0.0.{number}", 6443))
    assert len(peers.recent()) == MOST
    assert "10.0.0.3" not in peers.recent()
