"""Whose an address is already: what keeps one Service's external address from taking a node or another Service down."""

from collections.abc import Iterable, Set
from typing import Generic, TypeVar

from kroute.planning.addresses import canonical
from kroute.planning.objects import Node, ObjectKey, Service
from kroute.planning.service_addresses import cluster_ips, external_ips

K = TypeVar("K")


class _Index(Generic[K]):
    """Who names which addresses, in canonical text."""

    def __init__(self) -> None:
        self._addresses: dict[K, frozenset[str]] = {}
        self._owners: dict[str, set[K]] = {}

    def put(self, owner: K, written: Iterable[str]) -> Set[str]:
        """Replace what `owner` names; returns the addresses that it did not name before, or names no longer."""
        before = self._addresses.pop(owner, frozenset())
        after = frozenset(address for address in map(canonical, written) if address is not None)
        if after:
            self._addresses[owner] = after
        for address in before - after:
            self._owners[address].discard(owner)
            if not self._owners[address]:
                del self._owners[address]
        for address in after - before:
            self._owners.setdefault(address, set()).add(owner)
        return before ^ after

    def owners(self, address: str) -> Set[K]:
        """Who names this address."""
        return self._owners.get(address, frozenset())


class AddressOwners:
    """The addresses of all Nodes, the ClusterIPs of all Services, and who names an address from outside.

    Each method that takes something returns the Services to which that may matter: those whose external IPs and
    LoadBalancer addresses have found or lost another owner.
    """

    def __init__(self) -> None:
        self._nodes: _Index[str] = _Index()
        self._cluster_ips: _Index[ObjectKey] = _Index()
        self._external_ips: _Index[ObjectKey] = _Index()

    def place_node(self, node: Node) -> set[ObjectKey]:
        """Take a Node's InternalIPs and ExternalIPs."""
        addresses = node.status.addresses or ()
        return self._naming(self._nodes.put(node.key.name, (it.address for it in addresses if it.type.endswith("IP"))))

    def forget_node(self, name: str) -> set[ObjectKey]:
        """The Node is gone."""
        return self._naming(self._nodes.put(name, ()))

    def place_service(self, service: Service) -> set[ObjectKey]:
        """Take a Service's addresses."""
        self._external_ips.put(service.key, external_ips(service))
        return self._naming(self._cluster_ips.put(service.key, cluster_ips(service)))

    def forget_service(self, key: ObjectKey) -> set[ObjectKey]:
        """The Service is gone."""
        self._external_ips.put(key, ())
        return self._naming(self._cluster_ips.put(key, ()))

    def nodes_with(self, address: str) -> Set[str]:
        """The names of the Nodes that have this address."""
        return self._nodes.owners(address)

    def services_with(self, address: str) -> Set[ObjectKey]:
        """The Services that have this ClusterIP."""
        return self._cluster_ips.owners(address)

    def _naming(self, addresses: Iterable[str]) -> set[ObjectKey]:
        return {key for address in addresses for key in self._external_ips.owners(address)}
