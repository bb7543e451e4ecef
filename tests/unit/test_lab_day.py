"""The timetable of the day in an hour."""

import pytest

from tests.lab.day.tenant import INPUTS
from tests.lab.day.timetable import LEAST, SECONDS, SEED, USUAL_SEED, Day


def test_an_hour_has_a_thousand_kills_ten_thousand_edits_and_twenty_outages() -> None:
    counts = {kind: len(events) for kind, events in Day(3600, 1).events().items()}
    assert (counts["kill"], counts["edit"], counts["outage"]) == (1000, 10_000, 20)


def test_a_short_day_has_every_input_of_the_tenant_twice_and_every_kind_of_outage() -> None:
    counts = {kind: len(events) for kind, events in Day(60, 1).events().items()}
    assert counts["attack"] >= 2 * len(INPUTS)
    assert all(counts[kind] >= least for kind, least in LEAST.items())


def test_a_seed_decides_everything_and_another_one_otherwise() -> None:
    assert Day(300, 5).events() == Day(300, 5).events()
    assert Day(300, 5).events()["edit"] != Day(300, 6).events()["edit"]


def test_the_events_of_a_kind_are_in_order_and_within_the_day() -> None:
    for events in Day(300, 5).events().values():
        moments = [event.at for event in events]
        assert moments == sorted(moments)
        assert 0 <= moments[0] <= moments[-1] <= 300


def test_the_environment_chooses_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECONDS, "3600")
    assert Day.wanted() == Day(3600, USUAL_SEED)
    monkeypatch.setenv(SEED, "20261123")
    assert Day.wanted() == Day(3600, 20261123)
