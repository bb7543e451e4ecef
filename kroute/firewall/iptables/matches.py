"""The matches that rules of several tables use."""

from kroute.firewall import reasons
from kroute.firewall.iptables.address_sets import set_name
from kroute.firewall.policy import local_pods_interface
from kroute.firewall.sets import LOOKED_UP, SHAPES, End, Part
from kroute.kernel.iptables.rule import comment
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet
from kroute.settings import Settings

OF_NO_CONNECTION = "-m conntrack --ctstate INVALID,NEW"
"""The match for the first packets of connections, and for what conntrack calls invalid.

Invalid are SYN-FIN, SYN-ACK, and packets with a wrong checksum, for example. IPVS makes a connection of every packet of
UDP and of every segment that has SYN (tcp_conn_schedule), so these are judged like the others.
"""


def without_syn() -> str:
    """The rule that lets TCP packets pass that do not open a connection, before any rule for new connections.

    After conntrack was loaded or flushed, such a packet of an established connection is NEW or INVALID
    (`nf_conntrack_tcp_loose`). Conntrack begins with the first rule that needs it: on a node that another proxy left
    without one, kroute's own.
    """
    return f"-p tcp -m tcp --tcp-flags SYN NONE {comment(reasons.NOT_BEGUN)} -j RETURN"


def in_set(family: Family, which: AddressSet) -> str:
    """The match for packets that are in a set."""
    return f"-m set --match-set {_named(family, which)}"


def not_in_set(family: Family, which: AddressSet) -> str:
    """The match for packets that are not in a set."""
    return f"-m set ! --match-set {_named(family, which)}"


def from_vip(family: Family) -> str:
    """The match for packets whose source is an address of Services."""
    return f"-m set --match-set {set_name(family, AddressSet.VIP)} src"


def not_from_local_pods(settings: Settings, family: Family) -> str:
    """The match for packets that do not come from a local pod.

    If local pods are recognised by interface, packets of this node's own processes match, because they have no input
    interface. If by networks, those match unless their source is in one; with an empty set every packet matches.
    """
    interface = local_pods_interface(settings)
    return f"! -i {interface}" if interface is not None else not_in_set(family, AddressSet.POD_NETWORK)


def _named(family: Family, which: AddressSet) -> str:
    """The set's name, and the packet's end for each part of an element."""
    ends = iter(LOOKED_UP[which])
    parts = [End.DESTINATION if part is Part.PORT else next(ends) for part in SHAPES[which]]
    return f"{set_name(family, which)} {','.join(parts)}"
