"""What a Service asks of the allocator of LoadBalancer addresses: which addresses, and with whom to share them.

The plan of a node needs neither; here the values are checked. `kroute.planning.address_allocation` obeys them.
"""

import msgspec

from kroute.model.addresses import canonical, family_of
from kroute.planning.options import Annotation, Applied, Options, names
from kroute.settings.text import LABEL_VALUE


class AskedAddresses(msgspec.Struct, frozen=True):
    """The addresses that the Service asks for, at most one of each family."""

    addresses: tuple[str, ...]


class SharingKey(msgspec.Struct, frozen=True):
    """Services with one key may have one address, if they have no port in common."""

    text: str


def _apply_addresses(options: Options, value: str) -> Applied:
    words = value.split(",", 2)
    found = [address for word in words if (address := canonical(word.strip())) is not None]
    if len(found) != len(words) or len({family_of(address) for address in found}) != len(found):
        return options, "asks for no address; any free one serves"
    return options.asking(AskedAddresses(tuple(found))), None


def _apply_key(options: Options, value: str) -> Applied:
    if not LABEL_VALUE.fullmatch(value):
        return options, "is no key; the Service shares its addresses with none"
    return options.asking(SharingKey(value)), None


ADDRESSES = Annotation(
    names=names("load-balancer-ips"),
    meaning="the addresses that kroute allocates to the Service, in place of any free ones",
    allowed="an IPv4 address, an IPv6 address, or both, separated by a comma",
    apply=_apply_addresses,
)
SHARING = Annotation(
    names=names("share-load-balancer-ip"),
    meaning="Services with the same value may be allocated one address, if they have no port in common",
    allowed="1 to 63 letters, digits and - _ . between them",
    apply=_apply_key,
)
ANNOTATIONS = (ADDRESSES, SHARING)
