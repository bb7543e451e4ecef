"""The bench's report: medians and spreads, which goals and targets a result meets, and where it is published."""

import copy
import platform
from xml.etree import ElementTree as ET

import msgspec
import pytest

from bench import firewalls, unasked
from bench.phases.changes import delays
from bench.phases.rest import rare_resyncs
from bench.place.host import kernel_name
from bench.report import page
from bench.report.charts import CHARTS, charts
from bench.report.headline import GOALS
from bench.report.plots import line_chart
from bench.report.rows import ROWS
from bench.report.spread import MIB, how_many, spread_of, spread_over
from bench.report.targets import TARGETS, straight_line, verdicts
from bench.workload import NODE, Workload
from kroute.reconcile.pass_status import ControllerStatistics


def a_change() -> dict:
    return {
        "p50": 0.0025,
        "p99": 0.02,
        "p50_from_watcher": 0.006,
        "cpu_per_change": 0.002,
        "rss": 34 * MIB,
        "measured": 3,
        "ipvs_messages": 9,
        "latencies": [0.002, 0.0025, 0.02],
    }


def a_run(services: int, number: int = 0) -> dict:
    """Return a run that meets every goal and every target."""
    return {
        "number": number,
        "services": services,
        "firewall": "nftables",
        "endpoints": 10,
        "pace": {"seconds": 0.8},
        "tools": {
            "ipvsadm": services / 100,
            "ip_routes": services / 1000,
            "ip_addresses": services / 1000,
            "ipset": services / 1000,
        },
        "cold": {
            "start_to_ready": services / 2500,
            "list_to_ready": services / 3000,
            "start_to_list": 0.1,
            "ipvs": services / 4000,
            "cpu": services / 2600,
            "agent_cpu": services / 2800,
            "longest_round": 0.05,
            "messages": 13 * services,
            "bytes": 1300 * services,
            "rss_settled": (30 + services / 250) * MIB,
            "rss_peak": (35 + services / 250) * MIB,
        },
        "update": a_change(),
        "weights": {**a_change(), "messages_each": 1},
        "warm": {
            "start_to_ready": services / 4000,
            "list_to_ready": services / 10000,
            "cpu": services / 4000,
            "writes": 0,
            "longest_round": 0.05,
            "rss_peak": 50 * MIB,
            "rss_settled": 44 * MIB,
        },
        "storm": {
            "behind_max": 0.3,
            "lost": 0,
            "rss_first_half": 60 * MIB,
            "rss_second_half": 60 * MIB,
            "series": [{"at": 0.5, "behind": 0.1}, {"at": 1.5, "behind": 0.3}],
        },
        "hurricane": {"behind_max": 0.3, "lost": 0, "p99": 0.08, "cpu_share": 0.7},
        "idle": {"cpu_share": 0.0004, "longest_round": 0.02, "rss": 44 * MIB},
        "settling": {"cpu_share": 0.001, "looks": 40, "resyncs": 4},
    }


def a_result(*sizes: int, runs: int = 1) -> dict:
    return {
        "when": "2026-01-01 00:00 UTC",
        "commit": "abc1234",
        "lab": "User Mode Linux, Linux 7.3",
        "python": "3.11.0",
        "cores": 2,
        "load_before": 0.1,
        "load_after": 1.2,
        "changes": 100,
        "storm": 30.0,
        "hurricane": 60.0,
        "idle": 90.0,
        "runs": [a_run(size, number) for number in range(runs) for size in sizes],
    }


