"""kroute's own metrics of how the agent works: queues, controllers, the event loop, netlink and the API server."""

from collections.abc import Callable

from kroute.checks.running_proxies import Sign
from kroute.histogram import Histogram
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.telemetry import changes, loop_watch
from kroute.telemetry.metrics.exposition import Metric, Samples
from kroute.telemetry.metrics.kube_proxy import Row
from kroute.telemetry.metrics.scrape import Scrape
from kroute.telemetry.statistics import WatchStatistics

_CONTROLLER = ("controller",)
_KIND = ("kind",)
_PROXY = ("proxy",)
_CLIENT = ("client",)


def _of_controllers(field: Callable[[ControllerStatistics], float]) -> Callable[[Scrape], Samples]:
    return lambda scrape: [((name,), field(each)) for name, each in scrape.statistics.controllers.items()]


def _of_proxy(sign: Sign | None) -> Samples:
    return [((sign.proxy,), 1)] if sign is not None else []


def _of_watches(field: Callable[[WatchStatistics], float]) -> Callable[[Scrape], Samples]:
    return lambda scrape: [((kind,), field(each)) for kind, each in scrape.statistics.watches.items()]


def _loop(scrape: Scrape) -> Samples:
    loop = scrape.statistics.loop
    return [((), Histogram.of_counts(loop_watch.BOUNDS, loop.buckets, loop.busy))]


def _latency(scrape: Scrape) -> Samples:
    found = scrape.statistics.latency
    return [((), Histogram.of_counts(changes.LATENCY_BOUNDS, found.buckets, found.total))]


