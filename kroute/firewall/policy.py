"""What the rules of one family are to do, by the settings and the facts of the node. Each backend spells it out."""

from enum import Enum, auto

from kroute.model.addresses import Family, family_of
from kroute.model.node_facts import NodeFacts
from kroute.settings import Exemption, Settings


class Marked(Enum):
    """Whose packets to a ClusterIP are masqueraded."""

    EVERYBODY = auto()
    """`--masquerade-all`."""
    NOT_LOCAL_PODS = auto()
    NOBODY = auto()
    """Who is outside the cluster cannot be told."""


def masqueraded_to_cluster_ips(settings: Settings, family: Family, node: NodeFacts) -> Marked:
    """Whose packets to a ClusterIP are masqueraded."""
    if settings.masquerade_all:
        return Marked.EVERYBODY
    return Marked.NOT_LOCAL_PODS if are_local_pods_known(settings, family, node) else Marked.NOBODY


def are_local_pods_known(settings: Settings, family: Family, node: NodeFacts) -> bool:
    """Whether one may conclude from where a packet comes from that it comes from outside the cluster.

    The networks of a Node do, for want of better ones, tell its own pods from clients outside even in mode ClusterCIDR;
    but the pods of other nodes are outside of them, and are not to be masqueraded.
    """
    if settings.detect_local_mode == "ClusterCIDR":
        return any(family_of(cidr) is family for cidr in settings.cluster_cidrs)
    if settings.detect_local_mode == "NodeCIDR":
        return any(family_of(cidr) is family for cidr in node.pod_cidrs)
    return True


def local_pods_interface(settings: Settings) -> str | None:
    """The interface of this node's pods, or a prefix of their names that ends in `+`.

    None: they are told by AddressSet.POD_NETWORK (`--detect-local-mode`, as kube-proxy's `detectLocalMode`). Without
    networks in that set, nobody's packets come from a local pod.
    """
    if settings.detect_local_mode == "BridgeInterface":
        return settings.pod_bridge_interface
    if settings.detect_local_mode == "InterfaceNamePrefix":
        return f"{settings.pod_interface_name_prefix}+"
    return None


def exemptions_of(settings: Settings, family: Family) -> list[Exemption]:
    """`--masquerade-exempt`, as far as it is about this family."""
    return [it for it in settings.masquerade_exemptions if family_of(it.source) is family]


def translated_source(settings: Settings, family: Family, node: NodeFacts) -> str | None:
    """The source of masqueraded packets (`--snat-source`). None: the kernel chooses one of the node's own.

    It does so too as long as the node's own address is not known.
    """
    address = node.ipv4 if family is Family.IPV4 else node.ipv6
    return address if settings.snat_source == "node-ip" else None