def test_a_spread_is_the_median_with_the_least_and_the_greatest():
    assert spread_of([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert spread_of([4.0, 1.0]).median == 2.5
    assert spread_of([0.0052, 0.0049, 0.0061]).text(" s") == "0.0052 s (0.0049..0.0061)"
    with pytest.raises(ValueError, match="nothing to take the median of"):
        spread_of([])


def test_a_figure_that_is_the_same_in_all_runs_stands_alone():
    assert spread_of([1304, 1304, 1304]).text("") == "1,304"
    assert spread_of([7.0]).text(" ms") == "7 ms"
    assert spread_of([1.0001, 1.0002]).text(" s") == "1 s", "the three digits that are shown are the same"


def test_a_spread_over_runs_leaves_out_those_that_lack_the_figure():
    runs = [{"idle": {"cpu_share": 0.2}}, {}, {"idle": {"cpu_share": 0.4}}]
    assert spread_over(runs, lambda run: run["idle"]["cpu_share"]) == (pytest.approx(0.3), 0.2, 0.4)
    assert spread_over(runs, lambda run: run["storm"]["lost"]) is None


def test_the_page_says_how_many_runs_there_were():
    assert how_many(a_result(100, 1000, runs=3)["runs"]) == "the median of 3 runs, with the least and the greatest"
    assert how_many([*a_result(100, runs=3)["runs"], *a_result(1000, runs=2)["runs"]]).startswith(
        "the median of 2 or 3"
    )
    assert how_many(a_result(100)["runs"]) == "one run, so without a spread"
    assert how_many([a_run(100), {**a_run(100), "firewall": "iptables"}]) == "one run, so without a spread"


def test_the_page_says_which_phase_was_measured_more_rarely():
    first, *others = a_result(100, runs=3)["runs"]
    without = [{name: it for name, it in run.items() if name != "idle"} for run in others]
    assert how_many([first, *without]).endswith("3 runs, with the least and the greatest; idle: of 1")


def test_the_page_says_which_kernel_and_which_kind_of_lab():
    assert "on User Mode Linux, Linux 7.3, 2 of the host's cores" in page.headline_text(a_result(100))


def test_the_kind_of_lab_is_read_from_the_kernel_itself(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nvendor_id\t: User Mode Linux\n")
    assert kernel_name(cpuinfo) == f"User Mode Linux, Linux {platform.release()}"
    cpuinfo.write_text("processor\t: 0\nvendor_id\t: GenuineIntel\n")
    assert kernel_name(cpuinfo) == f"native, Linux {platform.release()}"


def cells_of(text: str, figure: str) -> list[str]:
    (line,) = (it for it in text.splitlines() if it.startswith(f"| {figure} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


IDLE = "**idle**, all resyncs included"


def test_the_headline_begins_with_idling_and_judges_each_goal_at_its_size():
    result = a_result(100, 1000, 10000, runs=3)
    for number, share in enumerate((0.0006, 0.0005, 0.0030)):
        result["runs"][3 * number + 2]["idle"]["cpu_share"] = share
    text = page.headline_text(result)
    assert text.index(IDLE) < text.index("**start**")
    assert cells_of(text, IDLE) == ["0.05 % of a core at 10,000", "0.04 %", "0.04 %", "0.06 % (0.05..0.3), **missed**"]
    start = cells_of(text, "**start**: process to the last object in the kernel")
    assert start == ["1.2 s at 1,000, 5 s at 10,000", "0.04 s", "0.4 s, met", "4 s, met"]


def test_a_good_result_misses_nothing_in_the_headline():
    text = page.headline_text(a_result(100, 1000, 10000, runs=3))
    assert "missed" not in text
    assert text.count(", met") == sum(len(goal.limits) for goal in GOALS)


def test_a_goal_that_was_not_measured_is_neither_met_nor_missed():
    result = a_result(100, 10000)
    del result["runs"][1]["idle"]
    assert cells_of(page.headline_text(result), IDLE)[1:] == ["0.04 %", "-"]


def test_every_row_has_its_figures_by_size():
    text = page.figures_text(a_result(100, 1000, 10000, runs=3))
    assert "| **one weight changed**, by annotation: p50 | 2.5 ms | 2.5 ms | 2.5 ms |" in text
    for messages in ("3", "1"):
        assert text.count(f"| netlink messages to IPVS | {' | '.join([messages] * 3)} |") == 1
    assert "**a Service added**" not in text, "this result lacks the phase"
    assert "In each run: 100 single changes, a storm of 30 s, a hurricane of 60 s, 90 s idle." in text
    assert len({(row.name, row.value) for row in ROWS}) == len(ROWS)


def test_a_delay_is_from_a_change_to_its_last_completion():
    sent = [10.0, 20.0, 30.0, 40.0]
    assert delays(sent, [5.0, 12.0, 13.0, 21.0, 41.0]) == [3.0, 1.0, 1.0]
    assert delays(sent, []) == []


def test_resyncs_and_digests_that_are_rarer_than_the_window_count_with_their_average():
    one = ControllerStatistics(
        resyncs=1, resync_cost=0.5, resync_pause=2000.0, digests=3, digest_cost=0.25, digest_pause=1000.0
    )
    before = {"often": one, "rare": one, "never": ControllerStatistics()}
    after = before | {"often": msgspec.structs.replace(one, resyncs=2, digests=4)}
    assert rare_resyncs(before, after) == 0.5 / 2000 + 0.25 / 1000


def test_what_nobody_asked_for_is_what_its_files_use_outside_of_the_kernels_clients():
    writer = "/x/kroute/controllers/ipvs/server_order.py"
    rule = "/x/kroute/planning/features/weights/rule.py"
    climb = "/x/kroute/planning/features/slow_start.py"
    socket = "/x/kroute/kernel/ipvs/client.py"
    ejecting = "/x/kroute/controllers/ipvs/ejections.py"
    samples = [
        (4, ["/x/kroute/agent/wiring.py"]),
        (2, [ejecting]),
        (1, [rule]),
        (1, [rule, climb]),
        (1, [writer]),
        (1, [writer, socket]),
    ]
    found = unasked.shares(samples)
    assert found == {"weights and locality": 0.2, "slow start": 0.1, "ejection": 0.2, "order of real servers": 0.1}
    result = {**a_result(1000), "runs": [{"services": 1000, "firewall": "nftables", "shares": found}] * 3}
    assert "| weights and locality | 20 % |" in unasked.markdown(result)


def test_the_files_of_what_nobody_asked_for_exist():
    for files in unasked.PARTS.values():
        for file in files:
            assert (unasked.PROJECT / file).exists()


def verdict_of(result: dict, figure: str) -> bool | None:
    (found,) = (it for it in verdicts(result["runs"]) if it.target.figure == figure)
    return found.is_met


def test_a_good_run_meets_every_target():
    assert [it.target.figure for it in verdicts(a_result(100, 1000, 10000)["runs"]) if not it.is_met] == []


@pytest.mark.parametrize(
    ("phase", "figure", "value", "missed"),
    [
        ("cold", "ipvs", 40.0, "IPVS part of a cold start, against `ipvsadm -R`"),
        ("warm", "writes", 1, "warm restart: writes to the kernel"),
        ("update", "p99", 0.041, "one endpoint changed, p99"),
        ("update", "cpu_per_change", 0.0053, "CPU for one endpoint change, against 100 Services"),
        ("weights", "messages_each", 2, "one weight changed: netlink messages to IPVS"),
        ("storm", "behind_max", 1.01, "storm: furthest behind"),
        ("storm", "lost", 1, "storm: virtual servers that missed a change"),
        ("hurricane", "p99", 0.101, "hurricane: p99, read to kernel"),
        ("hurricane", "behind_max", 1.01, "hurricane: furthest behind"),
        ("hurricane", "lost", 1, "hurricane: virtual servers that missed a change"),
        ("hurricane", "cpu_share", 1.01, "hurricane: CPU of the node"),
        ("idle", "longest_round", 0.21, "idle, with resyncs: longest stall of the event loop, in emulation"),
        ("cold", "rss_settled", 151 * MIB, "settled RSS"),
    ],
)
def test_what_is_over_its_limit_is_missed(phase, figure, value, missed):
    result = a_result(100, 1000, 10000)
    result["runs"][-1][phase][figure] = value
    assert verdict_of(result, missed) is False
    assert "**missed**" in page.figures_text(result)


def test_the_largest_size_is_what_counts():
    result = a_result(100, 1000, 10000)
    result["runs"][0]["update"]["p99"] = 5.0
    assert verdict_of(result, "one endpoint changed, p99") is True


def test_what_was_not_measured_is_neither_met_nor_missed():
    result = a_result(1000)
    del result["runs"][0]["storm"]
    assert verdict_of(result, "storm: furthest behind") is None
    assert verdict_of(result, "the same, against 100 Services") is None
    table = page.figures_text(result)
    assert table.count("not measured") == len([it for it in verdicts(result["runs"]) if it.spread is None]) > 0


def test_every_target_has_a_line():
    targets, _, _figures = page.figures_text(a_result(100, 1000, 10000)).partition("\n| | ")
    lines = targets.splitlines()
    for target in TARGETS:
        assert sum(line.startswith(f"| {target.figure} |") for line in lines) == 1


def test_growth_is_shown_as_a_straight_line():
    line = straight_line([(100, 1.5), (1000, 6.0), (10000, 51.0)])
    assert line == pytest.approx((1.0, 0.005, 1.0))
    assert straight_line([(1, 1), (2, 4), (3, 9)]).r_squared < 0.99
    assert "0.00 s and 0.33 ms a Service (R² 1.0000)" in page.figures_text(a_result(100, 1000, 10000))
    assert "a Service (R²" not in page.figures_text(a_result(100, 1000))


def test_the_charts_are_well_formed():
    drawn = charts(a_result(100, 1000, 10000))
    assert set(drawn) == set(CHARTS)
    for chart in drawn.values():
        assert ET.fromstring(chart).tag.endswith("svg")


def test_a_chart_shows_names_as_text_and_every_point():
    chart = line_chart("a < b", "x", "y", {"one & two": [(0, 0), (1, 5), (2, 3)]})
    root = ET.fromstring(chart)
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"a < b", "one & two", "x", "y"} <= texts
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 3


def test_a_chart_of_nothing_is_refused():
    with pytest.raises(ValueError, match="nothing to show"):
        line_chart("empty", "x", "y", {"none": [(0, 0)]}, logarithmic=True)


def test_the_page_keeps_what_is_around_the_results(tmp_path):
    (tmp_path / "docs/design").mkdir(parents=True)
    files = [tmp_path / "docs" / name for name in (page.SUMMARY, page.DETAILS)]
    for file, (begin, end) in zip(files, (page.HEADLINE, page.FIGURES), strict=True):
        file.write_text(f"before\n{begin}of last year\n{end}after\n")
    result = a_result(100, 1000)
    for _ in range(2):
        page.publish(copy.deepcopy(result), tmp_path / "results", tmp_path / "docs")
    for text in (file.read_text() for file in files):
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        assert "of last year" not in text
        assert text.count("abc1234") == 1
    assert "(../../results/cold-start.svg)" in files[1].read_text()


def test_charts_of_an_older_result_do_not_stay(tmp_path):
    page.write(a_result(100, 1000), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == set(CHARTS)
    result = a_result(100, 1000)
    for run in result["runs"]:
        del run["storm"]
    page.write(result, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == set(CHARTS) - {"storm.svg"}


def test_a_page_without_a_place_for_them_is_refused(tmp_path):
    (tmp_path / page.SUMMARY).write_text("nothing here\n")
    with pytest.raises(ValueError, match="no place for the bench's results"):
        page.publish(a_result(100), tmp_path / "results", tmp_path)


def test_a_workload_replaces_one_pod_at_a_time():
    workload = Workload(3, 4)
    before = workload.pod_ips(1)
    everyone = {address for number in range(3) for address in workload.pod_ips(number)}
    assert len(everyone) == workload.pods
    for replaced in range(1, 9):
        after = workload.pod_ips(1, replaced)
        assert len(set(before) ^ set(after)) == 2
        assert not (set(after) - set(before)) & everyone
        before = after


def test_slices_say_what_the_addresses_say():
    workload = Workload(120, 10)
    piece = workload.slice(3, 2)
    assert [it["addresses"] for it in piece["endpoints"]] == [[address] for address in workload.pod_ips(3, 2)]
    local = [it["addresses"][0] for n in range(120) for it in workload.slice(n)["endpoints"] if it["nodeName"] == NODE]
    assert local == [address for _, address in workload.local_pods()]


def test_backends_are_compared_at_each_size_that_both_have():
    result = a_result(100, 1000)
    assert "nftables against it" not in firewalls.markdown(result)
    slower = {**a_run(100), "firewall": "iptables"}
    slower["update"] = {**slower["update"], "p50": 0.01}
    del slower["warm"]
    result["runs"].append(slower)
    table = firewalls.markdown(result)
    assert "nftables and iptables" in table.partition("\n")[0]
    assert "| at 100 Services x 10 | nftables | iptables | medians: nftables against it |" in table
    assert "at 1,000 Services" not in table
    assert "| one endpoint changed, p50 | 2.5 ms | 10 ms | 0.25 x |" in table
    assert "| warm restart" not in table
