"""The metrics that kube-proxy has under the same names, with the same meaning (pkg/proxy/metrics/metrics.go).

kube-proxy has one proxy for each family. In kroute one pass serves both, so the series of both families have the same
values where the label `ip_family` does not say which objects are counted. docs/metrics.md says what becomes of every
metric of kube-proxy's.
"""

from collections.abc import Callable

from kroute.controllers.service_proxy.controller import ServiceProxy
from kroute.histogram import Histogram
from kroute.model.objects import EndpointSlice, Service
from kroute.telemetry.changes import FAMILIES
from kroute.telemetry.health import HealthEndpoint
from kroute.telemetry.metrics.exposition import Metric, Samples, Value
from kroute.telemetry.metrics.scrape import Scrape
from kroute.watchers.kubernetes.requests import LATENCY_BOUNDS

Row = tuple[Metric, Callable[[Scrape], Samples]]


_FAMILY = ("ip_family",)


def _of_each_family(value: Value) -> Samples:
    return [((family,), value) for family in FAMILIES]


def _probes(scrape: Scrape, probe: HealthEndpoint) -> Samples:
    return [((str(code),), count) for (asked, code), count in scrape.health.answers.items() if asked is probe]


ROWS: tuple[Row, ...] = (
    (
        Metric(
            "kubeproxy_sync_proxy_rules_duration_seconds",
            "histogram",
            "How long the passes of service_proxy took that wrote something or resynced.",
            _FAMILY,
        ),
        lambda it: _of_each_family(it.passes[ServiceProxy.name]),
    ),
    (
        Metric(
            "kubeproxy_network_programming_duration_seconds",
            "histogram",
            "From the change of a pod or Service, as its EndpointSlice says, to the kernel of this node.",
            _FAMILY,
        ),
        lambda it: [((family,), durations) for family, durations in it.changes.network_programming.items()],
    ),
    (
        Metric(
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
            "gauge",
            "The Unix time when every controller had last done a pass that did not fail.",
            _FAMILY,
        ),
        lambda it: _of_each_family(it.health.last_updated()),
    ),
    (
        Metric(
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
            "gauge",
            "The Unix time when the last change came from the API server or from the manifests.",
            _FAMILY,
        ),
        lambda it: _of_each_family(it.changes.last_read),
    ),
    (
        Metric(
            "kubeproxy_sync_proxy_rules_service_changes_pending",
            "gauge",
            "Services whose own changes were read and are not in the kernel yet.",
        ),
        lambda it: [((), it.changes.pending(Service))],
    ),
    (
        Metric(
            "kubeproxy_sync_proxy_rules_service_changes_total",
            "counter",
            "Services that were seen new, changed or gone.",
        ),
        lambda it: [((), it.changes.counts["Service"])],
    ),
    (
        Metric(
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
            "gauge",
            "Services whose endpoints' changes were read and are not in the kernel yet.",
        ),
        lambda it: [((), it.changes.pending(EndpointSlice))],
    ),
    (
        Metric(
            "kubeproxy_sync_proxy_rules_endpoint_changes_total",
            "counter",
            "EndpointSlices that were seen new, changed or gone.",
        ),
        lambda it: [((), it.changes.counts["EndpointSlice"])],
    ),
    (
        Metric(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "gauge",
            "Services with a traffic policy Local that have endpoints, but none on this node.",
            ("traffic_policy", "ip_family"),
        ),
        lambda it: it.plans.without_local_endpoint.items(),
    ),
    (
        Metric("kubeproxy_proxy_healthz_total", "counter", "Answers to /healthz by their HTTP status.", ("code",)),
        lambda it: _probes(it, HealthEndpoint.HEALTHZ),
    ),
    (
        Metric("kubeproxy_proxy_livez_total", "counter", "Answers to /livez by their HTTP status.", ("code",)),
        lambda it: _probes(it, HealthEndpoint.LIVEZ),
    ),
    (
        Metric(
            "rest_client_requests_total",
            "counter",
            "Requests to the API server by HTTP status; <error> if no answer arrived.",
            ("code", "method", "host"),
        ),
        lambda it: [
            ((code, each.method, each.host), count)
            for each in it.statistics.requests
            for code, count in each.codes.items()
        ],
    ),
    (
        Metric(
            "rest_client_request_duration_seconds",
            "histogram",
            "From a request to the API server to the head of its answer.",
            ("verb", "host"),
        ),
        lambda it: [
            ((each.method, each.host), Histogram.of_counts(LATENCY_BOUNDS, each.buckets, each.seconds))
            for each in it.statistics.requests
        ],
    ),
    (
        Metric("process_cpu_seconds_total", "counter", "Processor time of this process, in seconds."),
        lambda it: [((), it.statistics.cpu)],
    ),
    (
        Metric("process_resident_memory_bytes", "gauge", "Memory of this process that is resident, in bytes."),
        lambda it: [((), it.statistics.memory.resident)],
    ),
    (
        Metric("process_virtual_memory_bytes", "gauge", "Memory that this process has mapped, in bytes."),
        lambda it: [((), it.process.virtual_bytes)],
    ),
    (
        Metric("process_open_fds", "gauge", "File descriptors that this process has open."),
        lambda it: [((), it.process.open_descriptors)],
    ),
    (
        Metric("process_start_time_seconds", "gauge", "The Unix time when this process started."),
        lambda it: [((), it.process.started)],
    ),
)
