"""kroute's own metrics of what is served: Services, their problems, and the kernel's state of them."""

import platform
from collections.abc import Callable, Iterable

from kroute import __version__
from kroute.inspect.figures import Figures
from kroute.inspect.pod_routes import networks_by_state
from kroute.inspect.policies import PolicyFigures
from kroute.inspect.status import AddressFill, AllocatorView
from kroute.model.speaker import BFD_UP, ESTABLISHED
from kroute.telemetry.health import HealthEndpoint
from kroute.telemetry.metrics.exposition import Samples, Value
from kroute.telemetry.metrics.scrape import Row, Scrape, Series, by, counter, fields_of, gauge, histogram, one

_SERVICE = ("namespace", "service")


def _of_all(**parts: Callable[[Figures], int]) -> Series:
    """A sum over all Services for each part, which has the value of the label `state` as its name."""
    return by("state", lambda now: ((state, sum_of(now.kernel.total)) for state, sum_of in parts.items() if now.kernel))


def _of_services(label: str, **parts: Callable[[Figures], int]) -> Series:
    """A series of each Service for each part, which has the label's value as its name."""
    return Series(
        (*_SERVICE, label),
        lambda now: (
            ((key.namespace, key.name, word), field(figures))
            for key, figures in (now.kernel.services if now.kernel else ())
            for word, field in parts.items()
        ),
    )


def _connections(now: Scrape) -> Samples:
    for key, figures in now.kernel.services if now.kernel else ():
        yield (key.namespace, key.name), figures.traffic.connections


def _by_set(field: str) -> Series:
    return by("set", lambda now: fields_of(field, {fill.set: fill for fill in now.sets}))


def _problems(now: Scrape) -> Samples:
    for key, reasons in now.plans.troubled.items():
        for reason, count in reasons.items():
            yield (key.namespace, key.name, reason), count


def _of_policies(value: Callable[[PolicyFigures], Value]) -> Series:
    return Series((), lambda now: [((), value(now.policies))] if now.policies else [])


def _announced(now: Scrape) -> Samples:
    announcing = now.parts.controllers.optional.announcing
    return [((), len(announcing.announced))] if announcing is not None else []


def _pod_networks(now: Scrape) -> Iterable[tuple[str, Value]]:
    controller = now.parts.controllers.optional.pod_routes
    return networks_by_state(controller).items() if controller is not None else ()


def _allocator(value: Callable[[AllocatorView], Value]) -> Series:
    return Series((), lambda now: [((), value(now.parts.allocator()))] if now.parts.allocator is not None else [])


def _addresses(value: Callable[[AddressFill], int]) -> Series:
    """Of each family, on the agent that gives out addresses."""

    def of_families(now: Scrape) -> Iterable[tuple[str, Value]]:
        found = now.parts.allocator().addresses if now.parts.allocator is not None else {}
        return ((family, value(fill)) for family, fill in found.items())

    return by("ip_family", of_families)


def _build(_now: Scrape) -> Samples:
    return [((__version__, platform.python_version(), platform.release()), 1)]


def _answers(now: Scrape) -> Samples:
    return [((_name(probe), str(code)), count) for (probe, code), count in now.health.answers.items()]


def _name(probe: HealthEndpoint) -> str:
    return probe.value.lstrip("/")


