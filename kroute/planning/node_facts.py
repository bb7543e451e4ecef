"""What planning needs to know about the node it plans for."""

from collections.abc import Iterable

import msgspec

from kroute.planning.addresses import Family, canonical, family_of
from kroute.planning.objects import ZONE_LABEL, Node
from kroute.settings import Settings

_ADDRESS_TYPES = ("InternalIP", "ExternalIP")
"""The types of a Node's addresses that its Services may use as their source, the best first."""


class NodeFacts(msgspec.Struct, frozen=True):
    """This node's name, its own addresses (at most one a family, canonical text), zone and pod networks.

    `own` are the addresses of all interfaces but the dummy one, `node_port_addresses` those of them that serve node
    ports, sorted. Both addresses None means that nothing is known yet: Services are served, the kernel chooses sources.
    """

    name: str
    ipv4: str | None = None
    ipv6: str | None = None
    zone: str | None = None
    pod_cidrs: tuple[str, ...] = ()
    own: frozenset[str] = frozenset()
    node_port_addresses: tuple[str, ...] = ()

    def address_for(self, address: str) -> str | None:
        """This node's own address of the same family as `address`, if it has one."""
        return self.ipv6 if ":" in address else self.ipv4

    def serves(self, address: str) -> bool:
        """Whether this node has (or may have) the family of `address`."""
        return self.address_for(address) is not None or (self.ipv4 is None and self.ipv6 is None)


def node_facts(settings: Settings, node: Node | None, fallback: tuple[str, ...] = ()) -> NodeFacts:
    """What is known of this node, from the best source of each fact.

    For each family the address is that of `settings.node_ips`, else the Node's first InternalIP, else its first
    ExternalIP. `fallback`, addresses found on the node itself, counts only when that gives no address at all: a Node
    that names one family is a node with one family.
    """
    known = [*settings.node_ips, *_addresses(node)]
    first = _first_of_each_family(known) or _first_of_each_family(fallback)
    labels = (node.metadata.labels if node else None) or {}
    return NodeFacts(
        name=settings.node_name,
        ipv4=first.get("IPv4"),
        ipv6=first.get("IPv6"),
        zone=labels.get(ZONE_LABEL) or None,
        pod_cidrs=(node.spec.pod_cidrs if node else None) or (),
    )


def _addresses(node: Node | None) -> list[str]:
    addresses = (node.status.addresses if node else None) or ()
    return [it.address for kind in _ADDRESS_TYPES for it in addresses if it.type == kind]


def _first_of_each_family(addresses: Iterable[str]) -> dict[Family, str]:
    first: dict[Family, str] = {}
    for address in map(canonical, addresses):
        if address is not None:
            first.setdefault(family_of(address), address)
    return first
