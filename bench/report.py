"""A result for readers: tables in Markdown and charts, and their place in docs/performance.md."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.figures import brief
from bench.plots import line_chart
from bench.session import percentile
from bench.targets import MIB, Run, straight_line, tools_seconds, verdicts

BEGIN = "<!-- written by make bench: begin -->\n"
END = "<!-- written by make bench: end -->\n"

SIZE = "Services, 10 endpoints each"

Result = Mapping[str, Any]
Value = Callable[[Run], str]


def _seconds(phase: str, figure: str) -> Value:
    return lambda run: brief(run[phase][figure], " s")


def _milliseconds(phase: str, figure: str) -> Value:
    return lambda run: brief(run[phase][figure] * 1000, " ms")


def _mib(phase: str, figure: str) -> Value:
    return lambda run: brief(run[phase][figure] / MIB, " MiB")


def _count(phase: str, figure: str) -> Value:
    return lambda run: f"{run[phase][figure]:,}"


def _share(phase: str, figure: str) -> Value:
    return lambda run: f"{run[phase][figure] * 100:.2f} %"


ROWS: Sequence[tuple[str, Value]] = (
    ("`ipvsadm -R`", _seconds("tools", "ipvsadm")),
    ("`ip -batch`, routes", _seconds("tools", "ip_routes")),
    ("`ip -batch`, addresses", _seconds("tools", "ip_addresses")),
    ("`ipset restore`", _seconds("tools", "ipset")),
    ("all of them", lambda run: brief(tools_seconds(run), " s")),
    ("CPU of all of them", _seconds("tools_cpu", "seconds")),
    ("**cold start**: list to last address", _seconds("cold", "list_to_ready")),
    ("process to first list", _seconds("cold", "start_to_list")),
    ("first list to all listed", _seconds("cold", "list_to_listed")),
    ("listed to planned", _seconds("cold", "listed_to_published")),
    ("planned to last address", _seconds("cold", "published_to_ready")),
    ("first list to first virtual server", _seconds("cold", "list_to_first_server")),
    ("IPVS, first to last message", _seconds("cold", "ipvs")),
    ("of that in the kernel", _seconds("cold", "ipvs_in_kernel")),
    ("CPU, process to ready", _seconds("cold", "cpu")),
    ("peak RSS", _mib("cold", "rss_peak")),
    ("settled RSS", _mib("cold", "rss_settled")),
    ("netlink messages", _count("cold", "messages")),
    ("netlink bytes", _count("cold", "bytes")),
    ("longest stall of the loop", _milliseconds("cold", "longest_round")),
    ("**warm restart**: list to ready", _seconds("warm", "list_to_ready")),
    ("process to ready", _seconds("warm", "start_to_ready")),
    ("writes to the kernel", _count("warm", "writes")),
    ("peak RSS", _mib("warm", "rss_peak")),
    ("settled RSS", _mib("warm", "rss_settled")),
    ("longest stall of the loop", _milliseconds("warm", "longest_round")),
    ("**one endpoint changed**: p50", _milliseconds("update", "p50")),
    ("p99", _milliseconds("update", "p99")),
    ("CPU a change", _milliseconds("update", "cpu_per_change")),
    ("**a Service added**: p50", _milliseconds("add", "p50")),
    ("CPU", _milliseconds("add", "cpu_per_change")),
    ("**a Service deleted**: p50", _milliseconds("delete", "p50")),
    ("CPU", _milliseconds("delete", "cpu_per_change")),
    ("**storm**: changes", _count("storm", "changes")),
    ("furthest behind", _seconds("storm", "behind_max")),
    ("virtual servers that missed a change", _count("storm", "lost")),
    ("p50, read to kernel", _milliseconds("storm", "p50")),
    ("p99, read to kernel", _milliseconds("storm", "p99")),
    ("CPU", _share("storm", "cpu_share")),
    ("longest stall of the loop", _milliseconds("storm", "longest_round")),
    ("RSS, first half", _mib("storm", "rss_first_half")),
    ("RSS, second half", _mib("storm", "rss_second_half")),
    ("**resync of everything**", _seconds("resync", "seconds")),
    ("CPU", _seconds("resync", "cpu")),
    ("longest stall of the loop", _milliseconds("resync", "longest_round")),
    ("**idle**: CPU between resyncs", _share("idle", "cpu_share")),
    ("the kernel's own, without kroute: estimation", _share("kernel", "cpu_share")),
)


def markdown(result: Result) -> str:
    """The targets with their verdicts, then all figures by size."""
    runs = _by_size(result)
    size = f"{max(run['services'] for run in runs):,} Services x {runs[0]['endpoints']}"
    lengths = f", a storm of {result['storm']:.0f} s or more, {result['idle']:.0f} s idle."
    lines = [circumstances(result) + lengths, "", f"| target at {size} | limit | measured | |", "|---|---|---|---|"]
    for target, value in (verdict for verdict in verdicts(runs)):
        met = {None: "", True: "met", False: "**missed**"}[None if value is None else value <= target.limit]
        measured = "not measured" if value is None else brief(value, f" {target.unit}")
        lines.append(f"| {target.figure} | {brief(target.limit, f' {target.unit}')} | {measured} | {met} |")
    lines += _growth(runs)
    lines += ["", "| | " + " | ".join(f"{run['services']:,}" for run in runs) + " |", "|---|" + "---:|" * len(runs)]
    for name, value_of in ROWS:
        lines.append(f"| {name} | " + " | ".join(_cell(value_of, run) for run in runs) + " |")
    return "\n".join(lines) + "\n"


def _by_size(result: Result) -> list[Run]:
    return sorted(result["runs"], key=lambda run: run["services"])


def _growth(runs: Sequence[Run]) -> list[str]:
    """The straight lines through the cold starts' time and memory, if there are enough points."""
    if len(runs) < 3:
        return []
    seconds = straight_line([(run["services"], run["cold"]["list_to_ready"]) for run in runs])
    kib = straight_line([(run["services"], run["cold"]["rss_settled"] / 1024) for run in runs])
    return [
        "",
        (
            f"Straight lines through the cold starts: {seconds.start:.2f} s and {seconds.slope * 1000:.2f} ms a Service"
            f" (R² {seconds.r_squared:.4f}); {kib.start / 1024:.1f} MiB settled and {kib.slope:.2f} KiB a Service"
            f" (R² {kib.r_squared:.4f})."
        ),
    ]


