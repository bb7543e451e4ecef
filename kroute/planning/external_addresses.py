"""Decide which external IPs and LoadBalancer addresses a node serves, so that none of them takes a node down.

Everybody who may write a Service may name any address in it (CVE-2020-8554), and some load balancers assign the nodes'
own addresses. A node that bound another node's address as a VIP could not reach that node any more.
"""

from enum import Enum, auto
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from kroute.model.node_facts import NodeFacts
from kroute.planning.address_owners import AddressOwners
from kroute.settings import Settings


class Place(Enum):
    """Where an external address is served."""

    NOWHERE = auto()
    ELSEWHERE = auto()
    """On the node that owns it, which is another node."""
    OWN = auto()
    """Here, on the interface that has it: the address is this node's own."""
    VIP = auto()
    """Here, on the dummy interface."""


class Admission(NamedTuple):
    """Where an external address is served. For NOWHERE, `reason` continues "is not served: it ..."."""

    place: Place
    reason: str = ""


class Allowed(NamedTuple):
    """The networks that addresses of one kind may be in, and the flag that sets them."""

    networks: tuple[str, ...]
    flag: str


def admit(address: str, allowed: Allowed, node: NodeFacts, settings: Settings, owners: AddressOwners) -> Admission:
    """Decide where an external address is served. The address is canonical and unicast."""
    if reason := _refusal(address, allowed, node, settings, owners):
        return Admission(Place.NOWHERE, reason)
    nodes = owners.nodes_with(address)
    if address in node.own or node.name in nodes:
        return Admission(Place.OWN)
    return Admission(Place.ELSEWHERE if nodes else Place.VIP)


def _refusal(address: str, allowed: Allowed, node: NodeFacts, settings: Settings, owners: AddressOwners) -> str | None:
    if (allowed.networks or settings.strict_external_ips) and not _is_in(address, allowed.networks):
        names = ", ".join(allowed.networks) or "nothing, since --strict-external-ips is set"
        return f"is not in what {allowed.flag} allows ({names})"
    if services := owners.services_with(address):
        return f"is the ClusterIP of Service {min(services)}"
    if _is_in(address, settings.service_cidrs):
        return f"is in the Service range ({', '.join(settings.service_cidrs)})"
    if _is_in(address, (*settings.cluster_cidrs, *node.pod_cidrs)):
        return "is in the pods' networks"
    return None


def _is_in(address: str, networks: tuple[str, ...]) -> bool:
    parsed = ip_address(address)
    return any(parsed in network for network in _parsed(networks))


@lru_cache(maxsize=64)
def _parsed(networks: tuple[str, ...]) -> list[IPv4Network | IPv6Network]:
    """The networks as objects. Invalid ones are left out; the node's plan reports those of podCIDRs as a Problem."""
    parsed = []
    for text in networks:
        try:
            parsed.append(ip_network(text, strict=False))
        except ValueError:
            continue
    return parsed
