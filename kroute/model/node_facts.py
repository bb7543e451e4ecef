"""What planning needs to know about the node it plans for."""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import NamedTuple

import msgspec

from kroute.model.addresses import Family, canonical, family_of
from kroute.model.objects import ZONE_LABEL, Node
from kroute.settings import PRIMARY, Settings

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


class NodeInterfaces(NamedTuple):
    """What the node's interfaces say, except the dummy interface, in canonical text.

    `own` are all addresses that work. `default` has at most one of each family: the one that the node uses towards its
    default route, a node's own address for as long as nobody names a better one.
    """

    own: frozenset[str] = frozenset()
    default: tuple[str, ...] = ()


NO_INTERFACES = NodeInterfaces()


def node_facts(settings: Settings, node: Node | None, interfaces: NodeInterfaces = NO_INTERFACES) -> NodeFacts:
    """What is known of this node, from the best source of each fact.

    For each family the address is that of `settings.node_ips`, else the Node's first InternalIP, else its first
    ExternalIP. `interfaces.default` counts only when that gives no address at all (a Node that names one family is a
    node with one family), or for a family whose named addresses are not on the node: no route could have them as
    source, and with a changed DHCP lease the Node object is late.
    """
    named = _named(settings, node)
    own = interfaces.own or frozenset(named)  # without any address nothing is known, rather than nothing there
    present = _first_of_each_family(it for it in named if it in settings.node_ips or it in own)
    default = _first_of_each_family(interfaces.default)
    first = {
        family: present.get(family) or default.get(family) or it for family, it in _first_of_each_family(named).items()
    }
    first = first or default
    labels = (node.metadata.labels if node else None) or {}
    facts = NodeFacts(
        name=settings.node_name,
        ipv4=first.get(Family.IPV4),
        ipv6=first.get(Family.IPV6),
        zone=labels.get(ZONE_LABEL) or None,
        pod_cidrs=(node.spec.pod_cidrs if node else None) or (),
        own=interfaces.own,
    )
    return msgspec.structs.replace(facts, node_port_addresses=_node_port_addresses(settings, facts))


def _node_port_addresses(settings: Settings, facts: NodeFacts) -> tuple[str, ...]:
    """Which of the node's addresses serve node ports, sorted."""
    if settings.nodeport_addresses == (PRIMARY,):
        chosen = {it for it in (facts.ipv4, facts.ipv6) if it is not None}
    elif settings.nodeport_addresses:
        networks = [ip_network(cidr) for cidr in settings.nodeport_addresses]
        chosen = {it for it in facts.own if any(ip_address(it) in network for network in networks)}
    else:
        chosen = {it for it in facts.own if not (ip_address(it).is_loopback or _is_ipv6_link_local(it))}
    return tuple(sorted(it for it in chosen if facts.serves(it)))


def _is_ipv6_link_local(address: str) -> bool:
    return ":" in address and ip_address(address).is_link_local


def _named(settings: Settings, node: Node | None) -> list[str]:
    """The addresses that the settings and the Node object name, in canonical text, the best first."""
    addresses = (node.status.addresses if node else None) or ()
    named = [*settings.node_ips, *(it.address for kind in _ADDRESS_TYPES for it in addresses if it.type == kind)]
    return [address for address in map(canonical, named) if address is not None]


def _first_of_each_family(addresses: Iterable[str]) -> dict[Family, str]:
    first: dict[Family, str] = {}
    for address in addresses:
        first.setdefault(family_of(address), address)
    return first
