"""Virtual servers and their real servers.

A virtual server that is desired without real servers must not be in the kernel: there it would take packets before the
filter could refuse them. It stays only while its old real servers have TCP connections. A real server with weight 0
that is not desired drains, and comparisons ignore it.

The order of real servers matters to the schedulers of SCHEDULERS_BY_ORDER alone. A plan's real servers are sorted, and
must have been added in that order. The kernel lists the newest first (net/netfilter/ipvs/ip_vs_ctl.c, list_add_rcu).
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from kroute.base.forwarding import DIRECT_ROUTING, MASQUERADING, TUNNEL
from kroute.base.schedulers import SCHEDULERS_BY_ORDER, SCHEDULERS_WITH_FLAGS
from kroute.kernel.ipvs.objects import RealServerKey, RealServerState, VirtualServerOptions, VirtualServerState
from kroute.kernel.ipvs.objects import VirtualServerKey as KernelKey
from kroute.model.plan import Persistence, Protocol, RealServer, VirtualServer, VirtualServerKey

WRONG_METHOD = -1
"""In the terms of plans, the weight of a real server with another forwarding method than planned. No plan has it."""
_METHODS = (TUNNEL, MASQUERADING, DIRECT_ROUTING)
"""The forwarding methods of plans. The first that any real server has counts as the virtual server's."""
_WRONG_METHODS = {method: {*_METHODS} - {method} for method in _METHODS}
"""The forwarding methods that a real server must not have, by the method of its virtual server."""


class Condition(StrEnum):
    """What a virtual server or real server does now, in the words of `kroute show`, the status page and metrics."""

    SERVING = "serving"
    CLIMBING = "climbing"
    """A real server that serves with a part of its weight, because of its slow start."""
    EJECTED = "ejected"
    """A real server without new connections on this node, because it did not answer."""
    DRAINING = "draining"
    """A real server without new connections."""
    REFUSING = "refusing"
    """A virtual server that is planned without real servers: its clients are refused."""
    MISSING = "missing"
    """A virtual server or real server that is desired and not in the kernel."""


def condition_of(desired: VirtualServer, applied: VirtualServerState | None) -> Condition:
    """The condition of a virtual server that a plan names."""
    if is_nothing(desired):
        return Condition.REFUSING
    return Condition.MISSING if applied is None else Condition.SERVING


TAKES_CONNECTIONS = frozenset({Condition.SERVING, Condition.CLIMBING})
"""The conditions of a real server that gets new connections."""


def real_server_condition(applied: RealServerState) -> Condition:
    """The condition of a real server that the kernel has, as far as the kernel alone tells it."""
    return Condition.SERVING if applied.weight else Condition.DRAINING


def missing_real_servers(
    desired: Iterable[RealServer], applied: Mapping[RealServerKey, RealServerState]
) -> list[RealServer]:
    """The desired real servers that the kernel does not have, in the order of the plan."""
    return [server for server in desired if (server.address, server.port) not in applied]


class RealServerCounts(NamedTuple):
    """How many real servers of a virtual server are in each condition."""

    serving: int
    draining: int
    missing: int


def count_real_servers(
    desired: Collection[RealServer], applied: Mapping[RealServerKey, RealServerState]
) -> RealServerCounts:
    """Count the conditions. This is quicker than asking one by one, for a scan of 100,000 real servers."""
    draining = sum(1 for real in applied.values() if not real.weight)
    present = sum((server.address, server.port) in applied for server in desired)
    return RealServerCounts(len(applied) - draining, draining, len(desired) - present)


def count_ejected(desired: VirtualServer, applied: Mapping[RealServerKey, RealServerState]) -> int:
    """How many of the real servers that `count_real_servers` counts as draining are ejected."""
    if desired.ejection is None:
        return 0
    present = ((server.weight, applied.get((server.address, server.port))) for server in desired.real_servers)
    return sum(real is not None and is_ejected(desired, weight, real.weight) for weight, real in present)


def stale_real_servers(applied: VirtualServerState, desired: VirtualServer | None) -> set[RealServerKey]:
    """The real servers with weight 0 that no plan names: they drain, even if an earlier run set the weight."""
    idle = {real_server for real_server, real in applied.real_servers.items() if not real.weight}
    return idle.difference((address, port) for address, port, _ in desired.real_servers) if desired else idle


