"""Read what the annotations of a Node say of BGP. Their names are kube-router's, with its prefix or kroute's.

What is wrong is one Problem that never repeats a password, and nothing else is lost: a bad peer costs that peer.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address
from typing import Any, TypeVar

import msgspec

from kroute.model.addresses import canonical, family_of, network, unicast
from kroute.model.plan import Problem, quoted
from kroute.model.speaker import BGP_PORT, Bfd, Community, Peer, Secret, checked_password

T = TypeVar("T")

PREFIXES = ("kroute.io/", "kube-router.io/")
"""In the order in which they count."""
ASN, SERVER, CLIENT = "node.asn", "rr.server", "rr.client"
COMMUNITIES, REJECTED = "node.bgp.communities", "node.bgp.customimportreject"
PREPENDED, REPEATED = "path-prepend.as", "path-prepend.repeat-n"
PEERS, IPS, ASNS, PORTS = "peers", "peer.ips", "peer.asns", "peer.ports"
PASSWORDS, LOCAL_IPS = "peer.passwords", "peer.localips"
WORDS = (ASN, SERVER, CLIENT, COMMUNITIES, REJECTED, PREPENDED, REPEATED, PEERS, IPS, ASNS, PORTS, PASSWORDS, LOCAL_IPS)
NAMES = frozenset(prefix + word for prefix in PREFIXES for word in WORDS)

MOST = 100
"""Peers, communities or networks that one annotation may name."""
MOST_REPEATED = 255
_RESERVED = frozenset({0, 23456, 65535, 4294967295})
"""AS numbers that nobody has (RFC 7607, 6793, 7300)."""
_WELL_KNOWN = {
    "internet": (0, 0),
    "planned-shut": (65535, 0),
    "accept-own": (65535, 1),
    "route-filter-translated-v4": (65535, 2),
    "route-filter-v4": (65535, 3),
    "route-filter-translated-v6": (65535, 4),
    "route-filter-v6": (65535, 5),
    "llgr-stale": (65535, 6),
    "no-llgr": (65535, 7),
    "blackhole": (65535, 666),
    "no-export": (65535, 65281),
    "no-advertise": (65535, 65282),
    "no-export-subconfed": (65535, 65283),
    "no-peer": (65535, 65284),
}
"""IANA's registry of well-known communities, by the names that kube-router knows."""


class PeerDefaults(msgspec.Struct, frozen=True):
    """What a peer has whose annotation does not say it. `bfd` None: none."""

    local_of: Callable[[str], str | None]
    """This node's address of the family of a peer's address."""
    ttl: int
    has_ttl_security: bool
    bfd: Bfd | None
    usual_bfd: Bfd


class _BfdText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    port: int | None = None
    detection_multiplier: int | None = None
    required_min_rx_interval: int | None = None
    desired_min_tx_interval: int | None = None


class _PeerText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An element of `kube-router.io/peers`. The last two fields are kroute's own."""

    remoteip: str
    remoteasn: int
    localip: str | None = None
    password: str | None = None
    port: int | None = None
    bfd: _BfdText | None = None
    multihop: int | None = None
    ttlsecurity: bool | None = None


