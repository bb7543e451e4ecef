"""Has routers learn the VIPs of this node, by BGP, which BIRD speaks.

This controller plans the speaker itself: `take_changes` keeps what the watchers saw of Nodes. Each pass that finds
something new writes one configuration with all that is to be announced, and has BIRD read it.

- An address is announced when it is live: bound by service_proxy, or delivered by direct_return.
- An address that a plan drops is withdrawn first. When BIRD has read that and `--withdraw-grace` is over, this
  controller says UNANNOUNCED, and service_proxy unbinds the address. It does not wait long for a BIRD that is away.
- Nothing is written before the initial sync is live, so a restart of kroute withdraws nothing.
- BIRD may be away, hung, or refuse: the node is served as ever. It is told again until it has read the newest.
- Each look asks for the sessions, too. So those who only observe the node never wait for BIRD.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence, Set
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from kroute.controllers.announcing.configuration import announced_in, configuration, without_addresses
from kroute.controllers.announcing.passwords import with_passwords
from kroute.controllers.live_addresses import LiveAddresses
from kroute.kernel.bird import BirdError, Session
from kroute.kernel.clients import BirdClient
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Change
from kroute.model.plan import NodePlan, Plan, Problem, ServicePlan
from kroute.model.speaker import BFD_UP, ESTABLISHED, UNKNOWN, Peer, SpeakerPlan
from kroute.reconcile.batch_writer import log_changes
from kroute.reconcile.batches import sliced
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.controller import Controller, Shared
from kroute.reconcile.desired_state import DesiredState
from kroute.reconcile.pass_status import names_of
from kroute.reconcile.stage_gate import EARLIER_RUN, UNANNOUNCED, Revision
from kroute.reconcile.standing_problems import StandingProblems

log = structlog.get_logger(__name__)

Nodes = frozenset[str]
"""As in `ServicePlan.announced`. Of what is announced only that is known."""
ANNOUNCED: Nodes = frozenset()

PATIENCE = 5.0
"""Seconds for which an address waits for BIRD before it is unbound all the same."""
_BIRD = "BIRD"
"""The key under which BIRD is told again."""
_PEER_DOWN, _BFD_DOWN = "PeerDown", "BfdDown"


class Catalog(Protocol):
    """What plans (`kroute.planning.bgp.catalog.SpeakerCatalog`)."""

    is_ready: bool
    has_changed: bool

    def take(self, changes: Iterable[Change]) -> None: ...

    def plan(self, node: NodeFacts) -> tuple[SpeakerPlan, list[Problem]]: ...


class Speaking(NamedTuple):
    """What plans, who speaks, and what is called with a problem of the node, and with one that is over."""

    catalog: Catalog
    bird: BirdClient
    report: Callable[[Problem], None]
    take_back: Callable[[Problem], None]


class _Told(msgspec.Struct):
    """What BIRD is told. `text` is what it has read last, "" if that is not known, and `announced` are its addresses.

    `is_due`: it may have to be told something new.
    """

    plan: SpeakerPlan | None = None
    text: str = ""
    announced: frozenset[str] = frozenset()
    is_due: bool = True

    @property
    def withdraws(self) -> str:
        """Why this node leaves its addresses to others."""
        return self.plan.withdraws if self.plan is not None else ""


class Announcing(Controller):
    """Owns BIRD's configuration. `live` is set when the initial sync is live.

    `desired` has the addresses: its applied ones are those that routers may still send clients for.
    """

    name = "announcing"
    first_period = 1 / 2

    def __init__(self, shared: Shared, speaking: Speaking, addresses: LiveAddresses, live: asyncio.Event) -> None:
        super().__init__(shared)
        self._gate = shared.gate
        self._speaking = speaking
        self._addresses = addresses
        self._live = live
        self.desired: DesiredState[str, Nodes] = DesiredState(agree=lambda _applied, _desired: True)
        self._node: NodeFacts | None = None
        self._told = _Told()
        self._leaving: dict[str, float] = {}
        """When each address that is not announced any more, or should not be, may be unbound at the latest."""
        self.seen: dict[str, Session] | None = None
        """The sessions at the last look, by the peers' addresses; empty if BIRD said nothing; None before the first."""
        self._standing = StandingProblems(speaking.report, speaking.take_back)
        addresses.follow(self.wake)
        addresses.announced = self.desired.applied.keys()
        self._gate.join(self.wake, says={UNANNOUNCED: self._is_unannounced})
        self._gate.submit(EARLIER_RUN, UNANNOUNCED)
        self.subscription.skip = lambda before, plan: self._gate.renew(UNANNOUNCED, before, plan)

    @property
    def plan(self) -> SpeakerPlan | None:
        """The newest plan of the speaker; None before the initial sync is live."""
        return self._told.plan

    @property
    def withdraws(self) -> str:
        """Why this node leaves its addresses to others."""
        return self._told.withdraws

    @property
    def announced(self) -> frozenset[str]:
        """The addresses that BIRD announces, as far as it is known."""
        return self._told.announced

    @property
    def problems(self) -> list[Problem]:
        """What keeps routers from learning what they should."""
        return self._standing.all

    async def sessions(self) -> dict[str, Session]:
        """All BGP sessions, as BIRD has them, by the peers' addresses. Raises BirdError."""
        return {session.neighbor: session for session in await self._speaking.bird.sessions()}

    @staticmethod
    def is_news(plan: Plan, before: Plan | None) -> bool:
        if isinstance(plan, NodePlan) or not isinstance(before, ServicePlan):
            return True
        return plan.announced != before.announced

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        for plan in plans:
            self.desired.want(plan, dict(plan.announced))
            self._gate.submit(plan, UNANNOUNCED)

    def accept_node(self, plan: NodePlan) -> None:
        self._gate.submit(plan, UNANNOUNCED)
        if plan.node != self._node:
            self._node = plan.node
            self._speaking.catalog.has_changed = True

    def take_changes(self, changes: Iterable[Change]) -> None:
        """Take what the watchers saw; only Nodes count."""
        catalog = self._speaking.catalog
        catalog.take(changes)
        if catalog.has_changed:
            self.wake.set()

    def companions(self) -> list[Coroutine[Any, Any, None]]:
        return [*super().companions(), self._wait_for_live()]

    async def look(self) -> bool:
        """Whether BIRD has another configuration than it was told, or a password has changed."""
        if not await self._has_text():
            return True
        return self.settings.peer_passwords is not None and self._text(self._told.announced) != self._told.text

    async def read(self) -> Iterable[str]:
        """At first, find what an earlier run has announced; later, whether BIRD still has what it was told."""
        if not self.has_adopted:
            self._told.announced = frozenset(announced_in(self._speaking.bird.read() or ""))
            await self._note_applied(self._told.announced, ANNOUNCED)
            return ()
        self._told.is_due = True
        if await self._has_text() or not self._told.text:
            return ()
        self._told.text = ""
        return ["BIRD had another configuration than it was told"]

    def next_due(self) -> float | None:
        """When the next address has been withdrawn for long enough."""
        return min(self._leaving.values(), default=None)

    async def write(self) -> None:
        """Tell BIRD what is new, then say which plans have nothing announced that they no longer want."""
        catalog = self._speaking.catalog
        if self._live.is_set() and catalog.is_ready and self._node is not None:
            if catalog.has_changed:
                self._plan(self._node)
            if self.desired.unsettled or self._told.is_due:
                await self._tell()
        now = self.clock()
        gone = [address for address, due in self._leaving.items() if due <= now]
        await self._note_applied(gone, None)
        for address in gone:
            del self._leaving[address]
        await self._gate.advance(UNANNOUNCED)

    def _plan(self, node: NodeFacts) -> None:
        """Plan the speaker, and report what is wrong with annotations."""
        self._speaking.catalog.has_changed = False
        plan, problems = self._speaking.catalog.plan(node)
        if plan.withdraws and plan.withdraws != self._told.withdraws:
            log.warning("node.withdraws", why=plan.withdraws)
        self._told.plan, self._told.is_due = plan, True
        self._standing.report(problems, lambda problem: problem.reason == "InvalidAnnotation")

    async def _tell(self) -> None:
        """Have BIRD read what is to be announced now, unless it has, or has to be left alone for a while."""
        wanted = self._addresses.among(self._wanted())
        latest = self.clock() + PATIENCE + self.settings.withdraw_grace
        for address in self.desired.applied.keys() - wanted:
            self._leaving.setdefault(address, latest)
        if self._told.is_due or wanted != self._told.announced:
            if _BIRD in self.status.waiting():
                return
            text = self._text(wanted)
            if text != self._told.text and not await self._configure(text, wanted):
                return
            self._told.text, self._told.is_due = text, False
        await self._note(wanted, self.clock())

    def _wanted(self) -> Set[str]:
        """The addresses that this node is to announce once they are live."""
        addresses = self.desired.desired_keys()
        if self._told.plan is None or not self._told.plan.withdraws:
            return addresses
        if (staying := self._told.plan.staying) is None:
            return frozenset()
        return {it for it in addresses if (nodes := self.desired.desired(it)) and nodes.isdisjoint(staying)}

    async def _configure(self, text: str, addresses: frozenset[str]) -> bool:
        """Have BIRD read this text, with these addresses; returns whether it has."""
        try:
            await self._speaking.bird.configure(text)
        except BirdError as error:
            self._failed(error)
            self.status.refused({_BIRD: str(error)}, ())
            if not error.is_refusal:
                await self._note_applied(addresses, ANNOUNCED)  # it may start and find the text at any time
            return False
        self.status.wrote(1)
        self.status.retries.succeeded(_BIRD)
        self._standing.report([], lambda problem: problem.subject == _BIRD)
        return True

    async def _note(self, announced: frozenset[str], now: float) -> None:
        """Note what routers learn by now, and when those that they no longer learn may be unbound."""
        before, self._told.announced = self._told.announced, announced
        applied, unsettled = self.desired.applied, self.desired.unsettled
        for address in announced & self._leaving.keys():
            del self._leaving[address]
        await self._note_applied(announced - applied.keys() | announced & unsettled.keys(), ANNOUNCED)
        for address in self._leaving:
            self._leaving[address] = min(self._leaving[address], now + self.settings.withdraw_grace)
        log_changes(log, sorted(before - announced), lambda _: "vip.withdrawn", self._fields)
        log_changes(log, sorted(announced - before), lambda _: "vip.announced", self._fields)

    async def _note_applied(self, addresses: Iterable[str], value: Nodes | None) -> None:
        """Note that routers may send clients for these addresses, or do so no longer."""
        async for batch in sliced(list(addresses)):
            for address in batch:
                self.desired.note_applied(address, value)

    def _text(self, addresses: Collection[str]) -> str:
        """The configuration with these addresses; "" before the speaker is planned."""
        if self._told.plan is None:
            return ""
        plan, passwords, problems = with_passwords(self._told.plan, self.settings.peer_passwords)
        self._standing.report(problems, lambda problem: problem.reason == "NoPeerPassword")
        return configuration(plan, addresses, passwords)

    async def _has_text(self) -> bool:
        """Whether BIRD says that it has what it was told last. Its sessions are noted.

        While BIRD is away it is not asked again, since each question may take long, before it has been told again.
        """
        if not self._told.text and self.seen == {}:
            return False
        try:
            self._note_sessions(await self.sessions())
            return bool(self._told.text) and await self._speaking.bird.has(self._told.text)
        except BirdError as error:
            self.seen = {}
            self._failed(error)
            return False

    def _note_sessions(self, sessions: dict[str, Session]) -> None:
        """Note the sessions, and report those that are not as planned."""
        self.seen = sessions
        peers = self._told.plan.peers if self._told.plan is not None else ()
        found = [it for peer in peers if (it := _complaint(peer, sessions.get(peer.address))) is not None]
        self._standing.report(found, lambda known: known.reason in {_PEER_DOWN, _BFD_DOWN})

    def _failed(self, error: BirdError) -> None:
        """Say that BIRD has not read the newest, once. It is told again later, also if it comes back by itself."""
        self._told.text, self._told.is_due = "", True
        reason = "BirdRefuses" if error.is_refusal else "BirdUnreachable"
        consequence = "routers keep what they have learned for as long as BGP lets them, and learn nothing new"
        problem = Problem(reason, _BIRD, f"{error}. All is served, but {consequence}. See docs/routing.md.")
        self._standing.report([problem], lambda known: known.subject == _BIRD)

    def _is_unannounced(self, plan: Revision) -> bool:
        return self.has_adopted and self.desired.has_departed(plan.key)

    def _fields(self, address: str) -> dict[str, object]:
        return {"service": " ".join(names_of(self.desired.responsible(address))), "vip": address}

    async def _wait_for_live(self) -> None:
        await self._live.wait()
        self._told.is_due = True
        self.wake.set()