def planned_key(key: KernelKey) -> VirtualServerKey:
    """The key of a virtual server as plans have it. It equals the kernel's key."""
    if isinstance(key, VirtualServerKey):
        return key
    protocol, address, port = key
    return VirtualServerKey(Protocol(protocol), address, port)


def options_of(server: VirtualServer) -> VirtualServerOptions:
    """A virtual server's options in the kernel's terms."""
    timeout, prefix = server.persistence or (0, 0)
    flags = server.flags if server.scheduler in SCHEDULERS_WITH_FLAGS else 0
    return VirtualServerOptions(server.scheduler, flags, timeout, prefix)


def in_order_of_addition(applied: Mapping[RealServerKey, RealServerState]) -> list[RealServerKey]:
    """The real servers of a virtual server, as the kernel lists them, from the oldest to the newest."""
    return list(applied)[::-1]


def in_terms_of_plans(
    key: VirtualServerKey, applied: VirtualServerState, draining: Collection[RealServerKey]
) -> VirtualServer:
    """The kernel's virtual server as a plan would have it: without draining real servers, the others sorted.

    If the scheduler goes by their order, they are in the order of their addition.
    """
    options = applied.options
    methods = {real.method for key, real in applied.real_servers.items() if key not in draining}
    method = next((each for each in _METHODS if each in methods), MASQUERADING)
    wrong = _WRONG_METHODS[method]
    real_servers = [
        RealServer(*key, real.weight if real.method not in wrong else WRONG_METHOD)
        for key in in_order_of_addition(applied.real_servers)
        if key not in draining and (real := applied.real_servers[key])
    ]
    return VirtualServer(
        key,
        scheduler=options.scheduler,
        flags=options.flags,
        persistence=Persistence(options.persistence_timeout, options.persistence_prefix)
        if options.persistence_timeout
        else None,
        real_servers=tuple(real_servers if options.scheduler in SCHEDULERS_BY_ORDER else sorted(real_servers)),
        method=method,
    )


def matches_exactly(applied: VirtualServerState, desired: VirtualServer) -> bool:
    """Whether the kernel has exactly what is desired, with nothing that drains. Quicker than `in_terms_of_plans`."""
    if len(applied.real_servers) != len(desired.real_servers):
        return False
    wrong = _WRONG_METHODS[desired.method]
    for address, port, weight in desired.real_servers:
        real = applied.real_servers.get((address, port))
        if real is None or real.weight != weight or real.method in wrong:
            return False
    if options_of(desired) != applied.options:
        return False
    return desired.scheduler not in SCHEDULERS_BY_ORDER or is_in_order(applied.real_servers, desired)


def is_in_order(applied: Mapping[RealServerKey, RealServerState], desired: VirtualServer) -> bool:
    """Whether those desired real servers that the kernel has were added in the plan's order."""
    planned = [(address, port) for address, port, _ in desired.real_servers if (address, port) in applied]
    there = set(planned)
    return [server for server in in_order_of_addition(applied) if server in there] == planned


def is_climbing(desired: VirtualServer, planned: int, applied: int) -> bool:
    """Whether a real server with this planned weight may have the applied weight because of its slow start."""
    return desired.slow_start > 0 and 0 < applied < planned


def is_ejected(desired: VirtualServer, planned: int, applied: int) -> bool:
    """Whether a real server with this planned weight may have the applied weight because it was ejected."""
    return desired.ejection is not None and applied == 0 < planned


def is_held_back(desired: VirtualServer, planned: int, applied: int) -> bool:
    """Whether a real server may have a smaller weight in the kernel than planned, though nothing is wrong."""
    return is_climbing(desired, planned, applied) or is_ejected(desired, planned, applied)


def is_nothing(desired: VirtualServer) -> bool:
    """Whether the virtual server should not be in the kernel though a plan names it: it has no real servers."""
    return not desired.real_servers


def is_served_out(applied: VirtualServer, draining: Collection[RealServerKey]) -> bool:
    """Whether an unwanted virtual server has nothing left for which it must stay: only TCP's connections count."""
    return not applied.real_servers and not (draining and applied.key.protocol == Protocol.TCP)


