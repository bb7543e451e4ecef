"""The bench, at a size that takes seconds: it measures what it claims, and notices when kroute does not serve all."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench import announce, policies
from bench.datapath import measure
from bench.datapath.ways import FLOORS, WAYS
from bench.phases import start
from bench.phases.lengths import BenchError, Lengths
from bench.phases.session import Session
from bench.place.batch_tools import expected_content
from bench.run import PHASES, Plan, circumstances, run
from bench.workload import Workload

pytestmark = pytest.mark.legacy  # the batch tools in C that it measures are ipset and iptables
SIZE = 20
LENGTHS = Lengths(changes=10, services=2, weights=5, storm=2.0, hurricane=0.5, idle=1.0, calm=0.1, rest=0.1)


async def the_last_of(results: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return [result async for result in results][-1]


def agents_of_a_bench() -> list[str]:
    """The processes of the agents that a bench has left: their environments have its state directory."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            if b"kroute-bench-state-" in file.read_bytes():
                found.append(file.parent.name)
    return found


async def test_a_run_has_every_figure_and_they_agree():
    told: list[str] = []
    result = await the_last_of(run(Plan([SIZE], 3, LENGTHS, frozenset(PHASES), runs=1), told.append))
    (figures,) = result["runs"]
    assert " Linux " in f" {result['lab']} "
    cold, warm = figures["cold"], figures["warm"]
    assert cold["writes"] >= SIZE * (1 + 3)
    assert cold["messages"] >= SIZE * (1 + 3 + 2 + 2), "servers, real servers, address and route, set entries"
    assert 0 < cold["ipvs_in_kernel"] <= cold["ipvs"] <= cold["published_to_ready"]
    steps = ("start_to_list", "list_to_listed", "listed_to_published", "published_to_ready")
    assert all(cold[step] > 0 for step in steps)
    assert sum(cold[step] for step in steps) == pytest.approx(cold["start_to_ready"])
    assert 0 < cold["rss_settled"] <= cold["rss_peak"]
    assert warm["writes"] == 0, "nothing had changed"
    counted = figures["update"]["measured"]
    assert 0 < counted <= LENGTHS.changes, "where the host is slow, several changes may be done at once"
    assert 0 < figures["update"]["p50"] <= figures["update"]["p99"]
    if counted == LENGTHS.changes:  # else what is measured from the API server is of fewer changes
        assert 0 < figures["update"]["p50_from_watcher"] <= figures["update"]["p50"]
    assert figures["update"]["ipvs_messages"] >= 2 * LENGTHS.changes, "one real server comes, another one goes"
    assert figures["update"]["rss"] > 0
    assert figures["weights"]["messages_each"] == 1, "only that real server has another weight"
    assert 0 < figures["weights"]["measured"] <= LENGTHS.weights, "as with updates"
    idle = figures["idle"]
    assert idle["cpu_share"] == idle["looks_share"] + idle["resyncs_share"] < 1
    assert idle["resyncs_share"] >= 0
    for it in ("add", "delete"):
        assert 0 < figures[it]["measured"] <= LENGTHS.services, "as with updates"
        assert figures[it]["ipvs_messages"] >= LENGTHS.services, "and each was done"
    assert figures["storm"]["changes"] == 200
    assert figures["storm"]["lost"] == 0
    assert figures["storm"]["rss_first_half"] <= figures["storm"]["rss_second_half"] * 1.2
    assert all(seconds > 0 for seconds in figures["tools"].values())
    assert figures["tools_cpu"]["seconds"] > 0
    assert len(told) == len(PHASES) + 5, "the pace, tools, kernel, the minutes after the start; a deletion"


async def test_a_kernel_that_lacks_something_is_noticed(monkeypatch):
    def too_much(workload: Workload) -> dict[str, int]:
        return {**expected_content(workload), "virtual_servers": workload.services + 1}

    monkeypatch.setattr(start, "expected_content", too_much)
    with pytest.raises(BenchError, match="instead of"):
        await the_last_of(run(Plan([2], 1, LENGTHS, frozenset(), runs=1), lambda _: None))
    assert not agents_of_a_bench(), "one would burden every later test in this machine"


async def test_a_change_that_never_came_is_counted_as_lost(monkeypatch):
    def expected_table(session: Session) -> dict[str, list[str]]:
        numbers = range(session.workload.services)
        return {session.workload.cluster_ip(it): session.workload.pod_ips(it, int(it == 0) * 99) for it in numbers}

    monkeypatch.setattr(Session, "next_slice", lambda session, number: session.workload.slice(number))
    monkeypatch.setattr(Session, "expected_table", expected_table)
    plan = Plan([2], 1, LENGTHS._replace(storm=0.2), frozenset({"storm"}), runs=1)
    result = await the_last_of(run(plan, lambda _: None))
    assert result["runs"][0]["storm"]["lost"] == 1


@pytest.mark.nftables
async def test_every_way_of_a_packet_through_each_proxy_is_measured():
    proxies = ["none", *measure.KROUTE]
    plan = measure.Plan([2], 1, proxies, rounds=1, connections=20, requests=20)
    told: list[str] = []
    found = [it async for it in measure.run(plan, told.append)][-1]
    assert [node["proxy"] for node in found] == proxies
    for node in found:
        assert node["start"] is not None, node["why"]
        assert set(node["ways"]) == set(FLOORS if node["proxy"] == "none" else WAYS)
        for figures in node["ways"].values():
            assert figures["connect"]["seconds"] >= figures["first"]["p50"] > 0
            assert figures["request"]["seconds"] > 0
    assert not agents_of_a_bench(), "one would burden every later test in this machine"


@pytest.mark.nftables
async def test_what_announcements_cost_is_measured():
    result = await the_last_of(announce.run((3,), 1, changes=1, calm=0.1))
    [figures] = result["sizes"].values()
    assert figures["without"]["start"] > 0 < figures["with"]["start"]  # of three VIPs either may be the longer one
    assert figures["comes"] > 0 < figures["goes"]
    assert figures["bird"] > 0 < figures["with"]["rss"]
    assert "| VIPs announced | 3 |\n|---|---:|\n" in announce.markdown(result)
    assert not agents_of_a_bench(), "one would burden every later test in this machine"


@pytest.mark.nftables
async def test_what_network_policies_cost_is_measured():
    calls = measure.Plan((), 0, (), rounds=1, connections=20, requests=20)
    plan = policies.Plan(pods=20, local=4, sizes=(0, 5), changes=1, calm=0.1, calls=calls)
    found = await the_last_of(policies.run(plan, 1, ["kroute-nftables"]))
    [figures] = found.values()
    assert all(change["comes"] > 0 < change["goes"] for change in figures["changes"].values())
    assert all(figures["with"][size]["ways"].keys() == set(policies.CALLS) for size in ("0", "5"))
    assert policies.markdown({**circumstances(), "load_after": 0.0, **plan._asdict(), "proxies": found})
    assert not agents_of_a_bench(), "one would burden every later test in this machine"
