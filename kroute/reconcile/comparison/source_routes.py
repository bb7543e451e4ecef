"""The source routes to VIPs, which say with what source address this node's own processes call a VIP."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from kroute.kernel.net.routes import LocalRoute
from kroute.model.plan import Vip


class SourceRoute(NamedTuple):
    """The sources of our routes to one VIP (one, if all is right), and whether they win over the kernel's own route."""

    sources: tuple[str, ...]
    wins: bool = True

    def __str__(self) -> str:
        return " and ".join(self.sources) + ("" if self.wins else ", behind the kernel's own")


ANY_SOURCE = SourceRoute(())
"""What is desired while the node's own address is not known: no route is written, and any that is there stays."""


def is_nothing(desired: SourceRoute) -> bool:
    """Whether no route needs to be in the kernel though a plan has the VIP."""
    return desired == ANY_SOURCE


def desired_by(vip: Vip) -> SourceRoute:
    return _route_from(vip.source) if vip.source else ANY_SOURCE


@lru_cache(64)
def _route_from(source: str) -> SourceRoute:
    """The route from this source. It is cached because almost all VIPs have the same few sources."""
    return SourceRoute((source,))


def ours_among(address: str, routes: Sequence[LocalRoute]) -> SourceRoute | None:
    """Our routes among all `routes` to `address`, which are in the kernel's order; None if none is ours.

    A route is the kernel's own if its source is the address itself or missing.
    """
    sources = tuple(route.source for route in routes if route.source is not None and route.source != address)
    return SourceRoute(sources, routes[0].source == sources[0]) if sources else None


def agrees(applied: SourceRoute, desired: SourceRoute) -> bool:
    """Whether the applied routes are just the desired one."""
    return desired in {ANY_SOURCE, applied}


def is_right_source(desired: Vip, source: str | None) -> bool:
    """Whether `source`, which the kernel chooses for calls from this node to the VIP, is the desired one."""
    return agrees(SourceRoute((source,) if source else ()), desired_by(desired))


def differences(desired: Vip | None, source: str | None, *, is_local: bool) -> list[str]:
    """What is not as desired in the route to a VIP, one sentence each. `source` is what the kernel chooses.

    `is_local`: whether the kernel delivers packets to the VIP locally.
    """
    if desired is None:
        return []
    if not is_local:
        return [f"no local route leads to {desired.address}"]
    if is_right_source(desired, source):
        return []
    return [f"the route to {desired.address} has the source {source}, not {desired.source}"]


def describe_drift(address: str, applied: SourceRoute | None) -> str:
    """The drift of the route to an address in one sentence."""
    return f"route to {address} had source {applied}" if applied else f"route to {address} was missing"
