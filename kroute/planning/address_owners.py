"""Index which Node or Service already has an address, so that no other Service gets it as an external address."""

from collections.abc import Collection, Iterable, Set
from typing import Generic, TypeVar

from kroute.model.addresses import canonical
from kroute.model.objects import Node, ObjectKey, Service
from kroute.planning.pod_networks import PodNetworks, SortedAddresses
from kroute.planning.service_addresses import cluster_ips, external_ips

K = TypeVar("K")

API_SERVER = ObjectKey("default", "kubernetes")
"""The Service whose endpoints are the API servers: the API server writes it itself."""


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
            left = (*owners, owner) if owner not in owners else tuple(it for it in owners if it != owner)
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


class AddressOwners:
    """Who has which address: Nodes, their pods, Services as ClusterIP, and who names one from outside.

    Each `place_` and `forget_` returns the Services to plan again: those whose external addresses gained or lost an
    owner. With `shared`, also those that begin or cease to be the only one that names an external address.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._follows_sharing = shared
        self._nodes: _Index[str] = _Index()
        self._cluster_ips: _Index[ObjectKey] = _Index()
        self._external_ips: _Index[ObjectKey] = _Index()
        self._external_in_order = SortedAddresses()
        self._pod_networks = PodNetworks()
        self._api_servers: frozenset[str] = frozenset()

    def place_node(self, node: Node) -> set[ObjectKey]:
        """Take a Node's InternalIPs and ExternalIPs, and the networks of its pods."""
        written = [it.address for it in node.status.addresses or () if it.type.endswith("IP")]
        return self._set_node(node.key.name, written, node.spec.pod_cidrs or ())

    def forget_node(self, name: str) -> set[ObjectKey]:
        return self._set_node(name, (), ())

    def place_service(self, key: ObjectKey, service: Service) -> set[ObjectKey]:
        """Take a Service's addresses."""
        sharers = self._set_external(key, external_ips(service))
        return sharers | self.naming(self._cluster_ips.put(key, cluster_ips(service)))

    def forget_service(self, key: ObjectKey) -> set[ObjectKey]:
        sharers = self._set_external(key, ())
        return sharers | self.naming(self._cluster_ips.put(key, ()))

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
        return [it for it in owners if it != key][:1]

    def having(self, addresses: Iterable[str]) -> set[ObjectKey]:
        """The Services that have one of these addresses as ClusterIP."""
        return {key for address in addresses for key in self._cluster_ips.owners(address)}

    def _set_node(self, name: str, addresses: Iterable[str], pod_cidrs: tuple[str, ...]) -> set[ObjectKey]:
        networks = self._pod_networks.put(name, pod_cidrs)
        within = (address for network in networks for address in self._external_in_order.within(network))
        return self.naming({*self._nodes.put(name, addresses), *within})

    def _set_external(self, key: ObjectKey, written: Collection[str]) -> set[ObjectKey]:
        """Returns the Services for which it matters who else names an address: none unless that is followed."""
        sharers: set[ObjectKey] = set()
        if not written and key not in self._external_ips.all_owners():
            return sharers  # as most Services
        owned_before = {it: self._external_ips.is_owned(it) for it in map(canonical, written) if it is not None}
        for address in self._external_ips.put(key, owned_before):
            if owned_before.get(address, True) != self._external_ips.is_owned(address):
                self._external_in_order.toggle(address)
            owners = self._external_ips.owners(address)
            if self._follows_sharing and len(owners) <= 2:
                sharers.update(owners)
        return sharers
