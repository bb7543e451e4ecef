"""Addresses as plans hold them: valid, and in canonical text, so that equal addresses are equal strings."""

from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton


class Family(StrEnum):
    """An address family, spelled as `addressType` of an EndpointSlice spells it."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"

    @property
    def number(self) -> int:
        """The kernel's number of the family (AF_INET, AF_INET6)."""
        return AF_INET if self is _IPV4 else AF_INET6


_IPV4, _IPV6 = Family  # module-level names: a lookup in an Enum's class takes several times as long

LOOPBACK = ("127.", "::1")
"""What the addresses of the loopback begin with."""
_SPECIAL_IPV4 = frozenset({0, 127, *range(224, 256)})
"""First octets: this network, loopback, multicast, reserved and broadcast."""
_LINK_LOCAL_IPV4 = b"\xa9\xfe"
_CLOUD_SERVICES = frozenset(
    inet_pton(AF_INET6 if ":" in address else AF_INET, address)
    for address in (
        "168.63.129.16",
        "100.100.100.200",
        "fd00:ec2::254",
        "fd00:ec2::253",
        "fd00:ec2::123",
        "fd20:ce::254",
    )
)
"""Where clouds tell a machine who it is, and what names and time are (Azure, Alibaba, AWS, GCP), besides 169.254/16."""
_IPV4_IN_IPV6 = frozenset({bytes(12), bytes(10) + b"\xff\xff"})


def family_of(address: str) -> Family:
    """The family of a valid address or network."""
    return _IPV6 if ":" in address else _IPV4


def canonical(text: str) -> str | None:
    """The address in canonical text (RFC 5952 for IPv6), or None if `text` is no address.

    Text that is already canonical is returned as the same object, so that plans hold no second copy of it.
    """
    try:
        return _text(inet_pton(AF_INET6 if ":" in text else AF_INET, text), text)
    except (OSError, ValueError):
        return None


def unicast(text: str) -> str | None:
    """The address in canonical text if a VIP or an endpoint may have it, else None.

    Addresses that mean something else on every machine (unspecified, loopback, link-local, multicast, broadcast, and
    IPv4 written as IPv6), and those of clouds' own services, would cut a node off, or lead nowhere. The API refuses
    most of them; a manifest file may not.
    """
    is_ipv6 = ":" in text
    try:
        packed = inet_pton(AF_INET6 if is_ipv6 else AF_INET, text)
    except (OSError, ValueError):
        return None
    if not is_ipv6:
        special = packed[0] in _SPECIAL_IPV4 or packed[:2] == _LINK_LOCAL_IPV4 or packed in _CLOUD_SERVICES
        return None if special else text
    link_local = packed[0] == 0xFE and packed[1] & 0xC0 == 0x80
    special = packed[0] == 0xFF or link_local or packed[:12] in _IPV4_IN_IPV6 or packed in _CLOUD_SERVICES
    return None if special else _text(packed, text)


def network(text: str) -> IPv4Network | IPv6Network:
    """The network that the text names; what is right of its prefix is left out.

    Raises ValueError for anything else, also for a network in a zone (`fe80::%eth0/64`): no set can have that.
    """
    if "%" in text:
        raise ValueError(f"{text!r} is in a zone")
    return ip_network(text, strict=False)


def networks(texts: Iterable[str]) -> list[IPv4Network | IPv6Network]:
    """The networks among these texts."""
    found = []
    for text in texts:
        with suppress(ValueError):
            found.append(network(text))
    return found


def is_subnet_of(inner: IPv4Network | IPv6Network, outer: IPv4Network | IPv6Network) -> bool:
    """Whether one network is a part of another; never, if they are of two families."""
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, IPv6Network) and inner.subnet_of(outer)


def _text(packed: bytes, written: str) -> str:
    """The address in canonical text. `inet_pton` accepts only canonical IPv4, so that is returned as written."""
    if len(packed) == 4:
        return written
    text = inet_ntop(AF_INET6, packed)
    return written if written == text else text
