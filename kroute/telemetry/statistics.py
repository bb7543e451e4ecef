"""Everything about the agent that can be counted, in one answer on its socket."""

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
    """What the watch of one kind has done: requests, events and failures, the objects that there are, and the newest
    resourceVersion that has been read (empty: none). `denied` are the failures that want of a permission caused."""

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

    `now` is the time by the monotonic clock, `unix_time` by the other; `cpu` is seconds on a processor. `collections`
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
    """What is kept one by one: the newest long rounds of the event loop, and the newest programming latencies."""

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
    """What the parts count, with what the process itself does."""
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
