"""What planning needs to know about its node."""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import NamedTuple, Self

import msgspec

from kroute.model.addresses import Family, canonical, family_of, networks, unicast
from kroute.model.objects import ZONE_LABEL, Node
from kroute.settings import PRIMARY, Settings

EXCLUSION_LABEL = "node.kubernetes.io/exclude-from-external-load-balancers"
"""A Node with this label gets no traffic from load balancers (KEP-1143), whatever the label's value."""
REMOVAL_TAINT = "ToBeDeletedByClusterAutoscaler"
"""The cluster autoscaler's taint on a node that it is about to remove (its utils/taints package)."""
_ADDRESS_TYPES = ("InternalIP", "ExternalIP")
"""The types of a Node's addresses that its Services may use as their source address, in order of preference."""


class NodeInterfaces(NamedTuple):
    """What the node's interfaces say, except the dummy interface, in canonical text.

    `own` has all usable addresses. `default` has at most one of each family: the one that the node uses towards its
    default route. It is the node's own address when neither the settings nor the Node object name one.

    The rest is what the node needs: `gateways` are the next hops of its routes, `subnet_edges` the network and
    broadcast addresses of its subnets, whose routes a VIP would replace, and `dns_servers` those of its resolver.
    `on_links` has each interface with its addresses of global scope, as ADDRESS/LENGTH.
    """

    own: frozenset[str] = frozenset()
    default: tuple[str, ...] = ()
    gateways: frozenset[str] = frozenset()
    subnet_edges: frozenset[str] = frozenset()
    dns_servers: frozenset[str] = frozenset()
    on_links: frozenset[tuple[str, str]] = frozenset()


class ApiFacts(msgspec.Struct, frozen=True):
    """What the way to the API says: the server's addresses, and the networks of the cluster's ServiceCIDR objects."""

    servers: frozenset[str] = frozenset()
    service_ranges: tuple[str, ...] = ()


NO_INTERFACES = NodeInterfaces()
NO_API = ApiFacts()


class NodeFacts(msgspec.Struct, frozen=True):
    """This node's name, its own addresses (at most one per family, canonical text), its zone and its pod networks.

    `node_port_addresses` has those of its own addresses that serve node ports, sorted. When `ipv4` and `ipv6` are both
    None, no address is known yet: Services are served, and the kernel chooses source addresses.
    """

    name: str
    ipv4: str | None = None
    ipv6: str | None = None
    zone: str | None = None
    pod_cidrs: tuple[str, ...] = ()
    node_port_addresses: tuple[str, ...] = ()
    interfaces: NodeInterfaces = NO_INTERFACES
    api: ApiFacts = NO_API

    @property
    def own(self) -> frozenset[str]:
        """The addresses of all interfaces but the dummy interface."""
        return self.interfaces.own

    @property
    def without_needs(self) -> Self:
        """The same without what only the admission of addresses reads, so that the rules do not depend on that."""
        return msgspec.structs.replace(self, interfaces=NodeInterfaces(self.own), api=NO_API)

    @property
    def of_pod_network(self) -> Self:
        """The same without what the routes to pods change themselves, and the link-local addresses of pods' links."""
        own = frozenset(filter(unicast, self.own))
        rest = self.interfaces._replace(own=own, gateways=frozenset(), subnet_edges=frozenset())
        return msgspec.structs.replace(self, interfaces=rest)

    @property
    def needed(self) -> frozenset[str]:
        """The addresses beside its own that this node cannot do without."""
        return self.of_kernel | self.interfaces.dns_servers | self.api.servers

    @property
    def of_kernel(self) -> frozenset[str]:
        """Those of them that its kernel has routes to, or by."""
        return self.interfaces.gateways | self.interfaces.subnet_edges

    def address_for(self, address: str) -> str | None:
        """This node's own address of the same family as `address`, or None."""
        return self.ipv6 if ":" in address else self.ipv4

    def serves(self, address: str) -> bool:
        """Whether this node has the family of `address`, or may have it because no address is known yet."""
        return self.address_for(address) is not None or (self.ipv4 is None and self.ipv6 is None)


