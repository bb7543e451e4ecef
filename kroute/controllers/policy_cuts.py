"""The part of network_policy that cuts connections which policies do not allow any more (`--policy-cuts-connections`).

The rules let a connection that has begun go on, because conntrack has an entry of it. Without the entry its next packet
begins a connection, and is judged. An entry has what the rules have judged: who has begun the connection, with the
address before any masquerading, and who answers, with the address and port behind any Service.

The answering end may be allowed to begin connections itself, and conntrack takes a TCP packet in the middle of a
connection for the beginning of one. So the firewall is told before to drop what that end goes on sending.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Protocol

import structlog

from kroute.kernel.clients import ConntrackClient
from kroute.kernel.conntrack import Connection, Ends
from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.message import address_family
from kroute.model.addresses import LOOPBACK
from kroute.model.plan import Protocol as PortProtocol
from kroute.model.policy_plan import Answer
from kroute.model.steps import Steps
from kroute.reconcile.batches import in_turns
from kroute.reconcile.pass_status import PassStatus
from kroute.reconcile.resync_schedule import Metered

log = structlog.get_logger(__name__)

PAUSE_AFTER_FAILURE = 30.0
_NEXT_STEP = f"these connections go on; trying again in {PAUSE_AFTER_FAILURE:.0f} s"
MOST_JUDGED = 2_000
"""Ends of connections that one look asks policies about: a fraction of a second, while new policies wait."""
MOST_ANSWERS = 10_000
"""Answers that are dropped; for more, the oldest are not any more."""
_PROTOCOLS: Mapping[int, PortProtocol] = {int(protocol): protocol for protocol in PortProtocol}


class Verdict(Protocol):
    """What policies say of a connection."""

    @property
    def is_refused(self) -> bool: ...


ChangeCut = Callable[[Collection[Answer], Collection[Answer]], Awaitable[None]]
"""Adds answers to those that are dropped, and removes others (`PolicyFirewall.change_cut`)."""
Judging = Callable[[str, str, PortProtocol | None, int], Steps[Verdict]]
"""Judges a connection from an address to an address and port (`PolicyCatalog.judging`)."""


class PolicyCuts:
    """Deletes the entries of connections that are refused. It reads conntrack only when there may be some."""

    def __init__(self, status: PassStatus, conntrack: ConntrackClient, judging: Judging, change_cut: ChangeCut) -> None:
        self._status = status
        self._conntrack = conntrack
        self._judging = judging
        self._change_cut = change_cut
        self.answers: dict[Answer, None] = {}
        """What the firewall has been told to drop, the oldest first."""
        self._suspects: set[str] = set()
        self._allowed: set[Ends] = set()
        """What is known to be allowed since its ends were suspected: a look goes on where the one before has ended."""
        self._may_look = float("-inf")

    def suspect(self, addresses: Iterable[str]) -> None:
        """Note isolated pods of this node that may be allowed less than before, by their addresses."""
        if new := set(addresses):
            self._suspects |= new
            self._allowed -= {ends for ends in self._allowed if not new.isdisjoint((ends.source, ends.destination))}

    def next_due(self) -> float | None:
        """When, on the controller's clock, the next look is due; None without suspects."""
        return self._may_look if self._suspects else None

    async def cut(self, own: Collection[str]) -> None:
        """If a look is due, cut what is refused. What the node has begun, whose addresses are `own`, is not looked at:
        the node reaches its pods.

        The plan that judges must be in the kernel, and not change meanwhile. The first look is due at once, the next
        one after a pause. It raises no KernelError: a failure is logged and tried again.
        """
        due = self.next_due()
        if due is None or self._status.clock() < due:
            return
        pause, look = PAUSE_AFTER_FAILURE, Metered(self._look(own))
        try:
            failures = await look
        except KernelError as error:
            failures = [str(error)]
        else:
            pause = PAUSE_AFTER_FAILURE if failures else look.pause
        if failures:
            self._status.counters.failures += len(failures)
            log.warning("connections.not_cut", error=failures[0], more_errors=len(failures) - 1, next_step=_NEXT_STEP)
        self._may_look = self._status.clock() + pause

    async def _look(self, own: Collection[str]) -> list[str]:
        """Look at the suspects, and go on suspecting those that are not done. Returns what the kernel has refused."""
        failures: list[str] = []
        for family in sorted({address_family(address) for address in self._suspects}):
            addresses = {address for address in self._suspects if address_family(address) == family}
            asked = await self._ends(family, addresses, own)
            refused = {each for each in asked if await self._is_refused(each)}
            found = await self._conntrack.connections(family, addresses, refused.__contains__) if refused else []
            cut = list(dict.fromkeys(found))
            await self._drop_answers(cut)
            kept = await self._conntrack.delete_connections(cut)
            self._status.wrote(len(cut) - len(kept))
            if cut:
                log.info("connections.cut", connections=len(cut) - len(kept))
            failures += map(str, kept)
            if not kept and len(asked) < MOST_JUDGED:
                self._suspects -= addresses
        if not self._suspects:
            self._allowed.clear()
        return failures

    async def _drop_answers(self, cut: Iterable[Connection]) -> None:
        """Let the answers of these connections be dropped, with the address that answers and with the one called."""
        found = dict.fromkeys(
            Answer(*answering, each.ends.source)
            for each in cut
            if each.ends.protocol == PortProtocol.TCP
            for answering in (each.ends[2:], each.called)
        )
        new = list(islice((one for one in found if one not in self.answers), MOST_ANSWERS))
        old = list(islice(self.answers, max(0, len(self.answers) + len(new) - MOST_ANSWERS)))
        if new:
            await self._change_cut(new, old)
            for one in old:
                del self.answers[one]
            self.answers |= dict.fromkeys(new)

    async def _ends(self, family: int, addresses: Collection[str], own: Collection[str]) -> set[Ends]:
        """The ends of the suspects' connections that are not known to be allowed, MOST_JUDGED of them at most."""
        found: set[Ends] = set()

        def is_wanted(ends: Ends) -> bool:
            is_ours = ends.source in own or ends.source.startswith(LOOPBACK)
            if len(found) < MOST_JUDGED and not is_ours and ends not in self._allowed:
                found.add(ends)
            return False

        await self._conntrack.connections(family, addresses, is_wanted)
        return found

    async def _is_refused(self, ends: Ends) -> bool:
        protocol, source, destination, port = ends
        verdict = await in_turns(self._judging(source, destination, _PROTOCOLS.get(protocol), port))
        if not verdict.is_refused:
            self._allowed.add(ends)
        return verdict.is_refused
