"""All counters of the agent, in one answer on its socket."""

import gc
import time
from pathlib import Path

import msgspec

from kroute.base.standard_error import dropped_lines
from kroute.kernel.netlink.netlink_socket import NetlinkStatistics
from kroute.reconcile.broadcaster import QueueStatistics
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.telemetry.changes import LatencyStatistics, Measurement
from kroute.telemetry.loop_watch import LoopStatistics, Round
from kroute.watchers.kubernetes.requests import ApiUse, WatchStatistics

QUESTION = "statistics"
NEWEST_QUESTION = "newest-measurements"

DESCRIPTORS = Path("/proc/self/fd")
STARTED = time.time()
"""The Unix time at which this process started, or nearly so."""


class MemoryStatistics(msgspec.Struct):
    """Memory of the process in bytes: resident now, resident at its peak, and mapped."""

    resident: int
    peak: int
    mapped: int


def memory(status: Path = Path("/proc/self/status")) -> MemoryStatistics:
    """The memory of the process whose status file this is (proc(5))."""
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return MemoryStatistics(*(int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM", "VmSize")))


class Statistics(msgspec.Struct, kw_only=True):
    """Counts since the agent's start: those of its parts, and by default those of this process now.

    `now` is the monotonic clock's time, `unix_time` the wall clock's. `cpu` is seconds of processor time. `collections`
    are the garbage collector's, by generation. `dropped_lines` are those of the log.
    """

    now: float = msgspec.field(default_factory=time.monotonic)
    unix_time: float = msgspec.field(default_factory=time.time)
    cpu: float = msgspec.field(default_factory=time.process_time)
    memory: MemoryStatistics = msgspec.field(default_factory=memory)
    collections: list[int] = msgspec.field(default_factory=lambda: [each["collections"] for each in gc.get_stats()])
    open_descriptors: int = msgspec.field(default_factory=lambda: sum(1 for _ in DESCRIPTORS.iterdir()))
    dropped_lines: int = msgspec.field(default_factory=dropped_lines)
    watches: dict[str, WatchStatistics]
    queues: list[QueueStatistics]
    controllers: dict[str, ControllerStatistics]
    sockets: dict[str, NetlinkStatistics]
    loop: LoopStatistics
    latency: LatencyStatistics
    api: ApiUse = msgspec.field(default_factory=ApiUse)


class NewestMeasurements(msgspec.Struct):
    """Measurements that are kept individually: the newest long rounds of the event loop, and the newest latencies."""

    rounds: list[Round]
    latencies: list[Measurement]
