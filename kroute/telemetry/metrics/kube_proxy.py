"""The metrics that kube-proxy has under the same names, with the same meaning (pkg/proxy/metrics/metrics.go).

kube-proxy's metrics without a counterpart in kroute are left out. kroute has no full and partial syncs of iptables, and
it has a queue for each controller instead of one (`kroute_queue_depth`).
"""

from collections.abc import Callable

from kroute.controllers.service_proxy.controller import ServiceProxy
from kroute.telemetry.health import HealthEndpoint
from kroute.telemetry.metrics.exposition import Metric, Samples
from kroute.telemetry.metrics.scrape import Scrape

Row = tuple[Metric, Callable[[Scrape], Samples]]


def _probes(scrape: Scrape, probe: HealthEndpoint) -> Samples:
    return [((str(code),), count) for (asked, code), count in scrape.health.answers.items() if asked is probe]


ROWS: tuple[Row, ...] = (
    (
        Metric(
            "kubeproxy_sync_proxy_rules_duration_seconds",
            "histogram",
            "How long the passes of service_proxy took that wrote something or resynced.",
        ),
        lambda it: [((), it.passes[ServiceProxy.name])],
    ),
    (
        Metric(
            "kubeproxy_network_programming_duration_seconds",
            "histogram",
            "From the change of a pod or Service, as its EndpointSlice says, to the kernel of this node.",
        ),
        lambda it: [((), it.changes.network_programming)],
    ),
    (
        Metric(
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
            "gauge",
            "The Unix time when every controller had last done a pass that did not fail.",
        ),
        lambda it: [((), it.health.last_updated())],
    ),
    (
        Metric(
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
            "gauge",
            "The Unix time when the last change came from the API server or from the manifests.",
        ),
        lambda it: [((), it.changes.last_read)],
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
            "Services with externalTrafficPolicy Local and no endpoint on this node.",
            ("traffic_policy",),
        ),
        lambda it: [(("external",), it.plans.without_local_endpoint)],
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
