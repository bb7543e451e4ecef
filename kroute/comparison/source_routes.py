"""The source routes to VIPs: with which address this node's own processes call them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from kroute.kernel.net.routes import LocalRoute
from kroute.model.plan import Vip


class SourceRoute(NamedTuple):
    """The sources of our routes to one VIP (in a right state: one), and whether the kernel heeds them."""

    sources: tuple[str, ...]
    wins: bool = True

    def __str__(self) -> str:
        return " and ".join(self.sources) + ("" if self.wins else ", behind the kernel's own")


ANY_SOURCE = SourceRoute(())
"""What is desired where the node's own address is not known: whatever there is stays."""


def desired_by(vip: Vip) -> SourceRoute:
    """The route that a VIP is to have."""
    return _route_from(vip.source) if vip.source else ANY_SOURCE


@lru_cache(64)
def _route_from(source: str) -> SourceRoute:
    """What almost all VIPs want is one object for each address of the node's."""
    return SourceRoute((source,))


def ours_among(address: str, routes: Sequence[LocalRoute]) -> SourceRoute | None:
    """Our routes to `address` among all of them, in the kernel's order; None if there is none of ours.

    The kernel's own route names the address itself as the source, or none at all.
    """
    sources = tuple(route.source for route in routes if route.source is not None and route.source != address)
    return SourceRoute(sources, routes[0].source == sources[0]) if sources else None


def stale_sources(address: str, applied: SourceRoute | None, desired: SourceRoute) -> list[str]:
    """Sources of further routes that somebody has made; of IPv6 there is one at most, which a new one replaces."""
    if applied is None or len(applied.sources) < 2 or ":" in address:
        return []
    return [source for source in applied.sources if source not in desired.sources]


def agrees(applied: SourceRoute, desired: SourceRoute) -> bool:
    """Whether the routes that are there are the desired one."""
    return desired in {ANY_SOURCE, applied}


def is_right_source(desired: Vip, source: str | None) -> bool:
    """Whether this node is to call the VIP from this address, which the kernel chooses."""
    return agrees(SourceRoute((source,) if source else ()), desired_by(desired))


def differences(desired: Vip | None, source: str | None, *, is_local: bool) -> list[str]:
    """What is not as desired of the way to a VIP, on which the kernel chooses this `source`.

    `is_local`: whether the kernel takes packets to the VIP for itself.
    """
    if desired is None:
        return []
    if not is_local:
        return [f"no local route leads to {desired.address}"]
    if is_right_source(desired, source):
        return []
    return [f"the route to {desired.address} has the source {source}, not {desired.source}"]


def describe_drift(address: str, applied: SourceRoute | None) -> str:
    """What a resync has found."""
    return f"route to {address} had source {applied}" if applied else f"route to {address} was missing"
