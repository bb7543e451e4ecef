"""Decide which external IPs and LoadBalancer addresses a node serves, so that none of them takes a node down.

Everybody who may write a Service may name any address in it (CVE-2020-8554), and load balancers are known to hand out
the nodes' own. A node that took another node's address for a VIP could not talk to that node any more; one that took
the API server's would not even hear that the Service is gone.
"""

from collections.abc import Collection
from enum import Enum, auto
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple

import msgspec

from kroute.model.node_facts import NodeFacts
from kroute.planning.address_owners import AddressOwners
from kroute.settings import Settings


class Place(Enum):
    """Where an external address is served."""

    NOWHERE = auto()
    """Not here: perhaps on the node that owns it, which is another node."""
    OWN = auto()
    """Here, on the interface that has it: the address is this node's own."""
    VIP = auto()
    """Here, on the dummy interface."""


class Admission(NamedTuple):
    """Where an external address is served.

    With a `problem` there is something to tell: its name, and in `reason` what goes on with "externalIP X ". It is not
    always a refusal: `place` alone says whether the address is served here.
    """

    place: Place
    problem: str = ""
    reason: str = ""


class Allowed(msgspec.Struct, frozen=True):
    """The networks that addresses of one kind may be in, and the flag that sets them."""

    networks: tuple[str, ...]
    flag: str


def balanced_range(settings: Settings) -> Allowed:
    """The networks that LoadBalancer addresses may be in."""
    return Allowed(settings.load_balancer_ip_ranges, "--loadbalancer-ip-range")


ANOTHER = "Take it out of the Service, or give another one."


def admit(address: str, allowed: Allowed, node: NodeFacts, settings: Settings, owners: AddressOwners) -> Admission:
    """Decide where an external address is served. The address is canonical and unicast."""
    if reason := _refusal(address, allowed, node, settings, owners):
        return Admission(Place.NOWHERE, "Invalid", f"is not served: it {reason}. {ANOTHER}")
    if (claimed := _of_a_node(address, node, settings, owners)) is not None:
        return claimed
    if (use := _use(address, node, owners)) and not is_in(address, settings.serve_needed_addresses):
        reason = f"is not served: it is {use}. {ANOTHER} --serve-needed-addresses allows it."
        return Admission(Place.NOWHERE, "NeededAddress", reason)
    if nodes := owners.nodes_with(address):
        reason = f"is served, although the status of Node {min(nodes)} has it: it is not in --node-address-range."
        return Admission(Place.VIP, "ClaimedByNode", reason)
    return Admission(Place.VIP)


def _refusal(address: str, allowed: Allowed, node: NodeFacts, settings: Settings, owners: AddressOwners) -> str | None:
    if (allowed.networks or settings.strict_external_ips) and not is_in(address, allowed.networks):
        names = ", ".join(allowed.networks) or "nothing, since --strict-external-ips is set"
        return f"is not in what {allowed.flag} allows ({names})"
    if services := owners.services_with(address):
        return f"is the ClusterIP of Service {min(services)}"
    if is_in(address, ranges := (*settings.service_cidrs, *node.api.service_ranges)):
        return f"is in the Service range ({', '.join(ranges)})"
    if is_in(address, (*settings.cluster_cidrs, *node.pod_cidrs)):
        return "is in the pods' networks"
    if not settings.cluster_cidrs and (name := owners.node_of_pods(address)) is not None:
        return f"is in the pods' network of Node {name}"
    return None


def nodes_having(address: str, settings: Settings, owners: AddressOwners) -> Collection[str]:
    """The Nodes that have the address by their status, as far as that is believed."""
    is_in_range = not settings.node_address_ranges or is_in(address, settings.node_address_ranges)
    return owners.nodes_with(address) if is_in_range else ()


def _of_a_node(address: str, node: NodeFacts, settings: Settings, owners: AddressOwners) -> Admission | None:
    """About an address of this node or of another one; None for one that is no node's."""
    nodes = nodes_having(address, settings, owners)
    is_own = address in node.own or node.name in nodes
    if not is_own and not nodes:
        return None
    name = node.name if is_own else min(nodes)
    if not settings.external_ips_on_node_addresses:
        reason = (
            f"is not served: it is an address of Node {name}, where Services have node ports only. {ANOTHER} "
            "--external-ips-on-node-addresses serves it on that node, --node-address-range says which addresses Nodes "
            "have."
        )
        return Admission(Place.NOWHERE, "NodeAddress", reason)
    reason = f"is served by Node {name} only, since its status says that the address is its own."
    return Admission(Place.OWN) if is_own else Admission(Place.NOWHERE, "NodeAddress", reason)


def _use(address: str, node: NodeFacts, owners: AddressOwners) -> str | None:
    """What this node needs an address for that is not its own."""
    if address in node.api.servers or owners.is_api_server(address):
        return "an address of the API server"
    if address in node.interfaces.dns_servers:
        return "a DNS server of this node"
    return kernels_use(address, node)


def kernels_use(address: str, node: NodeFacts) -> str | None:
    """What the node's kernel uses an address for that is on no interface, if anything: bound, it would cut it off.

    Of what a node needs, only this counts against a ClusterIP. Anybody who may write a Node could end ClusterIPs by its
    addresses; and the API server and the DNS servers of a node may well be ClusterIPs.
    """
    if address in node.interfaces.gateways:
        return "the gateway of a route of this node"
    return (
        "the network or broadcast address of a subnet of this node" if address in node.interfaces.subnet_edges else None
    )


def is_in(address: str, networks: tuple[str, ...]) -> bool:
    """Whether the address is in one of the networks."""
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
