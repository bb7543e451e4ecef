"""kroute's own metrics of how the agent works: queues, controllers, the event loop, netlink and the API server."""

from collections.abc import Callable

from kroute.checks.running_proxies import Sign
from kroute.telemetry.metrics.scrape import Row, Scrape, Series, by, counter, fields_of, gauge, histogram, one

_CONTROLLER = "controller"


def _by_controller(field: str) -> Series:
    return by(_CONTROLLER, lambda now: fields_of(field, now.statistics.controllers))


def _by_kind(field: str) -> Series:
    return by("kind", lambda now: fields_of(field, now.statistics.watches))


def _by_client(field: str) -> Series:
    return by("client", lambda now: fields_of(field, now.statistics.sockets))


def _by_proxy(sign: Callable[[Scrape], Sign | None]) -> Series:
    return by("proxy", lambda now: [(found.proxy, 1)] if (found := sign(now)) is not None else [])


def _rival(now: Scrape, *, has_policies: bool) -> Sign | None:
    rival = now.parts.ownership.rival
    return rival if rival is not None and rival.has_policies == has_policies else None


# fmt: off
ROWS: tuple[Row, ...] = (
    gauge("kroute_waiting_for_proxy", "1 while kroute waits until this service proxy ends.",
          _by_proxy(lambda now: now.parts.ownership.waits_for)),
    gauge("kroute_rival_proxy", "1 while this service proxy is at work on kroute's node.",
          _by_proxy(lambda now: _rival(now, has_policies=False))),
    gauge("kroute_rival_policy_enforcer", "1 while this program enforces network policies beside kroute.",
          _by_proxy(lambda now: _rival(now, has_policies=True))),
    gauge("kroute_queue_depth", "Plans that wait for a controller.",
          by(_CONTROLLER, lambda now: ((queue.subscriber, queue.depth) for queue in now.statistics.queues))),
    gauge("kroute_queue_lag_seconds", "For how long the oldest of them has waited.",
          by(_CONTROLLER, lambda now: ((queue.subscriber, queue.lag) for queue in now.statistics.queues))),
    histogram("kroute_pass_duration_seconds",
              "How long the passes of a controller took that wrote something or resynced.",
              by(_CONTROLLER, lambda now: now.parts.controllers.passes().items())),
    counter("kroute_writes_total", "Changes that the kernel has accepted.", _by_controller("writes")),
    counter("kroute_repairs_total", "What another program had changed and kroute has repaired.",
            _by_controller("repairs")),
    counter("kroute_failures_total", "Changes that were refused, and passes that failed.", _by_controller("failures")),
    counter("kroute_denials_total", "Passes that failed because a privilege is missing.", _by_controller("denied")),
    gauge("kroute_retries_waiting", "Objects that were refused and will be tried again.", _by_controller("waiting")),
    gauge("kroute_failing_seconds", "For how long every pass has failed; 0 when it works.",
          _by_controller("failing_for")),
    gauge("kroute_last_audit_timestamp_seconds", "The Unix time of the last resync.", _by_controller("last_resync")),
    gauge("kroute_last_look_timestamp_seconds", "The Unix time of the last look or resync.",
          _by_controller("last_look")),
    counter("kroute_resyncs_total", "Comparisons of all of the kernel's state.", _by_controller("resyncs")),
    counter("kroute_looks_total", "Looks that found no reason for a resync.", _by_controller("looks")),
    histogram("kroute_programming_duration_seconds",
              "From reading a change to its Service's being as it should be in the kernel.",
              one(lambda now: now.statistics.latency.seconds)),
    gauge("kroute_programming_waiting", "Services whose changes are on their way to the kernel.",
          one(lambda now: now.statistics.latency.waiting)),
    gauge("kroute_programming_oldest_seconds", "For how long the first of them has been on its way.",
          one(lambda now: now.statistics.latency.oldest)),
    histogram("kroute_loop_round_duration_seconds",
              "Rounds of the event loop: while one lasts, nothing else happens.",
              one(lambda now: now.statistics.loop.rounds)),
    gauge("kroute_loop_longest_round_seconds", "The longest round so far; 0 below ten milliseconds.",
          one(lambda now: now.statistics.loop.longest)),
    gauge("kroute_loop_longest_round_cpu_seconds", "The most processor time that one of them took.",
          one(lambda now: now.statistics.loop.longest_cpu)),
    counter("kroute_log_lines_dropped_total", "Log lines that were dropped because nobody read them.",
            one(lambda now: now.statistics.dropped_lines)),
    counter("kroute_netlink_messages_total", "Messages sent to the kernel.", _by_client("messages")),
    counter("kroute_netlink_bytes_total", "Bytes sent to the kernel.", _by_client("bytes")),
    counter("kroute_netlink_sends_total", "System calls that sent them.", _by_client("sends")),
    gauge("kroute_reflector_objects", "Objects that are known from the API server.", _by_kind("objects")),
    counter("kroute_reflector_lists_total", "Requests that listed objects.", _by_kind("lists")),
    counter("kroute_reflector_watches_total", "Watches that were begun.", _by_kind("watches")),
    counter("kroute_reflector_events_total", "Events that watches brought.", _by_kind("events")),
    counter("kroute_reflector_failures_total", "Lists and watches that failed.", _by_kind("failures")),
    counter("kroute_reflector_denials_total", "Failures because a permission is missing.", _by_kind("denied")),
    counter("kroute_reflector_malformed_total", "Objects that could not be read.", _by_kind("malformed")),
    counter("kroute_api_failovers_total", "Times that another API server of --master was used instead.",
            one(lambda now: now.statistics.api.failovers)),
)
# fmt: on
