"""The bench's outage: a herd of kroute's agents recovers sooner than one of client-go's, and asks for no more lists."""

from pathlib import Path

import pytest

from bench.outage import report
from bench.outage.herd import CLIENTS, Outcome, simulate
from bench.outage.server import Capacity, RetryAfter
from kroute.model.kinds import WATCHED
from tests.apiserver.restart import Restart

AGENTS = 30
WIDE = Capacity(list_seconds=0.001)
NARROW = Capacity(list_seconds=0.05, processors=2, in_flight=20)
"""It can make 40 lists a second, and refuses most of a herd."""


@pytest.mark.parametrize("away", [4.0, 29.0])
@pytest.mark.parametrize("capacity", [WIDE, NARROW], ids=["a server with room", "a server that must refuse"])
def test_agents_of_kroute_are_back_sooner_and_list_no_more(capacity: Capacity, away: float) -> None:
    restart = Restart.recorded().lasting(away)
    kroute, client_go = (simulate(client, restart, capacity, AGENTS) for client in CLIENTS)
    assert kroute.half < client_go.half
    assert kroute.nearly_all <= client_go.nearly_all
    assert kroute.all < client_go.all
    assert kroute.lists == client_go.lists == AGENTS * len(WATCHED)
    assert kroute.peak <= capacity.in_flight


def test_with_room_all_agents_are_back_within_two_seconds_of_readyz() -> None:
    restart = Restart.recorded().lasting(10.0)
    outcome = simulate("kroute", restart, WIDE, AGENTS)
    assert outcome.all < restart.ready - restart.listening + 2.0
    assert outcome.refused == 0


def test_a_server_that_must_refuse_is_kept_busy_and_not_longer_than_it_has_work() -> None:
    outcome = simulate("kroute", Restart.recorded().lasting(10.0), NARROW, AGENTS)
    assert outcome.refused > 0
    work = outcome.lists * NARROW.list_seconds / NARROW.processors
    assert outcome.all < 4 * work


def test_a_simulation_is_the_same_every_time() -> None:
    restart = Restart.recorded().lasting(4.0)
    for client in CLIENTS:
        assert simulate(client, restart, NARROW, 20) == simulate(client, restart, NARROW, 20)


def test_the_server_asks_for_longer_pauses_while_many_are_refused() -> None:
    retry_after = RetryAfter()
    asked = []
    for second in range(80):
        for _ in range(100 if second < 20 else 0 if second % 5 else 1):
            retry_after.refused(float(second))
        asked.append(retry_after.seconds)
    assert max(asked[:20]) >= 8
    assert asked[-1] < max(asked)


def test_the_tables_have_a_place_of_their_own_in_the_page(tmp_path: Path) -> None:
    outcome = Outcome("kroute", 1.0, 1.5, 2.0, 3, 6, 0, 0, 3, 10)
    result = {
        "when": "2026-11-22 12:00 UTC",
        "commit": "abc",
        "lab": "User Mode Linux, Linux 7.3",
        "agent": [{"away": 10.0, "seconds": -0.25}, {"away": 10.0, "seconds": 0.5}, {"away": 29.0, "seconds": 1.25}],
        "servers": [
            {"way": "killed", "seconds": 0.25},
            {"way": "hangs", "seconds": 2.0},
            {"way": "hangs", "seconds": 2.5},
        ],
        "servers_at": {"when": "2026-11-23 12:00 UTC", "commit": "abe", "lab": "User Mode Linux"},
        "herd_at": {"when": "2026-11-21 11:00 UTC", "commit": "abd"},
        "herd": [{"away": 10.0, "agents": 5000, "capacity": Capacity(0.02)._asdict(), "outcome": outcome._asdict()}],
    }
    page = tmp_path / "page.md"
    page.write_text("before\n{}old\n{}after\n".format(*report.MARKS))
    report.publish(result, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| -0.25 to 0.50 s | 1.25 to 1.25 s |" in text
    assert "| 10 s | 20 ms | 16 | 5,000 kroute | 1.0 s | 1.5 s | 2.0 s | 3 | 6 | 0 | 0 | 3 | 10 |" in text
    assert "Measured 2026-11-22 12:00 UTC at `abc` on User Mode Linux, Linux 7.3." in text
    assert "Simulated 2026-11-21 11:00 UTC at `abd`." in text, "the herd's figures may be older"
    assert "| **kroute**, 100 Services x 10 | 0.25 to 0.25 s | 2.00 to 2.50 s |" in text
    assert "Measured 2026-11-23 12:00 UTC at `abe`" in text
    assert "old" not in text
