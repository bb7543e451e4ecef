"""The metrics that kube-proxy has under the same names, with the same meaning (pkg/proxy/metrics/metrics.go).

kube-proxy has one proxy for each family. In kroute one pass serves both, so the series of both families have the same
values where the label `ip_family` does not say which objects are counted. docs/metrics.md says what becomes of every
metric of kube-proxy's.
"""

from collections.abc import Callable

from kroute.controllers.service_proxy.controller import ServiceProxy
from kroute.model.objects import EndpointSlice, Service
from kroute.telemetry.changes import FAMILIES
from kroute.telemetry.health import HealthEndpoint
from kroute.telemetry.metrics.exposition import Samples, Value
from kroute.telemetry.metrics.scrape import Row, Scrape, Series, by, counter, gauge, histogram, one
from kroute.telemetry.statistics import STARTED


def _of_each_family(value: Callable[[Scrape], Value]) -> Series:
    return by("ip_family", lambda now: ((family, value(now)) for family in FAMILIES))


def _answers(probe: HealthEndpoint) -> Series:
    return by(
        "code",
        lambda now: ((str(code), count) for (asked, code), count in now.health.answers.items() if asked is probe),
    )


def _requests(now: Scrape) -> Samples:
    for series in now.statistics.api.requests:
        for code, count in series.codes.items():
            yield (code, series.method, series.host), count


def _request_durations(now: Scrape) -> Samples:
    for series in now.statistics.api.requests:
        yield (series.method, series.host), series.seconds


# fmt: off
ROWS: tuple[Row, ...] = (
    histogram("kubeproxy_sync_proxy_rules_duration_seconds",
              "How long the passes of service_proxy took that wrote something or resynced.",
              _of_each_family(lambda now: now.parts.controllers.passes()[ServiceProxy.name])),
    histogram("kubeproxy_network_programming_duration_seconds",
              "From the change of a pod or Service, as its EndpointSlice says, to the kernel of this node.",
              by("ip_family", lambda now: now.parts.changes.programming.durations.items())),
    gauge("kubeproxy_sync_proxy_rules_last_timestamp_seconds",
          "The Unix time when every controller had last done a pass that did not fail.",
          _of_each_family(lambda now: now.health.last_updated())),
    gauge("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
          "The Unix time when the last change came from the API server or from the manifests.",
          _of_each_family(lambda now: now.parts.changes.last_read)),
    gauge("kubeproxy_sync_proxy_rules_service_changes_pending",
          "Services whose own changes were read and are not in the kernel yet.",
          one(lambda now: now.parts.changes.pending(Service))),
    counter("kubeproxy_sync_proxy_rules_service_changes_total", "Services that were seen new, changed or gone.",
            one(lambda now: now.parts.changes.counts["Service"])),
    gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending",
          "Services whose endpoints' changes were read and are not in the kernel yet.",
          one(lambda now: now.parts.changes.pending(EndpointSlice))),
    counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", "EndpointSlices that were seen new, changed or gone.",
            one(lambda now: now.parts.changes.counts["EndpointSlice"])),
    gauge("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
          "Services with a traffic policy Local that have endpoints, but none on this node.",
          Series(("traffic_policy", "ip_family"), lambda now: now.plans.without_local_endpoint.items())),
    counter("kubeproxy_proxy_healthz_total", "Answers to /healthz by their HTTP status.",
            _answers(HealthEndpoint.HEALTHZ)),
    counter("kubeproxy_proxy_livez_total", "Answers to /livez by their HTTP status.", _answers(HealthEndpoint.LIVEZ)),
    counter("rest_client_requests_total", "Requests to the API server by HTTP status; <error> if no answer arrived.",
            Series(("code", "method", "host"), _requests)),
    histogram("rest_client_request_duration_seconds", "From a request to the API server to the head of its answer.",
              Series(("verb", "host"), _request_durations)),
    counter("process_cpu_seconds_total", "Processor time of this process, in seconds.",
            one(lambda now: now.statistics.cpu)),
    gauge("process_resident_memory_bytes", "Memory of this process that is resident, in bytes.",
          one(lambda now: now.statistics.memory.resident)),
    gauge("process_virtual_memory_bytes", "Memory that this process has mapped, in bytes.",
          one(lambda now: now.statistics.memory.mapped)),
    gauge("process_open_fds", "File descriptors that this process has open.",
          one(lambda now: now.statistics.open_descriptors)),
    gauge("process_start_time_seconds", "The Unix time when this process started.",
          one(lambda _now: STARTED)),
)
# fmt: on
