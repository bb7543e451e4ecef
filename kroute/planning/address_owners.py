"""Index which Node or Service already has an address, so that no other Service gets it as an external address."""

from collections.abc import Collection, Iterable, Set
from typing import Generic, TypeVar

from kroute.model.addresses import canonical
from kroute.model.objects import Node, ObjectKey, Service
from kroute.planning.service_addresses import cluster_ips, external_ips

K = TypeVar("K")


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

    def owners(self, address: str) -> Collection[K]:
        return self._owners.get(address, ())

    def all_owners(self) -> Collection[K]:
        return self._addresses.keys()


class AddressOwners:
    """The addresses of all Nodes, the ClusterIPs of all Services, and the Services that name each external address.

    Each `place_` and `forget_` returns the Services to plan again: those whose external addresses gained or lost an
    owner.
    """

    def __init__(self) -> None:
        self._nodes: _Index[str] = _Index()
        self._cluster_ips: _Index[ObjectKey] = _Index()
        self._external_ips: _Index[ObjectKey] = _Index()

    def place_node(self, node: Node) -> set[ObjectKey]:
        """Store a Node's InternalIPs and ExternalIPs."""
        addresses = node.status.addresses or ()
        return self.naming(self._nodes.put(node.key.name, (it.address for it in addresses if it.type.endswith("IP"))))

    def forget_node(self, name: str) -> set[ObjectKey]:
        return self.naming(self._nodes.put(name, ()))

    def place_service(self, key: ObjectKey, service: Service) -> set[ObjectKey]:
        """Store a Service's ClusterIPs and external addresses."""
        self._external_ips.put(key, external_ips(service))
        return self.naming(self._cluster_ips.put(key, cluster_ips(service)))

    def forget_service(self, key: ObjectKey) -> set[ObjectKey]:
        self._external_ips.put(key, ())
        return self.naming(self._cluster_ips.put(key, ()))

    def nodes_with(self, address: str) -> Collection[str]:
        return self._nodes.owners(address)

    def services_with(self, address: str) -> Collection[ObjectKey]:
        """The Services that have this ClusterIP."""
        return self._cluster_ips.owners(address)

    def with_external_ips(self) -> Collection[ObjectKey]:
        """The Services that name an external address."""
        return self._external_ips.all_owners()

    def naming(self, addresses: Iterable[str]) -> set[ObjectKey]:
        """The Services that name one of these addresses as an external address."""
        return {key for address in addresses for key in self._external_ips.owners(address)}
