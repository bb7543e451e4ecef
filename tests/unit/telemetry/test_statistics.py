"""The agent's statistics of its own process, and the bench's of any process."""

import os
import subprocess
import sys

import msgspec

from bench.place.host import cpu_seconds
from kroute.base.histogram import Histogram
from kroute.kernel.netlink.netlink_socket import NetlinkStatistics
from kroute.reconcile.broadcaster import QueueStatistics
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.telemetry.changes import ChangeObserver
from kroute.telemetry.loop_watch import LoopWatch
from kroute.telemetry.statistics import Statistics, memory
from kroute.watchers.kubernetes.requests import ApiUse, RequestSeries, WatchStatistics

MIB = 1 << 20


def test_memory_is_read_in_bytes_now_and_at_its_peak(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tkroute\nVmHWM:\t   81920 kB\nVmRSS:\t   71680 kB\nVmSize:\t   92160 kB\nThreads:\t1\n")
    assert memory(status).resident == 70 * MIB
    assert memory(status).peak == 80 * MIB
    assert memory(status).mapped == 90 * MIB


def test_the_memory_of_this_process_is_known():
    assert 5 * MIB < memory().resident <= memory().peak <= memory().mapped


def test_what_the_parts_count_survives_the_way_over_the_socket():
    counted = Statistics(
        watches={"Service": WatchStatistics(1, 2, 3, 0, 10, 0, "77")},
        queues=[QueueStatistics("route_fix", 3, 0.25)],
        controllers={"service_proxy": ControllerStatistics(writes=5)},
        sockets={"ipvs": NetlinkStatistics(messages=7, seconds=0.5)},
        loop=LoopWatch().statistics,
        latency=ChangeObserver("node").statistics(),
        api=ApiUse(
            "https://10.0.0.1", 1, [RequestSeries("10.0.0.1:443", "GET", {"200": 3}, Histogram((1.0,), [1, 2], 0.5))]
        ),
    )
    assert msgspec.json.decode(msgspec.json.encode(counted), type=Statistics) == counted
    assert counted.cpu > 0
    assert len(counted.collections) == 3


def test_processor_time_includes_the_processes_below():
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    before = cpu_seconds(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_seconds(child.pid) >= 0.19
        assert cpu_seconds(os.getpid()) - before >= 0.19
        child.communicate(b"\n")
    assert cpu_seconds(os.getpid()) - before >= 0.19, "it has ended, and still counts"