class Reader:
    """Reads the annotations of one Node. `problems` are those found so far."""

    def __init__(self, annotations: Mapping[str, str] | None) -> None:
        self._annotations = annotations or {}
        self.problems: list[Problem] = []

    def text(self, word: str) -> str | None:
        """The value of an annotation, by the first of its names."""
        return self._annotations.get(self._name(word))

    def value(self, word: str, read: Callable[[str], T], otherwise: T) -> T:
        """The value as `read` reads it (ValueError), or with a Problem the other one."""
        if (text := self.text(word)) is None:
            return otherwise
        try:
            return read(text.strip())
        except ValueError as error:
            self.refuse(word, str(error))
            return otherwise

    def all(self, word: str, read: Callable[[str], T]) -> tuple[T, ...]:
        """The elements of a list, separated by commas, each as `read` reads it; with a Problem for each bad one."""
        found: dict[T, None] = {}
        for text in self.elements(word):
            try:
                found[read(text)] = None
            except ValueError as error:
                self.refuse(word, str(error))
        return tuple(found)

    def elements(self, word: str) -> list[str]:
        """The elements of a list, separated by commas."""
        text = self.text(word)
        elements = [element.strip() for element in text.split(",")] if text and text.strip() else []
        if len(elements) > MOST:
            self.refuse(word, f"has {len(elements)} elements; the first {MOST} count")
        return elements[:MOST]

    def refuse(self, word: str, why: str) -> None:
        """Report what is wrong with an annotation."""
        name = self._name(word)
        self.problems.append(Problem("InvalidAnnotation", f"annotation {name}: {why}", f"annotation {name}: {why}."))

    def prepended(self) -> tuple[int, ...]:
        """The AS number that goes in front of the path, as often as it does."""
        asn, times = self.value(PREPENDED, read_asn, 0), self.value(REPEATED, _read_times, 0)
        if (self.text(PREPENDED) is None) != (self.text(REPEATED) is None):
            self.refuse(PREPENDED, f"nothing is put in front of the path: {PREPENDED} and {REPEATED} need each other")
        return (asn,) * times if asn else ()

    def peers(self, defaults: PeerDefaults, read_yaml: Callable[[str], Any]) -> list[Peer]:
        """The Node's own peers: by the annotation `peers`, or without it by the older ones, a list each."""
        if (text := self.text(PEERS)) is None:
            return [*self._found(ASNS, _parallel(self), defaults)]
        try:
            written = read_yaml(text)
        except ValueError as error:
            self.refuse(PEERS, f"no peer of it is known: {error}")
            return []
        if not isinstance(written, list) or len(written) > MOST:
            self.refuse(PEERS, f"no peer of it is known: a list of at most {MOST} peers is allowed")
            return []
        return [*self._found(PEERS, written, defaults)]

    def _name(self, word: str) -> str:
        """The first of an annotation's names that the Node has."""
        return next((prefix + word for prefix in PREFIXES if prefix + word in self._annotations), PREFIXES[0] + word)

    def _found(self, word: str, written: Sequence[Any], defaults: PeerDefaults) -> Iterator[Peer]:
        for number, each in enumerate(written, 1):
            try:
                yield _peer(msgspec.convert(each, _PeerText), defaults)
            except (msgspec.ValidationError, ValueError) as error:
                self.refuse(word, f"peer {number} is left out: {error}")


def read_asn(text: str) -> int:
    """An AS number that a router may have. Raises ValueError."""
    return checked_asn(int(text) if text.isascii() and text.isdigit() and len(text) < 11 else 0, text)


def checked_asn(number: int, text: str = "") -> int:
    """The same number, if a router may have it. Raises ValueError."""
    if not 0 < number < 1 << 32 or number in _RESERVED:
        raise ValueError(f"{quoted(text or str(number))} is not an AS number: 1 to 4294967294, but some reserved ones")
    return number


def read_cluster_id(text: str) -> str:
    """The id of a route reflector's cluster: a number of 32 bits or an IPv4 address; as an address."""
    try:
        identity = IPv4Address(int(text) if text.isascii() and text.isdigit() and len(text) < 11 else text)
    except ValueError:
        identity = IPv4Address(0)
    if not int(identity):
        raise ValueError(f"{quoted(text)} is not a cluster id: a number of 32 bits or an IPv4 address is allowed")
    return str(identity)


def read_community(text: str) -> Community:
    """A community as one number, as two or three with colons, or by its well-known name. Raises ValueError."""
    if (known := _WELL_KNOWN.get(text.lower())) is not None:
        return known
    words = text.split(":")
    if all(word.isascii() and word.isdigit() and len(word) < 11 for word in words):
        match [int(word) for word in words]:
            case [number] if number < 1 << 32:
                return number >> 16, number & 0xFFFF
            case [_, _] as pair if max(pair) < 1 << 16:
                return tuple(pair)
            case [_, _, _] as large if max(large) < 1 << 32:
                return tuple(large)
    raise ValueError(f"{quoted(text)} is not a community: one to three numbers with colons, or a name, are allowed")