WORK_ROWS: tuple[Row, ...] = (
    (
        Metric("kroute_waiting_for_proxy", "gauge", "1 while kroute waits until this service proxy ends.", _PROXY),
        lambda it: _of_proxy(it.waits_for),
    ),
    (
        Metric("kroute_rival_proxy", "gauge", "1 while this service proxy is at work on kroute's node.", _PROXY),
        lambda it: _of_proxy(it.rival),
    ),
    (
        Metric("kroute_queue_depth", "gauge", "Plans that wait for a controller.", _CONTROLLER),
        lambda it: [((queue.subscriber,), queue.depth) for queue in it.statistics.queues],
    ),
    (
        Metric("kroute_queue_lag_seconds", "gauge", "For how long the oldest of them has waited.", _CONTROLLER),
        lambda it: [((queue.subscriber,), queue.lag) for queue in it.statistics.queues],
    ),
    (
        Metric(
            "kroute_pass_duration_seconds",
            "histogram",
            "How long the passes of a controller took that wrote something or resynced.",
            _CONTROLLER,
        ),
        lambda it: [((name,), durations) for name, durations in it.passes.items()],
    ),
    (
        Metric("kroute_writes_total", "counter", "Changes that the kernel has accepted.", _CONTROLLER),
        _of_controllers(lambda it: it.writes),
    ),
    (
        Metric(
            "kroute_repairs_total", "counter", "What another program had changed and kroute has repaired.", _CONTROLLER
        ),
        _of_controllers(lambda it: it.repairs),
    ),
    (
        Metric("kroute_failures_total", "counter", "Changes that were refused, and passes that failed.", _CONTROLLER),
        _of_controllers(lambda it: it.failures),
    ),
    (
        Metric("kroute_denials_total", "counter", "Passes that failed because a privilege is missing.", _CONTROLLER),
        _of_controllers(lambda it: it.denied),
    ),
    (
        Metric("kroute_retries_waiting", "gauge", "Objects that were refused and will be tried again.", _CONTROLLER),
        _of_controllers(lambda it: it.waiting),
    ),
    (
        Metric("kroute_failing_seconds", "gauge", "For how long every pass has failed; 0 when it works.", _CONTROLLER),
        _of_controllers(lambda it: it.failing_for),
    ),
    (
        Metric("kroute_last_audit_timestamp_seconds", "gauge", "The Unix time of the last resync.", _CONTROLLER),
        _of_controllers(lambda it: it.last_resync),
    ),
    (
        Metric(
            "kroute_last_look_timestamp_seconds",
            "gauge",
            "The Unix time of the last look or resync.",
            _CONTROLLER,
        ),
        _of_controllers(lambda it: it.last_look),
    ),
    (
        Metric("kroute_resyncs_total", "counter", "Comparisons of all of the kernel's state.", _CONTROLLER),
        _of_controllers(lambda it: it.resyncs),
    ),
    (
        Metric("kroute_looks_total", "counter", "Looks that found no reason for a resync.", _CONTROLLER),
        _of_controllers(lambda it: it.looks),
    ),
    (
        Metric(
            "kroute_programming_duration_seconds",
            "histogram",
            "From reading a change to its Service's being as it should be in the kernel.",
        ),
        _latency,
    ),
    (
        Metric("kroute_programming_waiting", "gauge", "Services whose changes are on their way to the kernel."),
        lambda it: [((), it.statistics.latency.waiting)],
    ),
    (
        Metric("kroute_programming_oldest_seconds", "gauge", "For how long the first of them has been on its way."),
        lambda it: [((), it.statistics.latency.oldest)],
    ),
    (
        Metric(
            "kroute_loop_round_duration_seconds",
            "histogram",
            "Rounds of the event loop: while one lasts, nothing else happens.",
        ),
        _loop,
    ),
    (
        Metric("kroute_loop_longest_round_seconds", "gauge", "The longest round so far; 0 below ten milliseconds."),
        lambda it: [((), it.statistics.loop.longest)],
    ),
    (
        Metric("kroute_loop_longest_round_cpu_seconds", "gauge", "The most processor time that one of them took."),
        lambda it: [((), it.statistics.loop.longest_cpu)],
    ),
    (
        Metric("kroute_log_lines_dropped_total", "counter", "Log lines that were dropped because nobody read them."),
        lambda it: [((), it.process.dropped_lines)],
    ),
    (
        Metric("kroute_netlink_messages_total", "counter", "Messages sent to the kernel.", _CLIENT),
        lambda it: [((name,), each.messages) for name, each in it.statistics.sockets.items()],
    ),
    (
        Metric("kroute_netlink_bytes_total", "counter", "Bytes sent to the kernel.", _CLIENT),
        lambda it: [((name,), each.bytes) for name, each in it.statistics.sockets.items()],
    ),
    (
        Metric("kroute_netlink_sends_total", "counter", "System calls that sent them.", _CLIENT),
        lambda it: [((name,), each.sends) for name, each in it.statistics.sockets.items()],
    ),
)

API_ROWS: tuple[Row, ...] = (
    (
        Metric("kroute_reflector_objects", "gauge", "Objects that are known from the API server.", _KIND),
        _of_watches(lambda it: it.objects),
    ),
    (
        Metric("kroute_reflector_lists_total", "counter", "Requests that listed objects.", _KIND),
        _of_watches(lambda it: it.lists),
    ),
    (
        Metric("kroute_reflector_watches_total", "counter", "Watches that were begun.", _KIND),
        _of_watches(lambda it: it.watches),
    ),
    (
        Metric("kroute_reflector_events_total", "counter", "Events that watches brought.", _KIND),
        _of_watches(lambda it: it.events),
    ),
    (
        Metric("kroute_reflector_failures_total", "counter", "Lists and watches that failed.", _KIND),
        _of_watches(lambda it: it.failures),
    ),
    (
        Metric("kroute_reflector_denials_total", "counter", "Failures because a permission is missing.", _KIND),
        _of_watches(lambda it: it.denied),
    ),
    (
        Metric("kroute_reflector_malformed_total", "counter", "Objects that could not be read.", _KIND),
        _of_watches(lambda it: it.malformed),
    ),
    (
        Metric("kroute_api_failovers_total", "counter", "Times that another API server of --master was used instead."),
        lambda it: [((), it.statistics.api_failovers)],
    ),
)

ROWS = (*WORK_ROWS, *API_ROWS)
