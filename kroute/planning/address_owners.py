"""Which addresses Services name, and which Node or Service already has one, so that no other Service gets it.

A cluster has thousands of Nodes and thousands of external addresses, so neither look-up walks through all.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Set
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Generic, TypeAlias, TypeVar

from kroute.model.addresses import Family, canonical, family_of
from kroute.model.objects import Node, ObjectKey, Service
from kroute.planning.options import SKIP_LOAD_BALANCER_IPS, alone

K = TypeVar("K")

MOST_ADDRESSES = 1000
"""External IPs of one Service that are looked at, and as many addresses of its load balancer."""

API_SERVER = ObjectKey("default", "kubernetes")
"""The Service whose endpoints are the API servers: the API server writes it itself."""

Network: TypeAlias = IPv4Network | IPv6Network

_SHORTEST = {4: 16, 6: 48}
"""Prefix lengths. A network that is larger is no Node's pod network: kube-controller-manager gives out smaller ones."""
_NO_CLUSTER_IP = frozenset({"", "None"})


class AddressOwners:
    """The owners of addresses: Nodes, their pods, Services by a ClusterIP, and Services that name one from outside.

    Each `place_` returns the Services to plan again: those whose external addresses gained or lost an owner. With
    `shared`, also those that begin or cease to be the only one that names an external address.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._follows_sharing = shared
        self._nodes: _Index[str] = _Index()
        self._cluster_ips: _Index[ObjectKey] = _Index()
        self._external_ips: _Index[ObjectKey] = _Index()
        self._external_in_order = _SortedAddresses()
        self._pod_networks = _PodNetworks()
        self._api_servers: frozenset[str] = frozenset()

    def place_node(self, name: str, node: Node | None) -> set[ObjectKey]:
        """Take a Node's InternalIPs and ExternalIPs, and the networks of its pods; None: it is gone."""
        addresses = node.status.addresses or () if node is not None else ()
        pod_cidrs = node.spec.pod_cidrs or () if node is not None else ()
        changed = self._nodes.put(name, [one.address for one in addresses if one.type.endswith("IP")])
        networks = self._pod_networks.put(name, pod_cidrs)
        within = (address for network in networks for address in self._external_in_order.within(network))
        return self.naming({*changed, *within})

    def place_service(self, key: ObjectKey, service: Service | None) -> set[ObjectKey]:
        """Take a Service's addresses; None: it is gone."""
        sharers = self._set_external(key, external_ips(service) if service is not None else ())
        inside = cluster_ips(service) if service is not None else ()
        return sharers | self.naming(self._cluster_ips.put(key, inside))

    def place_api_servers(self, addresses: frozenset[str]) -> set[ObjectKey]:
        """Take the endpoints of the Service `API_SERVER`: what connections to its ClusterIP go to."""
        before, self._api_servers = self._api_servers, addresses
        return self.naming(before ^ addresses)

    def is_api_server(self, address: str) -> bool:
        """Whether an API server is there, as far as the cluster's own Service says."""
        return address in self._api_servers

    def nodes_with(self, address: str) -> Collection[str]:
        return self._nodes.owners(address)

    def node_of_pods(self, address: str) -> str | None:
        """The Node in whose pod network this address is."""
        return self._pod_networks.owner(address)

    def services_with(self, address: str) -> Collection[ObjectKey]:
        """The Services that have this ClusterIP."""
        return self._cluster_ips.owners(address)

    def with_external_ips(self) -> Collection[ObjectKey]:
        """The Services that name an external address."""
        return self._external_ips.all_owners()

    def naming(self, addresses: Iterable[str]) -> set[ObjectKey]:
        """The Services that name one of these addresses as an external address."""
        return {key for address in addresses for key in self._external_ips.owners(address)}

    def others_naming(self, address: str, key: ObjectKey) -> list[ObjectKey]:
        """The other Services that name this external address; one of them, if there are many."""
        owners = self._external_ips.owners(address)
        return [owner for owner in owners if owner != key][:1]

    def having(self, addresses: Iterable[str]) -> set[ObjectKey]:
        """The Services that have one of these addresses as ClusterIP."""
        return {key for address in addresses for key in self._cluster_ips.owners(address)}

    def _set_external(self, key: ObjectKey, written: Collection[str]) -> set[ObjectKey]:
        """Returns the Services for which it matters which others name an address: none unless that is followed."""
        sharers: set[ObjectKey] = set()
        if not written and key not in self._external_ips.all_owners():
            return sharers  # as most Services
        owned_before = {
            address: self._external_ips.is_owned(address) for address in map(canonical, written) if address is not None
        }
        for address in self._external_ips.put(key, owned_before):
            if owned_before.get(address, True) != self._external_ips.is_owned(address):
                self._external_in_order.toggle(address)
            owners = self._external_ips.owners(address)
            if self._follows_sharing and len(owners) <= 2:
                sharers.update(owners)
        return sharers


def cluster_ips(service: Service, most: int = MOST_ADDRESSES) -> tuple[str, ...]:
    """The Service's ClusterIPs as written; none for a headless one. `clusterIPs` takes precedence over `clusterIP`.

    Here and below, no more than `most` are looked at.
    """
    written = service.spec.cluster_ips or (service.spec.cluster_ip,)
    return tuple([ip for ip in written[:most] if ip not in _NO_CLUSTER_IP])


