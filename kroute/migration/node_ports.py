"""The node ports that Services have, and where they lead: evidence for whose virtual server one on a node port is."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

from kroute.model.addresses import canonical
from kroute.model.objects import Applied, Change, EndpointSlice, ObjectKey, Service
from kroute.model.plan import Protocol, VirtualServerKey

AllocatedNodePorts = Mapping[tuple[Protocol, int], Set[str]]
"""The addresses of all endpoints, whatever their conditions, of the Service that has this protocol and node port."""


def allocated_node_ports(changes: Iterable[Change]) -> AllocatedNodePorts:
    """The node ports of these Services, with the endpoints of these EndpointSlices."""
    items = [change.item for change in changes if isinstance(change, Applied)]
    endpoints: dict[ObjectKey | None, set[str]] = defaultdict(set)
    for item in items:
        if isinstance(item, EndpointSlice):
            written = [it.addresses[0] for it in item.endpoints or () if it.addresses]
            endpoints[item.service_key].update(filter(None, map(canonical, written)))
    return {
        (Protocol[port.protocol], port.node_port): endpoints[service.key]
        for service in items
        if isinstance(service, Service)
        for port in service.spec.ports or ()
        if port.node_port and port.protocol in Protocol.__members__
    }


def serves(allocated: AllocatedNodePorts, key: VirtualServerKey, real_servers: Set[str]) -> bool:
    """Whether a virtual server on an address of the node serves the Service that has its port.

    One endpoint in common is enough: the others may be gone since the virtual server was last written. A virtual server
    without real servers serves nobody else either.
    """
    endpoints = allocated.get((key.protocol, key.port))
    return endpoints is not None and (not real_servers or not endpoints.isdisjoint(real_servers))
