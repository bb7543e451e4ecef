"""Which addresses Services name, and which Node or Service already has one, so that no other Service gets it.

A cluster has thousands of Nodes and thousands of external addresses, so neither look-up walks through all.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from kroute.model.addresses import Family, canonical, family_of
from kroute.model.objects import Node, ObjectKey, Service
from kroute.planning.index import Index
from kroute.planning.options import SKIP_LOAD_BALANCER_IPS, alone

MOST_ADDRESSES = 1000
"""External IPs of one Service that are looked at, and as many addresses of its load balancer."""

API_SERVER = ObjectKey("default", "kubernetes")
"""The Service whose endpoints are the API servers: the API server writes it itself."""

_SHORTEST = {4: 16, 6: 48}
"""Prefix lengths. A network that is larger is no Node's pod network: kube-controller-manager gives out smaller ones."""
_BITS = {4: 32, 6: 128}
_NO_CLUSTER_IP = frozenset({"", "None"})


class _Prefix(NamedTuple):
    """A network: its IP version, and the first `length` bits of its addresses as a number."""

    version: int
    length: int
    number: int


class AddressOwners:
    """The owners of addresses: Nodes, their pods, Services by a ClusterIP, and Services that name one from outside.

    Each `place_` returns the Services to plan again: those whose external addresses gained or lost an owner. With
    `shared`, also those that begin or cease to be the only one that names an external address.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._follows_sharing = shared
        self._nodes = Index[str, str]()
        self._cluster_ips = Index[ObjectKey, str]()
        self._external_ips = Index[ObjectKey, str]()
        self._external_in_order: list[tuple[int, int, str]] = []
        """The version, number and text of each external address, sorted: those in a network are found by bisection."""
        self._pod_lengths: set[tuple[int, int]] = set()
        """The versions and lengths of all networks that were in `_pod_networks`: mostly one of each version."""
        self._pod_networks = Index[str, _Prefix]()
        """The networks of each Node (`spec.podCIDRs`). A kubelet may write them while they are empty, so it may lie."""
        self._api_servers: frozenset[str] = frozenset()

    def place_node(self, name: str, node: Node | None) -> set[ObjectKey]:
        """Take a Node's InternalIPs and ExternalIPs, and the networks of its pods; None: it is gone."""
        addresses = node.status.addresses or () if node is not None else ()
        pod_cidrs = node.spec.pod_cidrs or () if node is not None else ()
        changed = self._nodes.put(name, _canonical(one.address for one in addresses if one.type.endswith("IP")))
        networks = self._pod_networks.put(name, filter(None, map(_parsed, pod_cidrs)))
        self._pod_lengths |= {(network.version, network.length) for network in networks}
        within = (address for network in networks for address in self._external_within(network))
        return self.naming({*changed, *within})

    def place_service(self, key: ObjectKey, service: Service | None) -> set[ObjectKey]:
        """Take a Service's addresses; None: it is gone."""
        outside, inside = (external_ips(service), cluster_ips(service)) if service is not None else ((), ())
        affected: set[ObjectKey] = set()
        for address in self._external_ips.put(key, _canonical(outside)):
            owners = self._external_ips.owners(address)
            if owners == (key,):
                insort(self._external_in_order, _in_order(address))
            elif not owners:
                del self._external_in_order[bisect_left(self._external_in_order, _in_order(address))]
            if self._follows_sharing and len(owners) <= 2:
                affected.update(owners)
        return affected | self.naming(self._cluster_ips.put(key, _canonical(inside)))

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
        """The Node in whose pod network this (canonical) address is."""
        if not self._pod_networks.all_owners():
            return None
        parsed = ip_address(address)
        number, version = int(parsed), parsed.version
        bits = _BITS[version]
        lengths = sorted(length for of, length in self._pod_lengths if of == version)
        prefixes = (_Prefix(version, length, number >> (bits - length)) for length in lengths)
        return next((owners[0] for prefix in prefixes if (owners := self._pod_networks.owners(prefix))), None)

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

    def _external_within(self, network: _Prefix) -> list[str]:
        """The external addresses in this network."""
        in_order, host_bits = self._external_in_order, _BITS[network.version] - network.length
        begin = bisect_left(in_order, (network.version, network.number << host_bits, ""))
        end = bisect_left(in_order, (network.version, (network.number + 1) << host_bits, ""))
        return [address for _, _, address in in_order[begin:end]]


def _in_order(address: str) -> tuple[int, int, str]:
    parsed = ip_address(address)
    return parsed.version, int(parsed), address


def _canonical(written: Iterable[str]) -> Iterator[str]:
    """The addresses among these texts, in canonical text."""
    return (address for address in map(canonical, written) if address is not None)


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


def _parsed(text: str) -> _Prefix | None:
    """A network, None if it is none or larger than those of a Node can be."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    version, length = network.version, network.prefixlen
    number = int(network.network_address) >> (network.max_prefixlen - length)
    return _Prefix(version, length, number) if length >= _SHORTEST[version] else None
