"""What the BGP speaker beside an agent is told, apart from the addresses that it announces."""

from typing import NamedTuple

import msgspec

from kroute.model.addresses import Family

BGP_PORT = 179
ESTABLISHED, UNKNOWN = "Established", "unknown"
"""The state of a session that is up, and of one of which the speaker says nothing."""
BFD_UP = "Up"
LONGEST_PASSWORD = 80
"""TCP_MD5SIG_MAXKEYLEN of the kernel."""


class Secret(msgspec.Struct, frozen=True):
    """A password that no text shows."""

    value: str

    def __repr__(self) -> str:
        return "Secret()"

    __str__ = __repr__


def checked_password(text: str) -> Secret:
    """A password that BIRD and the kernel can take. Raises ValueError, without the password."""
    if not text.isascii() or not text.isprintable() or '"' in text or not 0 < len(text) <= LONGEST_PASSWORD:
        raise ValueError(
            f"its password cannot be used: 1 to {LONGEST_PASSWORD} printable ASCII characters are allowed, without "
            "quotation marks"
        )
    return Secret(text)


class Bfd(NamedTuple):
    """How a failure of the way to a peer is found (RFC 5880): intervals in ms, and packets that are missed."""

    receive: int
    send: int
    multiplier: int


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One BGP session, from this node's address `local`.

    `is_node`: it is another node of the cluster, and `is_client`: this node reflects routes to it. `ttl`: how many hops
    away it may be; 0: it is a neighbour, or for iBGP anywhere. `has_ttl_security`: packets from farther away are
    dropped (RFC 5082). `password` is that of an annotation; there may be a file with another one.
    """

    address: str
    asn: int
    local: str
    port: int = BGP_PORT
    is_node: bool = False
    is_client: bool = False
    ttl: int = 0
    has_ttl_security: bool = False
    bfd: Bfd | None = None
    password: Secret | None = None


Community = tuple[int, ...]
"""A community: two numbers of 16 bits (RFC 1997), or three of 32 bits (RFC 8092)."""


class SpeakerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the speaker of this node is, and with whom it speaks.

    `hold_time` and `restart_time` (of graceful restart; 0: none) are in seconds. `cluster_id` is that of a route
    reflector, as an IPv4 address. Routers get `prepended` in front of the path, and `communities`. `rejected` are
    networks that are never learned. `withdraws` says why the node leaves its addresses to other nodes now; "" if it
    does not. `staying` are then the nodes that do not withdraw: what only a node with a ready endpoint may announce,
    and none of these has one, this node goes on announcing. None: it announces nothing.
    `pod_networks` are those of this node's pods that it announces, and `pod_ranges` what those of all nodes are in.
    """

    asn: int
    router_id: str
    families: tuple[Family, ...]
    port: int = BGP_PORT
    peers: tuple[Peer, ...] = ()
    hold_time: int = 90
    restart_time: int = 120
    is_next_hop_self: bool = False
    cluster_id: str = ""
    prepended: tuple[int, ...] = ()
    communities: tuple[Community, ...] = ()
    rejected: tuple[str, ...] = ()
    withdraws: str = ""
    staying: frozenset[str] | None = None
    pod_networks: tuple[str, ...] = ()
    pod_ranges: tuple[str, ...] = ()