def circumstances(result: Result) -> str:
    """When and where the result was measured, and of what."""
    backends = " and ".join(dict.fromkeys(run["firewall"] for run in result["runs"]))
    return (
        f"Measured {result['when']} at `{result['commit']}` with {backends}, Python {result['python']}, lab"
        f" `{result['lab']}` on {result['cores']} of the host's cores; the host's load was {result['load_before']:.1f}"
        f" before and {result['load_after']:.1f} after. {result['changes']} single changes"
    )


def _cell(value_of: Value, run: Run) -> str:
    try:
        return value_of(run)
    except KeyError:
        return "-"


def charts(result: Result) -> dict[str, str]:
    """The charts for which this result has the figures, by file name."""
    runs = _by_size(result)
    drawn = {}
    if len(runs) > 1:
        drawn["memory.svg"] = _memory_chart(runs)
    if len(runs) > 1 and all("tools" in run for run in runs):
        drawn["cold-start.svg"] = _cold_start_chart(runs)
    if all("update" in run for run in runs):
        drawn["one-change.svg"] = _one_change_chart(runs)
    if all("storm" in run for run in runs):
        drawn["storm.svg"] = _storm_chart(runs)
    return drawn


def _cold_start_chart(runs: Sequence[Run]) -> str:
    lines = {
        "kroute": [(run["services"], run["cold"]["list_to_ready"]) for run in runs],
        "its IPVS part": [(run["services"], run["cold"]["ipvs"]) for run in runs],
        "ipvsadm -R": [(run["services"], run["tools"]["ipvsadm"]) for run in runs],
        "all tools": [(run["services"], tools_seconds(run)) for run in runs],
    }
    return line_chart("Cold start beside the batch tools", SIZE, "seconds", lines, logarithmic=True)


def _memory_chart(runs: Sequence[Run]) -> str:
    figures = (("peak", "rss_peak"), ("settled", "rss_settled"))
    lines = {name: [(run["services"], run["cold"][figure] / MIB) for run in runs] for name, figure in figures}
    return line_chart("Resident memory after a cold start", SIZE, "MiB", lines)


def _one_change_chart(runs: Sequence[Run]) -> str:
    lines = {f"{run['services']:,} Services": _distribution(run["update"]["latencies"]) for run in runs}
    title = "One endpoint changed: from reading the event to the changed kernel"
    return line_chart(title, "percent of the changes", "milliseconds", lines)


def _storm_chart(runs: Sequence[Run]) -> str:
    lines = {
        f"{run['services']:,} Services": [(sample["at"], sample["behind"]) for sample in run["storm"]["series"]]
        for run in runs
    }
    title = "Storm of 100 changes a second: age of the oldest change that is not in the kernel"
    return line_chart(title, "seconds", "seconds", lines)


def _distribution(ordered: Sequence[float]) -> list[tuple[float, float]]:
    return [(percent, percentile(ordered, percent) * 1000) for percent in range(1, 101)] if ordered else [(0, 0)]


def write(result: Result, directory: Path) -> None:
    """Write the tables and the charts into the directory of the figures."""
    (directory / "bench.md").write_text(markdown(result))
    for name, chart in charts(result).items():
        (directory / name).write_text(chart)


def publish(result: Result, page: Path, charts_from_page: str) -> None:
    """Put the tables and the charts into the page. Raises ValueError if it has no place for them."""
    images = "\n".join(f"![{name.removesuffix('.svg')}]({charts_from_page}/{name})" for name in charts(result))
    put_between(page, BEGIN, END, f"{markdown(result)}\n{images}\n")


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Put a text into the page, between two marks. Raises ValueError if the marks are missing."""
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"{page} has no place for the bench's results: it needs the lines {begin!r} and {end!r}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
