"""The bench of hashing: its reference, its tables and its charts."""

import json
import socket
from xml.etree import ElementTree as ET

from bench import hashing
from tests.lab import hash_choices


def test_rendezvous_moves_the_clients_of_the_one_that_leaves_and_no_others() -> None:
    servers = [f"10.1.0.{number}" for number in range(1, 8)]
    clients = [f"198.18.0.{number}" for number in range(1, 200)]
    before, after = hashing.rendezvous(servers, clients), hashing.rendezvous(servers[1:], clients)
    assert {it for it in clients if before[it] != after[it]} == {it for it in clients if before[it] == servers[0]}
    assert hashing.moved(before, after) == list(before.values()).count(servers[0]) / len(clients)


def test_the_page_has_the_last_result_and_its_charts() -> None:
    result = json.loads(hashing.FILE.read_text())
    assert hashing.markdown(result) in hashing.PAGE.read_text()
    for name, chart in hashing.charts(result).items():
        assert (hashing.RESULTS / name).read_text() == chart
        ET.fromstring(chart)


def test_maglev_moved_little_more_than_its_share_and_source_hashing_most() -> None:
    """What docs/hashing.md says of the figures."""
    for run in json.loads(hashing.FILE.read_text())["runs"]:
        share = 1 / run["servers"]
        assert run["mh"] <= share + 0.04
        assert run["servers"] == 2 or run["sh"] > 0.6
        assert abs(run["mh drains"] - share) < 0.01


def test_clients_are_the_first_addresses_of_their_network() -> None:
    assert hash_choices.clients(socket.AF_INET, 2) == ["198.18.0.1", "198.18.0.2"]
    assert hash_choices.servers(socket.AF_INET6, 1) == ["fd00:10:200::1"]
