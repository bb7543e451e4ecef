"""The addresses that a Service names, as written."""

from kroute.model.addresses import Family, family_of
from kroute.model.bounds import MOST_ADDRESSES
from kroute.model.objects import Service
from kroute.planning.annotations.options import Options
from kroute.planning.annotations.table import apply_annotations

_NO_CLUSTER_IP = frozenset({"", "None"})


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
    options, _ = apply_annotations(Options(), service.metadata.annotations)
    return () if options.skip_load_balancer_ips else found


def virtual_ips(service: Service, most: int = MOST_ADDRESSES) -> tuple[str, ...]:
    """The addresses of the Service's load balancer as written: not those with `ipMode: Proxy`, nor host names."""
    ingress = service.status.load_balancer.ingress
    if service.spec.type != "LoadBalancer" or not ingress:
        return ()
    return tuple(it.ip for it in ingress[:most] if it.ip and it.ip_mode in {None, "", "VIP"})


def has_family(service: Service, family: Family) -> bool:
    """Whether one of the ClusterIPs is of this family."""
    return any(family_of(address) == family for address in cluster_ips(service))


def has_node_ports(service: Service) -> bool:
    """Whether the Service has ports on the nodes' own addresses, or one port where load balancers ask for health."""
    spec = service.spec
    has_any = spec.health_check_node_port or any(it.node_port for it in spec.ports or ())
    return spec.type in {"NodePort", "LoadBalancer"} and bool(has_any)
