"""kroute's own metrics of what is served: Services, their problems, and the kernel's state of them."""

import platform
from collections.abc import Callable

from kroute import __version__
from kroute.firewall.sets import SetFill
from kroute.inspect.figures import Figures
from kroute.telemetry.health import HealthEndpoint
from kroute.telemetry.metrics.exposition import Metric, Samples
from kroute.telemetry.metrics.kube_proxy import Row
from kroute.telemetry.metrics.scrape import Scrape

_SERVICE = ("namespace", "service")
_SET = ("set",)


def _of_all(**parts: Callable[[Figures], int]) -> Callable[[Scrape], Samples]:
    """A series for each part, which has the label's value as its name."""
    return lambda scrape: (
        [((state,), field(scrape.kernel.total)) for state, field in parts.items()] if scrape.kernel else []
    )


def _of_services(*parts: tuple[tuple[str, ...], Callable[[Figures], int]]) -> Callable[[Scrape], Samples]:
    """A series of each Service for each part. A part has the label values after those of the Service, and the value."""
    return lambda scrape: (
        ((key.namespace, key.name, *labels), field(figures))
        for key, figures in (scrape.kernel.services if scrape.kernel else ())
        for labels, field in parts
    )


def _service_problems(scrape: Scrape) -> Samples:
    for key, reasons in scrape.plans.troubled.items():
        for reason, count in reasons.items():
            yield (key.namespace, key.name, reason), count


def _of_sets(field: Callable[[SetFill], int]) -> Callable[[Scrape], Samples]:
    return lambda scrape: [((fill.set,), field(fill)) for fill in scrape.sets]


STATE_ROWS: tuple[Row, ...] = (
    (
        Metric("kroute_build_info", "gauge", "1, with what runs here.", ("version", "python", "kernel")),
        lambda _: [((__version__, platform.python_version(), platform.release()), 1)],
    ),
    (
        Metric("kroute_healthy", "gauge", "Whether a probe is answered with 200 now.", ("probe",)),
        lambda it: [((probe.value.lstrip("/"),), it.health.look(probe).healthy) for probe in HealthEndpoint],
    ),
    (
        Metric("kroute_probe_answers_total", "counter", "Answers to probes by HTTP status.", ("probe", "code")),
        lambda it: [((probe.value.lstrip("/"), str(code)), n) for (probe, code), n in it.health.answers.items()],
    ),
    (
        Metric("kroute_services", "gauge", "Services that are planned for this node."),
        lambda it: [((), it.plans.services)],
    ),
    (
        Metric("kroute_problems", "gauge", "What is not as the Services' owners asked, by reason.", ("reason",)),
        lambda it: [((reason,), count) for reason, count in it.plans.problems.items()],
    ),
    (
        Metric(
            "kroute_service_problems",
            "gauge",
            "The same by Service, for at most --metrics-services of them.",
            (*_SERVICE, "reason"),
        ),
        _service_problems,
    ),
    (
        Metric("kroute_changes_total", "counter", "Objects that were seen new, changed or gone, by kind.", ("kind",)),
        lambda it: [((kind,), n) for kind, n in it.changes.counts.items()],
    ),
    (
        Metric("kroute_ejections_total", "counter", "Real servers that were ejected because they did not answer."),
        lambda it: [((), it.ejections)],
    ),
    (
        Metric(
            "kroute_ejections_refuted_total",
            "counter",
            "Real servers that did not answer clients, but accepted a connection of the node's own.",
        ),
        lambda it: [((), it.refuted_ejections)],
    ),
    (
        Metric("kroute_firewall_info", "gauge", "1, with the firewall's backend.", ("backend",)),
        lambda it: [((it.firewall,), 1)],
    ),
    (
        Metric("kroute_set_entries", "gauge", "Entries of a set that the firewall's rules look up.", _SET),
        _of_sets(lambda it: it.entries),
    ),
    (
        Metric("kroute_set_capacity", "gauge", "How many entries the set can hold as it is; a full one grows.", _SET),
        _of_sets(lambda it: it.capacity),
    ),
    (
        Metric("kroute_set_capacity_limit", "gauge", "How many entries the set can hold once it has grown.", _SET),
        _of_sets(lambda it: it.limit),
    ),
)

KERNEL_ROWS: tuple[Row, ...] = (
    (
        Metric(
            "kroute_virtual_servers",
            "gauge",
            "Planned virtual servers: serving, refusing (without endpoint), or missing in the kernel.",
            ("state",),
        ),
        _of_all(
            serving=lambda it: it.virtual_servers - it.refusing - it.missing,
            refusing=lambda it: it.refusing,
            missing=lambda it: it.missing,
        ),
    ),
    (
        Metric(
            "kroute_real_servers",
            "gauge",
            "Real servers: serving, ejected (they did not answer), draining (weight 0), or missing in the kernel.",
            ("state",),
        ),
        _of_all(
            serving=lambda it: it.serving,
            ejected=lambda it: it.ejected,
            draining=lambda it: it.draining,
            missing=lambda it: it.missing_real_servers,
        ),
    ),
    (
        Metric("kroute_connections", "gauge", "Connections that IPVS has now, active or inactive.", ("state",)),
        _of_all(active=lambda it: it.active, inactive=lambda it: it.inactive),
    ),
    (
        Metric(
            "kroute_service_connections",
            "gauge",
            "The same by Service, for the --metrics-services Services with most connections so far.",
            (*_SERVICE, "state"),
        ),
        _of_services((("active",), lambda it: it.active), (("inactive",), lambda it: it.inactive)),
    ),
    (
        Metric(
            "kroute_service_connections_total",
            "counter",
            "Connections that were scheduled, by Service.",
            _SERVICE,
        ),
        _of_services(((), lambda it: it.traffic.connections)),
    ),
    (
        Metric(
            "kroute_service_packets_total",
            "counter",
            "Packets from clients (in) and to them (out), by Service.",
            (*_SERVICE, "direction"),
        ),
        _of_services((("in",), lambda it: it.traffic.packets_in), (("out",), lambda it: it.traffic.packets_out)),
    ),
    (
        Metric(
            "kroute_service_bytes_total",
            "counter",
            "Bytes from clients (in) and to them (out), by Service.",
            (*_SERVICE, "direction"),
        ),
        _of_services((("in",), lambda it: it.traffic.bytes_in), (("out",), lambda it: it.traffic.bytes_out)),
    ),
    (
        Metric(
            "kroute_services_without_series",
            "gauge",
            "Services beyond --metrics-services, which are only in the sums.",
        ),
        lambda it: [((), it.kernel.omitted)] if it.kernel else [],
    ),
    (
        Metric("kroute_kernel_readable", "gauge", "Whether the kernel's IPVS table could be read for this scrape."),
        lambda it: [((), it.kernel is not None)],
    ),
)

ROWS = (*STATE_ROWS, *KERNEL_ROWS)