def read_network(text: str) -> str:
    """A network. Raises ValueError."""
    try:
        return str(network(text))
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a network") from None


def _read_times(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 3 or not 0 < int(text) <= MOST_REPEATED:
        raise ValueError(f"{quoted(text)} is not from 1 to {MOST_REPEATED}")
    return int(text)


def _decoded(text: str) -> Secret:
    """A password that is encoded by base64, as kube-router has it, mostly with the end of a line."""
    try:
        return checked_password(base64.b64decode(text, validate=True).decode().rstrip("\r\n"))
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("its password is not base64") from None


def _peer(written: _PeerText, defaults: PeerDefaults) -> Peer:
    """The peer. Raises ValueError with what is wrong."""
    address = peer_address(written.remoteip)
    local = canonical(written.localip) if written.localip else defaults.local_of(address)
    if local is None or family_of(local) is not family_of(address):
        raise ValueError(f"this node has no address for {address}: localip must be one of its family")
    ttl = defaults.ttl if written.multihop is None else written.multihop
    port = written.port or BGP_PORT
    if not 1 <= port <= 65535 or not 0 <= ttl <= 255:
        raise ValueError(f"port {port} or multihop {ttl} is out of range")
    has_security = defaults.has_ttl_security if written.ttlsecurity is None else written.ttlsecurity
    return Peer(
        address=address,
        asn=checked_asn(written.remoteasn),
        local=local,
        port=port,
        ttl=ttl,
        has_ttl_security=has_security,
        bfd=defaults.bfd if written.bfd is None else _bfd(written.bfd, defaults.usual_bfd),
        password=_decoded(written.password) if written.password else None,
    )


def peer_address(text: str) -> str:
    """The address of a router, in canonical text. Raises ValueError."""
    if (address := unicast(text)) is None:
        raise ValueError(f"{quoted(text)} is not an address of a router: unicast ones that are not link-local are")
    return address


def _bfd(written: _BfdText, usual: Bfd) -> Bfd | None:
    """BFD as it is written. BIRD has the standard's port only."""
    bfd = Bfd(
        written.required_min_rx_interval or usual.receive,
        written.desired_min_tx_interval or usual.send,
        written.detection_multiplier or usual.multiplier,
    )
    if not (1 <= bfd.receive <= 60_000 and 1 <= bfd.send <= 60_000 and 1 <= bfd.multiplier <= 255):
        raise ValueError("its bfd is out of range: intervals of 1 to 60000 ms and a multiplier of 1 to 255 are allowed")
    return bfd if written.enabled else None


def _parallel(reader: Reader) -> list[dict[str, Any]]:
    """The peers of the older annotations: element after element of each list. An empty element is the default."""
    ips, asns = reader.elements(IPS), reader.elements(ASNS)
    if not ips and not asns:
        return []
    more = {"port": PORTS, "password": PASSWORDS, "localip": LOCAL_IPS}
    columns = {field: elements for field, word in more.items() if (elements := reader.elements(word))}
    for word, elements in ((ASNS, asns), *((more[field], elements) for field, elements in columns.items())):
        if len(elements) != len(ips):
            reader.refuse(word, f"no peer is known: {IPS} has {len(ips)} elements, and this list {len(elements)}")
            return []
    both = zip(ips, asns, strict=True)
    peers: list[dict[str, Any]] = [{"remoteip": ip, "remoteasn": _number(asn)} for ip, asn in both]
    for field, elements in columns.items():
        for peer, element in zip(peers, elements, strict=True):
            if element:
                peer[field] = _number(element) if field == "port" else element
    return peers


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else -1
