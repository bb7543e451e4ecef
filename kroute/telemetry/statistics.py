"""All counters of the agent, in one answer on its socket."""

import gc
import os
import time
from pathlib import Path

import msgspec

from kroute.base.standard_error import dropped_lines
from kroute.kernel.netlink.netlink_socket import NetlinkStatistics
from kroute.reconcile.broadcaster import QueueStatistics
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.telemetry.changes import LatencyStatistics, Measurement
from kroute.telemetry.loop_watch import LoopStatistics, Round
from kroute.watchers.kubernetes.requests import RequestSeries, WatchStatistics

QUESTION = "statistics"
NEWEST_QUESTION = "newest-measurements"

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STARTED = time.time()


class MemoryStatistics(msgspec.Struct):
    """Resident memory of the process in bytes, now and at its peak."""

    resident: int
    peak: int


def memory(status: Path = Path("/proc/self/status")) -> MemoryStatistics:
    """The memory of the process whose status file this is (proc(5))."""
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    resident, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return MemoryStatistics(resident, peak)


class Statistics(msgspec.Struct, kw_only=True):
    """Counts since the agent's start: those of its parts, and by default those of this process now.

    `now` is the monotonic clock's time, `unix_time` the wall clock's. `cpu` is seconds of processor time. `collections`
    are the garbage collector's, by generation. `api_server` is the URL of the API server in use; `api_failovers` counts
    how often it has changed.
    """

    now: float = msgspec.field(default_factory=time.monotonic)
    unix_time: float = msgspec.field(default_factory=time.time)
    cpu: float = msgspec.field(default_factory=time.process_time)
    memory: MemoryStatistics = msgspec.field(default_factory=memory)
    collections: list[int] = msgspec.field(default_factory=lambda: [each["collections"] for each in gc.get_stats()])
    watches: dict[str, WatchStatistics]
    queues: list[QueueStatistics]
    controllers: dict[str, ControllerStatistics]
    sockets: dict[str, NetlinkStatistics]
    loop: LoopStatistics
    latency: LatencyStatistics
    requests: list[RequestSeries] = []
    api_server: str = ""
    api_failovers: int = 0


class NewestMeasurements(msgspec.Struct):
    """Measurements that are kept individually: the newest long rounds of the event loop, and the newest latencies."""

    rounds: list[Round]
    latencies: list[Measurement]


class ProcessFigures(msgspec.Struct):
    """Bytes of mapped memory, open file descriptors, the Unix time of the start, and dropped log lines."""

    virtual_bytes: int
    open_descriptors: int
    started: float
    dropped_lines: int


def process_figures() -> ProcessFigures:
    """This process's figures that are not in its statistics (proc(5)), as in Prometheus' client libraries."""
    mapped_pages = int(Path("/proc/self/statm").read_text().split()[0])
    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return ProcessFigures(mapped_pages * _PAGE, descriptors, _STARTED, dropped_lines())
