"""When a digest is due: by how many looks there were since the last one, and by what it cost."""

import pytest

from kroute.reconcile import resync_schedule
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.reconcile.resync_schedule import LEAST_LOOKS, MOST_LOOKS, SHARE_OF_DIGESTS, DigestPace, Metered
from kroute.settings import Settings

A_LOOK = 30.0 * 0.001 * SHARE_OF_DIGESTS
"""Seconds of a processor that the digests of a controller may take in each period."""


@pytest.mark.parametrize(
    ("cost", "budget", "looks"),
    [
        (0.0, 0.001, LEAST_LOOKS),
        (LEAST_LOOKS * A_LOOK * 0.9, 0.001, LEAST_LOOKS),
        (10.5 * A_LOOK, 0.001, 11),
        (60.0, 0.001, MOST_LOOKS),
        (60.0, 1.0, LEAST_LOOKS * 8),
        (0.001, 0.0, MOST_LOOKS),
    ],
    ids=["for nothing", "cheap", "dear", "too dear", "with another budget", "without a budget"],
)
async def test_a_digest_is_as_rare_as_it_is_dear(
    monkeypatch: pytest.MonkeyPatch, cost: float, budget: float, looks: int
) -> None:
    now = 0.0

    async def digest() -> str:
        nonlocal now
        now += cost
        return "digest"

    monkeypatch.setattr(resync_schedule, "Metered", lambda work: Metered(work, lambda: now))
    counters = ControllerStatistics()
    pace = DigestPace(Settings("node", resync_budget=budget), counters)
    for number, expected in enumerate((LEAST_LOOKS, looks, looks), 1):
        assert [pace.is_due() for _ in range(expected)] == [False] * (expected - 1) + [True]
        assert await pace.take(digest()) == "digest"
        assert (counters.digests, counters.digest_cost) == (number, pytest.approx(cost))
    assert looks * 30.0 == pytest.approx(counters.digest_pause, abs=30.0)