def agrees(applied: VirtualServer, desired: VirtualServer, draining: Collection[RealServerKey] = ()) -> bool:
    """Whether both serve in the same way; for most schedulers the order of real servers does not matter.

    `draining` are the real servers with weight 0 that the kernel has in addition to those of `applied`. Those that are
    not TCP's may drain only while their endpoints are `leaving`.
    """
    if is_nothing(desired):
        return not applied.real_servers and not is_served_out(applied, draining)
    if draining and applied.key.protocol != Protocol.TCP and not set(desired.leaving).issuperset(draining):
        return False
    in_order = tuple if desired.scheduler in SCHEDULERS_BY_ORDER else set
    return applied == desired or (
        len(applied.real_servers) == len(desired.real_servers)
        and options_of(applied) == options_of(desired)
        and (applied.method == desired.method or not applied.real_servers)
        and in_order(applied.real_servers) == in_order(desired.real_servers)
    )


def differences(key: VirtualServerKey, desired: VirtualServer | None, applied: VirtualServerState | None) -> list[str]:
    """What is not as desired, one sentence each; empty if the kernel and the plan agree."""
    wanted = desired if desired is not None and not is_nothing(desired) else None
    if applied is None:
        return [f"virtual server {key} is missing"] if wanted else []
    found = _differing_real_servers(wanted, applied.real_servers)
    if wanted is None:
        draining = stale_real_servers(applied, desired)
        if found or (desired is not None and not is_served_out(in_terms_of_plans(key, applied, draining), draining)):
            return found
        return [f"virtual server {key} was not planned"]
    found = [*_differing_options(key, wanted, applied), *found, *_differing_methods(wanted, applied.real_servers)]
    if wanted.scheduler in SCHEDULERS_BY_ORDER and not is_in_order(applied.real_servers, wanted):
        found.append(f"virtual server {key} has its real servers in another order: nodes choose differently")
    return found


def describe_drift(key: VirtualServerKey, applied: VirtualServer | None, desired: VirtualServer | None) -> str:
    """The drift of a virtual server in one sentence."""
    if applied is None:
        return f"virtual server {key} was missing"
    if desired is None or is_nothing(desired):
        return f"virtual server {key} is not wanted"
    if _is_only_out_of_order(applied, desired):
        return f"virtual server {key} had its real servers in another order"
    return f"virtual server {key} was changed"


def _is_only_out_of_order(applied: VirtualServer, desired: VirtualServer) -> bool:
    """Whether nothing but the order differs of two virtual servers that do not agree."""
    return options_of(applied) == options_of(desired) and sorted(applied.real_servers) == sorted(desired.real_servers)


def _differing_options(key: VirtualServerKey, wanted: VirtualServer, applied: VirtualServerState) -> list[str]:
    present, planned = options_of(in_terms_of_plans(key, applied, applied.real_servers)), options_of(wanted)
    return [
        f"virtual server {key} has {name.replace('_', ' ')} {has}, not {wants}"
        for name, has, wants in zip(VirtualServerOptions._fields, present, planned, strict=True)
        if has != wants
    ]


def _differing_real_servers(
    wanted: VirtualServer | None, applied: Mapping[RealServerKey, RealServerState]
) -> list[str]:
    weights = {(server.address, server.port): server.weight for server in wanted.real_servers} if wanted else {}
    found = [f"real server {address}:{port} is missing" for address, port in sorted(weights.keys() - applied.keys())]
    found += [
        f"real server {address}:{port} has weight {applied[address, port].weight}, not {weight}"
        for (address, port), weight in sorted(weights.items())
        if (address, port) in applied
        and applied[address, port].weight != weight
        and not (wanted is not None and is_held_back(wanted, weight, applied[address, port].weight))
    ]
    return found + [
        f"real server {address}:{port} takes new connections and was not planned"
        for address, port in sorted(applied.keys() - weights.keys())
        if applied[address, port].weight
    ]


def _differing_methods(wanted: VirtualServer, applied: Mapping[RealServerKey, RealServerState]) -> list[str]:
    """A sentence for each planned real server that the kernel forwards to in another way."""
    wrong = _WRONG_METHODS[wanted.method]
    planned = {(server.address, server.port) for server in wanted.real_servers}
    return [
        f"real server {address}:{port} is forwarded to by {applied[address, port].method}, not {wanted.method}"
        for address, port in sorted(planned & applied.keys())
        if applied[address, port].method in wrong
    ]
