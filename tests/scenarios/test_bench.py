"""The bench, at a size that takes seconds: it measures what it claims, and notices when kroute does not serve all."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench import phases
from bench.batch_tools import expected_content
from bench.phases import BenchError, Lengths
from bench.run import run
from bench.session import Session
from bench.workload import Workload

pytestmark = pytest.mark.legacy  # the batch tools in C that it measures are ipset and iptables
SIZE = 20
LENGTHS = Lengths(changes=10, services=2, storm=2.0, idle=0.1, resyncs=0, calm=0.1)


async def the_last_of(results: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return [result async for result in results][-1]


async def test_a_run_has_every_figure_and_they_agree():
    told: list[str] = []
    wanted = frozenset({"tools", "cold", "update", "services", "warm", "storm"})
    result = await the_last_of(run([SIZE], 3, LENGTHS, wanted, told.append))
    (figures,) = result["runs"]
    cold, warm = figures["cold"], figures["warm"]
    assert cold["writes"] >= SIZE * (1 + 3)
    assert cold["messages"] >= SIZE * (1 + 3 + 2 + 2), "servers, real servers, address and route, set entries"
    assert 0 < cold["ipvs_in_kernel"] <= cold["ipvs"] <= cold["published_to_ready"]
    steps = ("start_to_list", "list_to_listed", "listed_to_published", "published_to_ready")
    assert all(cold[step] > 0 for step in steps)
    assert sum(cold[step] for step in steps) == pytest.approx(cold["start_to_ready"])
    assert 0 < cold["rss_settled"] <= cold["rss_peak"]
    assert warm["writes"] == 0, "nothing had changed"
    assert figures["update"]["measured"] == LENGTHS.changes
    assert 0 < figures["update"]["p50"] <= figures["update"]["p99"]
    assert figures["add"]["measured"] == figures["delete"]["measured"] == LENGTHS.services
    assert figures["storm"]["changes"] == 200
    assert figures["storm"]["lost"] == 0
    assert figures["storm"]["rss_first_half"] <= figures["storm"]["rss_second_half"] * 1.2
    assert all(seconds > 0 for seconds in figures["tools"].values())
    assert figures["tools_cpu"]["seconds"] > 0
    assert len(told) == len(wanted) + 3, "and what the tools and the kernel use; adding and deleting are told apart"


async def test_a_kernel_that_lacks_something_is_noticed(monkeypatch):
    def too_much(workload: Workload) -> dict[str, int]:
        return {**expected_content(workload), "virtual_servers": workload.services + 1}

    monkeypatch.setattr(phases, "expected_content", too_much)
    with pytest.raises(BenchError, match="instead of"):
        await the_last_of(run([2], 1, LENGTHS, frozenset(), lambda _: None))


async def test_a_change_that_never_came_is_counted_as_lost(monkeypatch):
    def expected_table(session: Session) -> dict[str, list[str]]:
        numbers = range(session.workload.services)
        return {session.workload.cluster_ip(it): session.workload.pod_ips(it, int(it == 0) * 99) for it in numbers}

    monkeypatch.setattr(Session, "next_slice", lambda session, number: session.workload.slice(number))
    monkeypatch.setattr(Session, "expected_table", expected_table)
    result = await the_last_of(run([2], 1, LENGTHS._replace(storm=0.2), frozenset({"storm"}), lambda _: None))
    assert result["runs"][0]["storm"]["lost"] == 1