def external_ips(service: Service) -> tuple[str, ...]:
    """The Service's external IPs and LoadBalancer addresses as written."""
    return (*(service.spec.external_ips or ())[:MOST_ADDRESSES], *load_balancer_ips(service))


def load_balancer_ips(service: Service, most: int = MOST_ADDRESSES) -> tuple[str, ...]:
    """The `virtual_ips` that nodes serve: none if the annotation `kroute.io/skip-load-balancer-ips` is on."""
    found = virtual_ips(service, most)
    if not found:
        return ()
    is_skipped = alone(SKIP_LOAD_BALANCER_IPS, service.metadata.annotations).skip_load_balancer_ips
    return () if is_skipped else found


def virtual_ips(service: Service, most: int = MOST_ADDRESSES) -> tuple[str, ...]:
    """The addresses of the Service's load balancer as written: not those with `ipMode: Proxy`, nor host names."""
    ingress = service.status.load_balancer.ingress
    if service.spec.type != "LoadBalancer" or not ingress:
        return ()
    return tuple([one.ip for one in ingress[:most] if one.ip and one.ip_mode in {None, "", "VIP"}])


def has_family(service: Service, family: Family) -> bool:
    """Whether one of the ClusterIPs is of this family."""
    return any(family_of(address) == family for address in cluster_ips(service))


def has_node_ports(service: Service) -> bool:
    """Whether the Service has ports on the nodes' own addresses, or one port where load balancers ask for health."""
    spec = service.spec
    has_any = spec.health_check_node_port or [port for port in spec.ports or () if port.node_port]
    return spec.type in {"NodePort", "LoadBalancer"} and bool(has_any)


class _Index(Generic[K]):
    """An index of owners and the addresses that they name, in canonical text, both ways."""

    def __init__(self) -> None:
        self._addresses: dict[K, tuple[str, ...]] = {}
        self._owners: dict[str, tuple[K, ...]] = {}

    def put(self, owner: K, written: Iterable[str]) -> Set[str]:
        """Replace the addresses that `owner` names. Returns the addresses that were added or removed."""
        before = self._addresses.pop(owner, ())
        after = tuple(dict.fromkeys(address for address in map(canonical, written) if address is not None))
        if after:
            self._addresses[owner] = after
        changed = set(before).symmetric_difference(after)
        for address in changed:
            owners = self._owners.pop(address, ())
            left = (*owners, owner) if owner not in owners else tuple([other for other in owners if other != owner])
            if left:
                self._owners[address] = left
        return changed

    def is_owned(self, address: str) -> bool:
        """Whether anybody names it."""
        return address in self._owners

    def owners(self, address: str) -> Collection[K]:
        return self._owners.get(address, ())

    def all_owners(self) -> Collection[K]:
        return self._addresses.keys()


class _PodNetworks:
    """Which Node has which networks (`spec.podCIDRs`). A kubelet may write them while they are empty, so it may lie."""

    def __init__(self) -> None:
        self._networks: dict[str, tuple[Network, ...]] = {}
        self._owners: dict[tuple[int, int], dict[int, tuple[str, ...]]] = {}
        """By IP version and prefix length, then by the network's number."""

    def put(self, node: str, written: tuple[str, ...]) -> set[Network]:
        """Replace a Node's networks; returns those that it did not have before, or has no longer."""
        before = self._networks.pop(node, ())
        after = tuple(dict.fromkeys(network for network in map(_parsed, written) if network is not None))
        if after:
            self._networks[node] = after
        changed = set(before) ^ set(after)
        for network in changed:
            same_length = self._owners.setdefault((network.version, network.prefixlen), {})
            number = int(network.network_address)
            owners = same_length.pop(number, ())
            left = tuple([owner for owner in owners if owner != node]) if node in owners else (*owners, node)
            if left:
                same_length[number] = left
            elif not same_length:
                del self._owners[network.version, network.prefixlen]
        return changed

    def owner(self, address: str) -> str | None:
        """The Node in whose pod network a (canonical) address is."""
        if not self._owners:
            return None
        parsed = ip_address(address)
        number, bits = int(parsed), parsed.max_prefixlen
        for (version, length), networks in self._owners.items():
            owners = networks.get(number >> (bits - length) << (bits - length)) if version == parsed.version else None
            if owners:
                return owners[0]
        return None


class _SortedAddresses:
    """Addresses in their order, so that those in a network are found by bisection."""

    def __init__(self) -> None:
        self._numbers: dict[int, list[tuple[int, str]]] = {4: [], 6: []}

    def toggle(self, address: str) -> None:
        """Add a (canonical) address, or take it out if it is there."""
        parsed = ip_address(address)
        numbers, entry = self._numbers[parsed.version], (int(parsed), address)
        at = bisect_left(numbers, entry)
        if at < len(numbers) and numbers[at] == entry:
            del numbers[at]
        else:
            insort(numbers, entry)

    def within(self, network: Network) -> list[str]:
        """The addresses in this network."""
        numbers = self._numbers[network.version]
        begin = bisect_left(numbers, (int(network.network_address), ""))
        end = bisect_right(numbers, (int(network.broadcast_address), "~"))
        return [address for _, address in numbers[begin:end]]


def _parsed(text: str) -> Network | None:
    """A network, None if it is none or larger than those of a Node can be."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    return network if network.prefixlen >= _SHORTEST[network.version] else None
