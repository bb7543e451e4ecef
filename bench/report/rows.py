"""The rows of the table of all figures: a figure of one run, how to show it, and its name for readers."""

from collections.abc import Sequence
from typing import NamedTuple

from bench.report.spread import MIB, Run, Value


class Row(NamedTuple):
    """A figure of one run: its name, its value, and its unit."""

    name: str
    value: Value
    unit: str


def tools_seconds(run: Run) -> float:
    """Seconds of all batch tools together."""
    return float(sum(run["tools"].values()))


def _of(phase: str, figure: str, factor: float = 1.0) -> Value:
    return lambda run: run[phase][figure] * factor


def _seconds(name: str, phase: str, figure: str) -> Row:
    return Row(name, _of(phase, figure), "s")


def _milliseconds(name: str, phase: str, figure: str) -> Row:
    return Row(name, _of(phase, figure, 1000), "ms")


def _mib(name: str, phase: str, figure: str) -> Row:
    return Row(name, _of(phase, figure, 1 / MIB), "MiB")


def _count(name: str, phase: str, figure: str) -> Row:
    return Row(name, _of(phase, figure), "")


def _percent(name: str, phase: str, figure: str) -> Row:
    return Row(name, _of(phase, figure, 100), "%")


def _start(phase: str) -> Sequence[Row]:
    return (
        _seconds("process to first list", phase, "start_to_list"),
        _seconds("first list to all listed", phase, "list_to_listed"),
        _seconds("listed to planned", phase, "listed_to_published"),
        _seconds("planned to last address", phase, "published_to_ready"),
        _seconds("list to last address", phase, "list_to_ready"),
        _seconds("CPU of the node, process to ready", phase, "cpu"),
        _seconds("CPU by the agent's own count", phase, "agent_cpu"),
        _mib("peak RSS", phase, "rss_peak"),
        _mib("settled RSS", phase, "rss_settled"),
        _milliseconds("longest stall of the loop", phase, "longest_round"),
    )


def _change(phase: str) -> Sequence[Row]:
    return (
        _milliseconds("p99", phase, "p99"),
        _milliseconds("of the p50, from the watcher on", phase, "p50_from_watcher"),
        _milliseconds("CPU", phase, "cpu_per_change"),
    )


def _storm(phase: str) -> Sequence[Row]:
    return (
        _count(f"**{phase}**: changes", phase, "changes"),
        _seconds("made in", phase, "seconds"),
        _seconds("furthest behind", phase, "behind_max"),
        _count("virtual servers that missed a change", phase, "lost"),
        _milliseconds("p50, read to kernel", phase, "p50"),
        _milliseconds("p99, read to kernel", phase, "p99"),
        _percent("CPU", phase, "cpu_share"),
        _milliseconds("longest stall of the loop", phase, "longest_round"),
        _mib("RSS, first half", phase, "rss_first_half"),
        _mib("RSS, second half", phase, "rss_second_half"),
    )


ROWS: Sequence[Row] = (
    _percent("**idle**: CPU of the node, without what it uses without kroute", "idle", "cpu_share"),
    _percent("of that measured", "idle", "looks_share"),
    _percent("of that what resyncs and digests take on average that are due less often", "idle", "resyncs_share"),
    _count("looks in that time, of all controllers", "idle", "looks"),
    _count("resyncs in that time", "idle", "resyncs"),
    _percent("CPU by the agent's own count", "idle", "agent_share"),
    _percent("the first two minutes after a cold start", "settling", "cpu_share"),
    _count("looks in that time", "settling", "looks"),
    _count("resyncs in that time", "settling", "resyncs"),
    _percent("the kernel's own, without kroute: estimation", "kernel", "cpu_share"),
    _milliseconds("longest stall of the loop", "idle", "longest_round"),
    _mib("RSS", "idle", "rss"),
    _seconds("**cold start**: process to last address", "cold", "start_to_ready"),
    *_start("cold"),
    _seconds("first list to first virtual server", "cold", "list_to_first_server"),
    _seconds("IPVS, first to last message", "cold", "ipvs"),
    _seconds("of that in the kernel", "cold", "ipvs_in_kernel"),
    _count("netlink messages", "cold", "messages"),
    _count("netlink bytes", "cold", "bytes"),
    _seconds("**warm restart**: process to last address", "warm", "start_to_ready"),
    *_start("warm"),
    _count("writes to the kernel", "warm", "writes"),
    _milliseconds("**one endpoint changed**: API server to kernel, p50", "update", "p50"),
    *_change("update"),
    Row("netlink messages to IPVS", lambda run: run["update"]["ipvs_messages"] / run["update"]["measured"], ""),
    _milliseconds("**one weight changed**, by annotation: p50", "weights", "p50"),
    *_change("weights"),
    _count("netlink messages to IPVS", "weights", "messages_each"),
    _milliseconds("**a Service added**: p50", "add", "p50"),
    _milliseconds("CPU", "add", "cpu_per_change"),
    _milliseconds("**a Service deleted**: p50", "delete", "p50"),
    _milliseconds("CPU", "delete", "cpu_per_change"),
    *_storm("storm"),
    *_storm("hurricane"),
    _seconds("`ipvsadm -R`", "tools", "ipvsadm"),
    _seconds("`ip -batch`, routes", "tools", "ip_routes"),
    _seconds("`ip -batch`, addresses", "tools", "ip_addresses"),
    _seconds("`ipset restore`", "tools", "ipset"),
    Row("all of them", tools_seconds, "s"),
    _seconds("CPU of all of them", "tools_cpu", "seconds"),
)
