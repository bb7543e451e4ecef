"""Plan where and how load balancers ask whether this node serves a Service (`healthCheckNodePort`)."""

from collections.abc import Iterator, Mapping

from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Service
from kroute.model.plan import AddressSet, HealthCheck, Protocol, SetEntry
from kroute.planning.endpoints import LOCAL, MergedSlices, ready_on


def health_check_of(service: Service, merged: Mapping[Family, MergedSlices], node: NodeFacts) -> HealthCheck | None:
    """Where load balancers ask for this node's endpoints; None if nowhere."""
    port = service.spec.health_check_node_port
    if not 1 <= port <= 65535 or service.spec.type != "LoadBalancer" or service.spec.external_traffic_policy != LOCAL:
        return None
    return HealthCheck(port, ready_on(node, merged.values()))


def health_check_entries(check: HealthCheck, node: NodeFacts) -> Iterator[SetEntry]:
    """Where the node's firewall lets load balancers in, as kube-proxy does on every address."""
    for address in node.node_port_addresses:
        yield SetEntry(AddressSet.HEALTH_CHECK, (address, int(Protocol.TCP), check.port))
