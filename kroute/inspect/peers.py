"""What the agent knows of BGP peers and announces, as its socket answers: `kroute show peers`, `kroute show routes`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from kroute.inspect.agent_socket import Answer
from kroute.kernel.errors import KernelError
from kroute.model.document import Document, View, encode
from kroute.model.speaker import UNKNOWN, Peer

if TYPE_CHECKING:
    from kroute.controllers.announcing.controller import Announcing
    from kroute.kernel.bird import Session

QUESTIONS = PEERS, ROUTES = "peers", "routes"
"""The questions. The answer is null if the agent announces no addresses."""
ROUTER, NODE = "router", "node"


class PeerView(View):
    """A BGP session. `state` is BGP's, `since` as BIRD writes it, and routes are of both families.

    `bfd` is the state of the BFD session beside it; empty if none is asked for.
    """

    address: str
    asn: int
    kind: str
    state: str = UNKNOWN
    since: str = ""
    announced: int = 0
    learned: int = 0
    last_error: str = ""
    bfd: str = ""


class PeerList(Document):
    """The BGP sessions. `withdraws` says why the node leaves its addresses to others, `trouble` why BIRD is silent."""

    kind: ClassVar[str] = "PeerList"

    items: list[PeerView]
    withdraws: str = ""
    trouble: str = ""

    def names(self) -> Iterator[str]:
        return (peer.address for peer in self.items)


class AnnouncementView(View):
    """An address that Services want announced. `is_announced`: BIRD has it."""

    address: str
    services: list[str]
    is_announced: bool


class RouteList(Document):
    """The addresses that are to be announced from the node. `withdraws` says why it leaves them to others."""

    kind: ClassVar[str] = "RouteList"

    items: list[AnnouncementView]
    withdraws: str = ""

    def names(self) -> Iterator[str]:
        return (route.address for route in self.items)


async def peers_of(announcing: "Announcing") -> PeerList:
    """The planned sessions, with what BIRD says of each."""
    plan = announcing.plan
    if plan is None:
        return PeerList([], trouble="the initial sync is not served yet")
    try:
        sessions, trouble = await announcing.sessions(), ""
    except KernelError as error:
        sessions, trouble = {}, str(error)
    return PeerList(_views(plan.peers, sessions), plan.withdraws, trouble)


def peers_seen(announcing: "Announcing") -> list[PeerView]:
    """The planned sessions, with what BIRD said of each at the last look; none before the first."""
    plan, seen = announcing.plan, announcing.seen
    return _views(plan.peers, seen) if plan is not None and seen is not None else []


def _views(peers: Iterable[Peer], sessions: "Mapping[str, Session]") -> list[PeerView]:
    items = []
    for peer in peers:
        view = PeerView(peer.address, peer.asn, NODE if peer.is_node else ROUTER)
        if (session := sessions.get(peer.address)) is not None:
            view.state, view.since, view.last_error = session.state, session.since, session.last_error
            view.announced, view.learned = session.announced, session.learned
        if peer.bfd is not None:
            view.bfd = (session.bfd if session is not None else "") or UNKNOWN
        items.append(view)
    return items


def routes_of(announcing: "Announcing") -> RouteList:
    """The addresses, in order."""
    desired, announced = announcing.desired, announcing.announced
    items = [
        AnnouncementView(address, sorted(map(str, desired.owners(address))), address in announced)
        for address in sorted(desired.desired_keys() | announced)
    ]
    return RouteList(items, announcing.withdraws)


def learned(announcing: "Announcing | None", addresses: Iterable[str]) -> dict[str, str]:
    """What routers learn of these addresses; nothing if the agent announces none."""
    return {address: _learned(announcing, address) for address in addresses} if announcing is not None else {}


def _learned(announcing: "Announcing", address: str) -> str:
    if address in announcing.announced:
        return "learn it from this node"
    if announcing.desired.desired(address) is None:
        return "do not learn it from this node: it is not announced, or no ready endpoint is here"
    if announcing.withdraws:
        return f"do not learn it from this node: {announcing.withdraws}"
    return "do not learn it yet: it is not live here, or BIRD has not been told (kroute show peers)"


def answers_about(announcing: "Announcing | None") -> Mapping[str, Answer]:
    """The agent's answers by question."""

    async def nothing(_about: str) -> bytes:
        return b"null"

    if announcing is None:
        return dict.fromkeys(QUESTIONS, nothing)

    async def peers(_about: str) -> bytes:
        return encode(await peers_of(announcing))

    async def routes(_about: str) -> bytes:
        return encode(routes_of(announcing))

    return {PEERS: peers, ROUTES: routes}