# fmt: off
ROWS: tuple[Row, ...] = (
    gauge("kroute_build_info", "1, with what runs here.", Series(("version", "python", "kernel"), _build)),
    gauge("kroute_healthy", "Whether a probe is answered with 200 now.",
          by("probe", lambda now: ((_name(probe), now.health.look(probe).healthy) for probe in HealthEndpoint))),
    counter("kroute_probe_answers_total", "Answers to probes by HTTP status.", Series(("probe", "code"), _answers)),
    gauge("kroute_services", "Services that are planned for this node.",
          one(lambda now: len(now.parts.broadcaster.services))),
    gauge("kroute_problems", "What is not as the Services' owners asked, by reason.",
          by("reason", lambda now: now.plans.problems.items())),
    gauge("kroute_service_problems", "The same by Service, for at most --metrics-services of them.",
          Series((*_SERVICE, "reason"), _problems)),
    counter("kroute_changes_total", "Objects that were seen new, changed or gone, by kind.",
            by("kind", lambda now: now.parts.changes.counts.items())),
    counter("kroute_ejections_total", "Real servers that were ejected because they did not answer.",
            one(lambda now: now.parts.controllers.ejections())),
    counter("kroute_ejections_refuted_total",
            "Real servers that did not answer clients, but accepted a connection of the node's own.",
            one(lambda now: now.parts.controllers.refuted_ejections())),
    gauge("kroute_firewall_info", "1, with the firewall's backend.",
          by("backend", lambda now: [(now.parts.settings.firewall, 1)])),
    gauge("kroute_set_entries", "Entries of a set that the firewall's rules look up.", _by_set("entries")),
    gauge("kroute_set_capacity", "How many entries the set can hold as it is; a full one grows.", _by_set("capacity")),
    gauge("kroute_set_capacity_limit", "How many entries the set can hold once it has grown.", _by_set("limit")),
    gauge("kroute_virtual_servers",
          "Planned virtual servers: serving, refusing (without endpoint), or missing in the kernel.",
          _of_all(serving=lambda total: total.virtual_servers - total.refusing - total.missing,
                  refusing=lambda total: total.refusing, missing=lambda total: total.missing)),
    gauge("kroute_real_servers",
          "Real servers: serving, ejected (they did not answer), draining (weight 0), or missing in the kernel.",
          _of_all(serving=lambda total: total.serving, ejected=lambda total: total.ejected,
                  draining=lambda total: total.draining, missing=lambda total: total.missing_real_servers)),
    gauge("kroute_connections", "Connections that IPVS has now, active or inactive.",
          _of_all(active=lambda total: total.active, inactive=lambda total: total.inactive)),
    gauge("kroute_service_connections",
          "The same by Service, for the --metrics-services Services with most connections so far.",
          _of_services("state", active=lambda figures: figures.active, inactive=lambda figures: figures.inactive)),
    counter("kroute_service_connections_total", "Connections that were scheduled, by Service.",
            Series(_SERVICE, _connections)),
    counter("kroute_service_packets_total", "Packets from clients (in) and to them (out), by Service.",
            _of_services("direction", **{"in": lambda figures: figures.traffic.packets_in,
                                         "out": lambda figures: figures.traffic.packets_out})),
    counter("kroute_service_bytes_total", "Bytes from clients (in) and to them (out), by Service.",
            _of_services("direction", **{"in": lambda figures: figures.traffic.bytes_in,
                                         "out": lambda figures: figures.traffic.bytes_out})),
    gauge("kroute_services_without_series", "Services beyond --metrics-services, which are only in the sums.",
          Series((), lambda now: [((), now.kernel.omitted)] if now.kernel else [])),
    gauge("kroute_policy_isolated_pods", "Pods of this node that network policies isolate.",
          _of_policies(lambda figures: figures.isolated_pods)),
    gauge("kroute_policies_with_problems", "Network policies of which a part allows nothing, or does not count.",
          _of_policies(lambda figures: figures.policies_with_problems)),
    counter("kroute_policy_refused_packets_total",
            "Packets that isolated pods were not allowed to get or send, by the policies that isolate them; at most "
            "--metrics-services series, of those with most.",
            Series(("direction", "namespace", "policies"), lambda now: now.policies.refused if now.policies else ())),
    histogram("kroute_policy_lag_seconds",
              "From when the network of a new pod was ready, in whole seconds of the kubelet's clock, to the pod's "
              "rules being in the kernel.",
              _of_policies(lambda figures: figures.lag)),
    gauge("kroute_announced_addresses", "Addresses that routers learn from this node.", Series((), _announced)),
    gauge("kroute_bgp_session_up", "Whether the BGP session with a peer is up.",
          by("peer", lambda now: ((peer.address, peer.state == ESTABLISHED) for peer in now.peers))),
    gauge("kroute_bfd_session_up", "Whether the BFD session with a peer, where one is asked for, is up.",
          by("peer", lambda now: ((peer.address, peer.bfd == BFD_UP) for peer in now.peers if peer.bfd))),
    gauge("kroute_bgp_announced_routes", "Routes of both families that a peer has from this node.",
          by("peer", lambda now: ((peer.address, peer.announced) for peer in now.peers))),
    gauge("kroute_bgp_learned_routes", "Routes of both families that are learned from a peer.",
          by("peer", lambda now: ((peer.address, peer.learned) for peer in now.peers))),
    gauge("kroute_pod_networks", "Networks of other nodes' pods: reached (direct, tunnel), missing in the kernel, or "
          "left_out, because they do not count.",
          by("state", _pod_networks)),
    gauge("kroute_allocator", "Whether this agent gives Services their LoadBalancer addresses.",
          _allocator(lambda found: found.is_here)),
    gauge("kroute_load_balancer_services_waiting", "Services that do not get the LoadBalancer addresses that they ask "
          "for, on the agent that gives them out; 0 on others.",
          _allocator(lambda found: found.waiting)),
    gauge("kroute_load_balancer_addresses", "Addresses of --loadbalancer-ip-range, on the agent that gives them out.",
          _addresses(lambda fill: fill.in_range)),
    gauge("kroute_load_balancer_addresses_in_use", "Those of them that a Service has.",
          _addresses(lambda fill: fill.in_use)),
    gauge("kroute_kernel_readable", "Whether the kernel's IPVS table could be read for this scrape.",
          one(lambda now: now.kernel is not None)),
)
# fmt: on
