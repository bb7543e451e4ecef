"""The IP sets that the rules look up: one of each kind for each address family."""

import socket
from functools import lru_cache
from typing import NamedTuple

from kroute.kernel.ipset import SetDefinition
from kroute.model.plan import AddressSet

PREFIX = "KROUTE-"
"""With which the name of everything begins that kroute makes in iptables and ipset."""

MAX_ENTRIES = 262_144
"""Of each set. The kernel's own default of 65,536 is less than a large cluster's ports."""

HASH_SIZE = 1024
"""With which a set begins; it grows by itself."""


class Family(NamedTuple):
    """An address family: its number, how people and set names spell it."""

    number: int
    name: str
    set_prefix: str

    def set_name(self, which: AddressSet) -> str:
        """The name of this family's set; each is one string, however many entries bear it."""
        return _set_name(self.set_prefix, which)


@lru_cache(64)
def _set_name(prefix: str, which: AddressSet) -> str:
    return f"{prefix}{which}"


IPV4 = Family(socket.AF_INET, "IPv4", PREFIX)
IPV6 = Family(socket.AF_INET6, "IPv6", f"{PREFIX}6-")
FAMILIES = (IPV4, IPV6)

SET_TYPES = {
    AddressSet.CLUSTER_IP: "hash:ip,port",
    AddressSet.EXTERNAL: "hash:ip,port",
    AddressSet.EXTERNAL_LOCAL: "hash:ip,port",
    AddressSet.NO_LOCAL: "hash:ip,port",
    AddressSet.NO_ENDPOINT: "hash:ip,port",
    AddressSet.RESTRICTED: "hash:ip,port",
    AddressSet.SOURCE_RANGE: "hash:ip,port,net",
    AddressSet.HAIRPIN: "hash:ip,port,ip",
    AddressSet.VIP: "hash:ip",
    AddressSet.POD_NETWORK: "hash:net",
}

SERVED = (AddressSet.CLUSTER_IP, AddressSet.EXTERNAL, AddressSet.EXTERNAL_LOCAL)
"""The sets of the ports that something serves: a VIP answers on these and on no other."""


def family_of(address: str) -> Family:
    """The family of an address or network."""
    return IPV6 if ":" in address else IPV4


def set_definitions() -> list[SetDefinition]:
    """All sets of both families."""
    return [
        SetDefinition(family.set_name(which), type_, family.number, HASH_SIZE, MAX_ENTRIES)
        for family in FAMILIES
        for which, type_ in SET_TYPES.items()
    ]
