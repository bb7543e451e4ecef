"""All counters of the agent, in one answer on its socket."""

import gc
import time
from pathlib import Path

import msgspec

from kroute.broadcaster import QueueStatistics
from kroute.kernel.netlink.statistics import NetlinkStatistics
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.telemetry.changes import LatencyStatistics, Measurement
from kroute.telemetry.loop_watch import LoopStatistics, Round

QUESTION = "statistics"
NEWEST_QUESTION = "newest-measurements"


class MemoryStatistics(msgspec.Struct):
    """Resident memory of the process in bytes, now and at its peak."""

    resident: int
    peak: int


class WatchStatistics(msgspec.Struct):
    """The counters of one kind's watch.

    `objects` are the known ones. `resource_version` is the newest that was read (empty: none). `denied` are the
    failures that a missing permission caused.
    """

    lists: int
    watches: int
    events: int
    failures: int
    objects: int
    malformed: int
    resource_version: str
    denied: int = 0


class Statistics(msgspec.Struct):
    """Counts since the agent's start.

    `now` is the monotonic clock's time, `unix_time` the wall clock's. `cpu` is seconds of processor time. `collections`
    are the garbage collector's, by generation.
    """

    now: float
    unix_time: float
    cpu: float
    memory: MemoryStatistics
    collections: list[int]
    watches: dict[str, WatchStatistics]
    queues: list[QueueStatistics]
    controllers: dict[str, ControllerStatistics]
    sockets: dict[str, NetlinkStatistics]
    loop: LoopStatistics
    latency: LatencyStatistics


class NewestMeasurements(msgspec.Struct):
    """Measurements that are kept individually: the newest long rounds of the event loop, and the newest latencies."""

    rounds: list[Round]
    latencies: list[Measurement]


def statistics(
    watches: dict[str, WatchStatistics],
    queues: list[QueueStatistics],
    controllers: dict[str, ControllerStatistics],
    sockets: dict[str, NetlinkStatistics],
    loop: LoopStatistics,
    latency: LatencyStatistics,
) -> Statistics:
    """The counters of the parts, with those of the process."""
    return Statistics(
        now=time.monotonic(),
        unix_time=time.time(),
        cpu=time.process_time(),
        memory=memory(),
        collections=[generation["collections"] for generation in gc.get_stats()],
        watches=watches,
        queues=queues,
        controllers=controllers,
        sockets=sockets,
        loop=loop,
        latency=latency,
    )


def memory(status: Path = Path("/proc/self/status")) -> MemoryStatistics:
    """The memory of the process whose status file this is (proc(5))."""
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    resident, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return MemoryStatistics(resident, peak)