def node_facts(
    settings: Settings, node: Node | None, interfaces: NodeInterfaces = NO_INTERFACES, api: ApiFacts = NO_API
) -> NodeFacts:
    """What is known of this node, from the best source of each fact.

    For each family the address is the first one in `settings.node_ips`, else the Node's first InternalIP, else its
    first ExternalIP. `interfaces.default` is used in two cases. One is that those give no address at all; a Node that
    names only one family has only that family. The other is that none of a family's named addresses is on the node:
    then no route could have them as source, and after a DHCP lease has changed the Node object is out of date. The
    address of the bridge of the node's pods, which is the last one while its uplink is down, does not count.
    """
    named = _named(settings, node)
    own = interfaces.own or frozenset(named)  # without any address, nothing is known yet
    present = first_of_each_family(address for address in named if address in settings.node_ips or address in own)
    pods = networks((node.spec.pod_cidrs if node else None) or ())
    default = first_of_each_family(it for it in interfaces.default if not any(ip_address(it) in each for each in pods))
    first = {
        family: present.get(family) or default.get(family) or address
        for family, address in first_of_each_family(named).items()
    }
    first = first or default
    labels = (node.metadata.labels if node else None) or {}
    facts = NodeFacts(
        name=settings.node_name,
        ipv4=first.get(Family.IPV4),
        ipv6=first.get(Family.IPV6),
        zone=labels.get(ZONE_LABEL) or None,
        pod_cidrs=(node.spec.pod_cidrs if node else None) or (),
        interfaces=interfaces,
        api=api,
    )
    return msgspec.structs.replace(facts, node_port_addresses=_node_port_addresses(settings, facts))


def changed_families(before: NodeFacts, after: NodeFacts) -> list[Family]:
    """The families to whose Services the change matters, apart from node ports."""
    return [family for family, probe in _PROBES.items() if _as_source(before, probe) != _as_source(after, probe)]


_PROBES: dict[Family, str] = {Family.IPV4: "0.0.0.0", Family.IPV6: "::"}


def _as_source(node: NodeFacts, probe: str) -> tuple[str, bool, str | None]:
    return node.name, node.serves(probe), node.address_for(probe)


def _node_port_addresses(settings: Settings, facts: NodeFacts) -> tuple[str, ...]:
    """The node's addresses that serve node ports, sorted."""
    if settings.nodeport_addresses == (PRIMARY,):
        chosen = {address for address in (facts.ipv4, facts.ipv6) if address is not None}
    elif settings.nodeport_addresses:
        networks = [ip_network(cidr) for cidr in settings.nodeport_addresses]
        chosen = {address for address in facts.own if any(ip_address(address) in network for network in networks)}
    else:
        chosen = set(filter(_is_reachable, facts.own))
    return tuple(sorted(address for address in chosen if facts.serves(address)))


def _is_reachable(address: str) -> bool:
    parsed = ip_address(address)
    return not (parsed.is_loopback or (parsed.version == 6 and parsed.is_link_local))


def _named(settings: Settings, node: Node | None) -> list[str]:
    """The addresses that the settings and the Node object name, in canonical text, the best first."""
    named = [*settings.node_ips, *(written_addresses(node) if node is not None else ())]
    return [address for address in map(canonical, named) if address is not None]


def written_addresses(node: Node) -> list[str]:
    """The addresses in a Node's status, as they are written: InternalIPs first, then ExternalIPs."""
    addresses = node.status.addresses or ()
    return [address.address for kind in _ADDRESS_TYPES for address in addresses if address.type == kind]


def first_of_each_family(addresses: Iterable[str | None]) -> dict[Family, str]:
    """The first address of each family; None is passed over."""
    return {family_of(address): address for address in reversed(list(addresses)) if address is not None}