def _complaint(peer: Peer, session: Session | None) -> Problem | None:
    """What is wrong with the session with a peer."""
    name = f"{'node' if peer.is_node else 'router'} {peer.address}"
    if session is None or session.state != ESTABLISHED:
        state, error = (session.state, session.last_error) if session is not None else (UNKNOWN, "")
        step = "Check the way to the peer, and its AS number, address and password."
        rest = f"({state}){f': {error}' if error else ''}. {step} See docs/routing.md."
        return Problem.about(_PEER_DOWN, f"no BGP session with {name}", rest)
    if peer.bfd is None or session.bfd == BFD_UP:
        return None
    rest = f"({session.bfd or UNKNOWN}): while it is not up, a dead node is found after --bgp-holdtime alone."
    return Problem.about(_BFD_DOWN, f"no BFD session with {name}", f"{rest} The peer needs BFD, too.")


async def withdraw_all(bird: BirdClient, grace: float, report: CleanupReport) -> None:
    """Withdraw what an earlier run announces, and give routers time to send clients elsewhere.

    The configuration is removed. A BIRD that is away announces nothing, and finds nothing when it starts.
    """
    text = bird.read() or ""
    addresses, nothing = announced_in(text), without_addresses(text)
    with report.step("announcements to routers"):
        if nothing != text:
            try:
                await bird.configure(nothing)
                await asyncio.sleep(grace)
            except BirdError as error:
                if error.is_refusal:
                    raise
            report.add(f"withdraw {len(addresses)} addresses from routers")
        bird.remove()
