"""The status page shows the log's last events."""

from kroute.base.logs import LONGEST_DETAILS, RecentEvents


def test_the_last_events_come_newest_first_with_their_fields_as_text() -> None:
    recent = RecentEvents(2)
    for number in range(3):
        event = {
            "event": "vip.bound",
            "level": "info",
            "timestamp": "now",
            "vip": f"10.96.0.{number}",
            "on": "lo",
        }
        recent.remember(event, float(number))
    assert [(it.event, it.level, it.details) for it in recent.newest_first] == [
        ("vip.bound", "info", "vip=10.96.0.2 on=lo"),
        ("vip.bound", "info", "vip=10.96.0.1 on=lo"),
    ]


def test_a_long_event_is_cut() -> None:
    recent = RecentEvents(1)
    recent.remember({"event": "x", "level": "info", "error": "e" * 10_000}, 0.0)
    [event] = recent.newest_first
    assert len(event.details) == LONGEST_DETAILS
