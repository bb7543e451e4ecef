"""How a rule tells this node's pods from everybody else: `--detect-local-mode`, as kube-proxy's `detectLocalMode`."""

from kroute.controllers.masquerade.address_sets import Family, family_of
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet
from kroute.settings import Settings


def not_from_local_pods(settings: Settings, family: Family) -> str:
    """The match of packets that do not come from a local pod.

    Packets of this node's own processes have no input interface, and so they match too. By networks they match unless
    their source is in one of them; a set without networks matches everybody's packets.
    """
    if settings.detect_local_mode == "BridgeInterface":
        return f"! -i {settings.pod_bridge_interface}"
    if settings.detect_local_mode == "InterfaceNamePrefix":
        return f"! -i {settings.pod_interface_name_prefix}+"
    return f"-m set ! --match-set {family.set_name(AddressSet.POD_NETWORK)} src"


def are_local_pods_known(settings: Settings, family: Family, node: NodeFacts) -> bool:
    """Whether one may conclude from `not_from_local_pods` that a packet comes from outside the cluster.

    The networks of a Node do, for want of better ones, tell its own pods from clients outside even in mode ClusterCIDR;
    but the pods of other nodes are outside of them, and are not to be masqueraded.
    """
    if settings.detect_local_mode == "ClusterCIDR":
        return any(family_of(cidr) is family for cidr in settings.cluster_cidrs)
    if settings.detect_local_mode == "NodeCIDR":
        return any(family_of(cidr) is family for cidr in node.pod_cidrs)
    return True
