"""The matches that the rules of all tables have in common."""

from collections.abc import Mapping

from kroute.firewall.iptables.address_sets import set_name
from kroute.firewall.policy import local_pods_interface
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet
from kroute.settings import Settings

_LOOKED_UP: Mapping[AddressSet, str] = {
    AddressSet.SOURCE_RANGE: "dst,dst,src",
    AddressSet.HAIRPIN: "dst,dst,src",
    AddressSet.VIP: "dst",
    AddressSet.POD_NETWORK: "src",
}
"""Which parts of a packet are looked up in a set; in all others, its destination and port."""


def in_set(family: Family, which: AddressSet) -> str:
    """The match of packets that are in a set."""
    return f"-m set --match-set {_named(family, which)}"


def not_in_set(family: Family, which: AddressSet) -> str:
    """The match of packets that are not."""
    return f"-m set ! --match-set {_named(family, which)}"


def not_from_local_pods(settings: Settings, family: Family) -> str:
    """The match of packets that do not come from a local pod.

    Packets of this node's own processes have no input interface, and so they match too. By networks they match unless
    their source is in one of them; a set without networks matches everybody's packets.
    """
    interface = local_pods_interface(settings)
    return f"! -i {interface}" if interface is not None else not_in_set(family, AddressSet.POD_NETWORK)


def _named(family: Family, which: AddressSet) -> str:
    return f"{set_name(family, which)} {_LOOKED_UP.get(which, 'dst,dst')}"
