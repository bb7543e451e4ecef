"""Decides from the settings and the node's facts what the rules of a family do; backends write them in their terms."""

from kroute.model.addresses import Family, family_of
from kroute.model.node_facts import NodeFacts
from kroute.settings import Exemption, Settings


def are_local_pods_known(settings: Settings, family: Family, node: NodeFacts) -> bool:
    """Whether every packet that does not come from a local pod may be masqueraded on its way to a ClusterIP.

    Otherwise packets of clients outside the cluster cannot be recognised.

    In mode ClusterCIDR that needs a cluster CIDR of this family. Without one, other rules recognise this node's pods by
    the Node's pod networks. These do not suffice here: pods of other nodes are outside of them, and their packets must
    not be masqueraded.
    """
    networks = {"ClusterCIDR": settings.cluster_cidrs, "NodeCIDR": node.pod_cidrs}.get(settings.detect_local_mode)
    return networks is None or any(family_of(cidr) is family for cidr in networks)


def local_pods_interface(settings: Settings) -> str | None:
    """The interface of this node's pods, or a prefix of their names that ends in `+`.

    None: the set AddressSet.POD_NETWORK has their networks (`--detect-local-mode`, as kube-proxy's `detectLocalMode`).
    While that set is empty, no packet counts as one of a local pod.
    """
    if settings.detect_local_mode == "BridgeInterface":
        return settings.pod_bridge_interface
    if settings.detect_local_mode == "InterfaceNamePrefix":
        return f"{settings.pod_interface_name_prefix}+"
    return None


def pods_masqueraded(settings: Settings, family: Family) -> list[str]:
    """The networks of this family whose pods call what is outside of them with their node's address."""
    return pods_in_tunnels(settings, family) if settings.masquerades_pods else []


def pods_in_tunnels(settings: Settings, family: Family) -> list[str]:
    """The networks of this family whose pods reach other nodes through tunnels."""
    return [cidr for cidr in settings.cluster_cidrs if family_of(cidr) is family] if settings.pod_network else []


def exemptions_of(settings: Settings, family: Family) -> list[Exemption]:
    """The exemptions of this family (`--masquerade-exempt`)."""
    return [exemption for exemption in settings.masquerade_exemptions if family_of(exemption.source) is family]


def tunnels_source(settings: Settings, family: Family, node: NodeFacts) -> str | None:
    """The source of what is masqueraded into tunnels: the answer to another address of the node went another way."""
    return (node.ipv4 if family is Family.IPV4 else node.ipv6) if settings.pod_network else None


def translated_source(settings: Settings, family: Family, node: NodeFacts) -> str | None:
    """The source of masqueraded packets (`--snat-source`). None: the kernel chooses one of the node's own.

    It is also None while the node's own address is not known.
    """
    address = node.ipv4 if family is Family.IPV4 else node.ipv6
    return address if settings.snat_source == "node-ip" else None
