"""The bench's report: which targets a result meets, and where it is published."""

import copy
from xml.etree import ElementTree as ET

import pytest

from bench import firewalls, report
from bench.plots import line_chart
from bench.targets import MIB, TARGETS, straight_line, verdicts
from bench.workload import NODE, Workload


def a_run(services: int) -> dict:
    """Return a run that meets every target."""
    return {
        "services": services,
        "firewall": "nftables",
        "endpoints": 10,
        "tools": {
            "ipvsadm": services / 100,
            "ip_routes": services / 1000,
            "ip_addresses": services / 1000,
            "ipset": services / 1000,
        },
        "cold": {
            "list_to_ready": services / 200,
            "start_to_list": 1.0,
            "ipvs": services / 1000,
            "longest_round": 0.05,
            "messages": 13 * services,
            "bytes": 1300 * services,
            "rss_settled": (40 + services / 200) * MIB,
            "rss_peak": (45 + services / 200) * MIB,
        },
        "update": {"p50": 0.01, "p99": 0.02, "cpu_per_change": 0.004, "latencies": [0.01, 0.011, 0.02]},
        "warm": {"list_to_ready": services / 1000, "writes": 0, "rss_peak": 50 * MIB, "rss_settled": 50 * MIB},
        "storm": {
            "behind_max": 0.3,
            "lost": 0,
            "rss_first_half": 60 * MIB,
            "rss_second_half": 60 * MIB,
            "series": [{"at": 0.5, "behind": 0.1}, {"at": 1.5, "behind": 0.3}],
        },
        "resync": {"seconds": services / 2000, "longest_round": 0.1},
        "idle": {"cpu_share": 0.001},
    }


def a_result(*sizes: int) -> dict:
    return {
        "when": "2026-01-01 00:00 UTC",
        "commit": "abc1234",
        "lab": "vm",
        "python": "3.11.0",
        "cores": 2,
        "load_before": 0.1,
        "load_after": 1.2,
        "changes": 200,
        "storm": 60.0,
        "idle": 60.0,
        "runs": [a_run(size) for size in sizes],
    }


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
        ("storm", "behind_max", 1.01, "storm: furthest behind"),
        ("storm", "lost", 1, "storm: virtual servers that missed a change"),
        ("resync", "longest_round", 0.21, "resync: longest stall of the event loop, in emulation"),
        ("cold", "rss_settled", 151 * MIB, "settled RSS"),
        ("idle", "cpu_share", 0.0031, "idle, between resyncs"),
    ],
)
def test_what_is_over_its_limit_is_missed(phase, figure, value, missed):
    result = a_result(100, 1000, 10000)
    result["runs"][-1][phase][figure] = value
    assert verdict_of(result, missed) is False
    assert "**missed**" in report.markdown(result)


def test_the_largest_size_is_what_counts():
    result = a_result(100, 1000, 10000)
    result["runs"][0]["update"]["p99"] = 5.0
    assert verdict_of(result, "one endpoint changed, p99") is True


def test_what_was_not_measured_is_neither_met_nor_missed():
    result = a_result(1000)
    del result["runs"][0]["storm"]
    assert verdict_of(result, "storm: furthest behind") is None
    assert verdict_of(result, "the same, against 100 Services") is None
    table = report.markdown(result)
    assert table.count("not measured") == len([it for it in verdicts(result["runs"]) if it.value is None]) > 0


def test_every_target_has_a_line():
    targets, _, _figures = report.markdown(a_result(100, 1000, 10000)).partition("\n| | ")
    lines = targets.splitlines()
    for target in TARGETS:
        assert sum(line.startswith(f"| {target.figure} |") for line in lines) == 1


def test_growth_is_shown_as_a_straight_line():
    line = straight_line([(100, 1.5), (1000, 6.0), (10000, 51.0)])
    assert line == pytest.approx((1.0, 0.005, 1.0))
    assert straight_line([(1, 1), (2, 4), (3, 9)]).r_squared < 0.99
    assert "0.00 s and 5.00 ms a Service (R² 1.0000)" in report.markdown(a_result(100, 1000, 10000))
    assert "a Service (R²" not in report.markdown(a_result(100, 1000))


def test_the_charts_are_well_formed():
    drawn = report.charts(a_result(100, 1000, 10000))
    assert set(drawn) == {"cold-start.svg", "memory.svg", "one-change.svg", "storm.svg"}
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
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}of last year\n{report.END}after\n")
    result = a_result(100, 1000)
    for _ in range(2):
        report.publish(copy.deepcopy(result), page, "../bench/results")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "of last year" not in text
    assert text.count("abc1234") == 1
    assert "(../bench/results/cold-start.svg)" in text


def test_a_page_without_a_place_for_them_is_refused(tmp_path):
    page = tmp_path / "performance.md"
    page.write_text("nothing here\n")
    with pytest.raises(ValueError, match="no place for the bench's results"):
        report.publish(a_result(100), page, "results")


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
    slower["update"] = {**slower["update"], "p50": 0.04}
    del slower["resync"]
    result["runs"].append(slower)
    table = firewalls.markdown(result)
    assert "nftables and iptables" in table.partition("\n")[0]
    assert "| at 100 Services x 10 | nftables | iptables | nftables against it |" in table
    assert "at 1,000 Services" not in table
    assert "| one endpoint changed, p50 | 10 ms | 40 ms | 0.25 x |" in table
    assert "| resync of everything |" not in table
