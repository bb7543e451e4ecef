"""The VIPs that this director has bound, on an interface that it shares with other addresses.

An address is recorded in the ledger before it is bound to the interface. An address of this machine that the ledger
does not name is foreign: it is never announced and never removed, and is served where it is, if at all.

Each address has a lifetime, which the kernel counts down and the running director renews. So a director that was
killed, or hangs, stops answering for a VIP that the other director has taken over. A director that continues after it
hung for a lifetime binds, renews and announces nothing until it has read the Lease: neighbours send to the director
that announced an address last, and the other director would not announce it again.
"""

import asyncio
import math
from collections.abc import Callable
from errno import EADDRNOTAVAIL, EEXIST, ENODEV
from functools import partial

import structlog

from kroute.base.backoff import exhaustion
from kroute.kernel.clients import AddressClient
from kroute.kernel.errors import KernelError
from kroute.kernel.net.addresses import AddressChange, BindAddress, RenewAddress, UnbindAddress
from kroute.kernel.net.announcements import Announcer
from kroute.model.objects import ObjectKey
from kroute.model.plan import Vip
from kroute.reconcile.batch_writer import BatchWriter, log_changes
from kroute.reconcile.comparison.vips import agrees, describe_drift
from kroute.reconcile.desired_state import DesiredState
from kroute.reconcile.ledger import AddressDeleted, AddressMade, Ledger
from kroute.reconcile.pass_status import PassStatus, names_of

log = structlog.get_logger(__name__)

ANNOUNCE_AFTER = (0.0, 0.5, 2.0)
"""Seconds after which a new address is announced: a frame may get lost, or a switch may begin to forward late."""
ANNOUNCE_AGAIN = 2.0
"""Seconds until what could not be announced for lack of a resource is announced again."""
RENEWALS_A_LIFETIME = 4
UNBOUND = frozenset({EADDRNOTAVAIL, ENODEV})
"""The errors of an unbinding that say that the address was not bound."""


class DirectorAddresses:
    """The VIPs on `interface`. `lifetime` is in seconds."""

    def __init__(
        self,
        status: PassStatus,
        addresses: AddressClient,
        announcer: Announcer,
        ledger: Ledger,
        *,
        interface: str,
        lifetime: int,
    ) -> None:
        self.desired: DesiredState[str, Vip] = DesiredState(agrees)
        self.interface = interface
        self._status = status
        self._addresses = addresses
        self._announcer = announcer
        self._ledger = ledger
        self._lifetime = lifetime
        self._foreign: set[str] = set()
        self._announcements: dict[str, list[float]] = {}
        self._writer: BatchWriter[AddressChange, str] = BatchWriter(
            status,
            key_of=lambda change: change.address,
            tell=lambda changes: log_changes(log, changes, _event_of, self._fields),
            note=self._note,
            owners_of=self.desired.owners,
        )
        self._is_delayed = False
        self._writing = asyncio.Lock()
        self._standstill = _Standstill(status.clock, lifetime)

    def confirm(self, asked_at: float, *, is_answered: bool) -> bool:
        """Note that the Lease was asked for at `asked_at`. Returns whether anything has waited for that.

        Without an answer another director may have the addresses. If none has come for a lifetime, the API server
        is taken to be lost to all (`Election`'s second rule).
        """
        return self._standstill.confirm(asked_at, is_answered=is_answered)

    async def learn(self) -> list[str]:
        """Read the machine's addresses. Returns a sentence for each of kroute's that another program has removed."""
        await self._leave_other_interfaces()
        present = await self._addresses.of_node()
        ours = {entry.address for entry in present if entry.interface == self.interface} & self._recorded()
        self._foreign = {entry.address for entry in present} - ours
        resync = self.desired.resync()
        for address in ours:
            resync.found(address, self.desired.desired(address) or Vip(address, None))
        return [describe_drift(drift.key, drift.applied) for drift in await resync.complete() if drift.applied is None]

    def lost(self, address: str) -> bool:
        """Record that another program has removed the address. Returns whether it was kroute's."""
        known = address in self.desired.applied
        self.desired.note_applied(address, None)
        return known

    async def unbind(self, *, everything: bool) -> None:
        """Unbind the VIPs that no plan names, or all of kroute's with `everything`."""
        due = sorted(self.desired.applied) if everything else self.desired.unwanted()
        if not due:
            return
        async with self._writing:
            unbindings = [UnbindAddress(address) for address in due]
            write = partial(self._addresses.write, self.interface)
            gone = await self._writer.write(unbindings, write, harmless=UNBOUND)
            self._ledger.record(AddressDeleted(self.interface, change.address) for change in gone)

    async def bind(self, is_served: Callable[[ObjectKey], bool]) -> None:
        """Bind the VIPs of the Services whose virtual servers are written, and schedule their announcements."""
        waiting = self._status.waiting()
        due = [
            delta.key
            for delta in await self.desired.all_pending()
            if delta.applied is None
            and delta.key not in self._foreign
            and delta.key not in waiting
            and any(is_served(owner) for owner in self.desired.owners(delta.key))
        ]
        if not due or self._standstill.is_in_question():
            return
        async with self._writing:
            recorded = self._recorded()
            self._ledger.record(AddressMade(self.interface, address) for address in due)
            bindings = [BindAddress(address, keep_kernel_route=True, lifetime=self._lifetime) for address in due]
            failures = await self._addresses.write(self.interface, bindings)
            # A renewal may have bound a removed address again before its removal was noticed.
            refusals = {
                failure.change.address: str(failure)
                for failure in failures
                if failure.errno != EEXIST or failure.change.address not in recorded
            }
            self._foreign |= {failure.change.address for failure in failures if failure.errno == EEXIST} - recorded
            self._writer.conclude(bindings, refusals)
            self._ledger.record(AddressDeleted(self.interface, address) for address in refusals)

    async def announce(self) -> None:
        """Send the announcements that are due. If the link is down, the later ones are still sent.

        What cannot be sent for lack of a resource is sent later: without it, hosts keep the other director's address.
        """
        now = self._status.clock()
        due = [address for address, times in self._announcements.items() if times[0] <= now]
        if not due or self._standstill.is_in_question():
            return
        again: list[float] = []
        try:
            await self._announcer.announce(self.interface, due)
        except Exception as error:
            next_step = exhaustion(error)
            if next_step is None and not isinstance(error, KernelError):
                raise
            again = [now + ANNOUNCE_AGAIN] if next_step is not None else []
            if not (again and self._is_delayed):
                log.warning("vip.unannounced", interface=self.interface, error=str(error), next_step=next_step)
        self._is_delayed = bool(again)
        for address in due:
            times = self._announcements.pop(address, ())
            if left := [*again, *(time for time in times if time > now)]:
                self._announcements[address] = sorted(left)

    def next_due(self) -> float | None:
        """When the next announcement is due, or None."""
        if self._standstill.awaits_lease:
            return None
        return min((times[0] for times in self._announcements.values()), default=None)

    async def keep_alive(self) -> None:
        """Renew the lifetimes of the bound addresses until cancelled."""
        while True:
            await asyncio.sleep(self._lifetime / RENEWALS_A_LIFETIME)
            try:
                await self.renew()
            except KernelError as error:
                log.warning("vip.unrenewed", interface=self.interface, error=str(error), next_step="trying again")

    async def renew(self) -> None:
        """Reset the lifetime of every bound address."""
        async with self._writing:
            if self._standstill.is_in_question():
                return
            self._standstill.renewed_at = self._status.clock()
            renewals = [RenewAddress(address, self._lifetime) for address in self.desired.applied]
            for failure in await self._addresses.write(self.interface, renewals):
                log.warning("vip.unrenewed", interface=self.interface, error=str(failure), next_step="trying again")

    async def _leave_other_interfaces(self) -> None:
        """Remove the addresses that a run with another `--vip-interface` has left."""
        for interface, address in sorted(entry for entry in self._ledger.addresses if entry[0] != self.interface):
            failures = await self._addresses.write(interface, [UnbindAddress(address)])
            if all(failure.errno in UNBOUND for failure in failures):
                self._ledger.record([AddressDeleted(interface, address)])
                log.info("vip.unbound", vip=address, interface=interface, reason="no longer the VIPs' interface")

    def _recorded(self) -> set[str]:
        return {address for interface, address in self._ledger.addresses if interface == self.interface}

    def _note(self, change: AddressChange) -> None:
        address = change.address
        if isinstance(change, BindAddress):
            self.desired.note_applied(address, self.desired.desired(address))
            self._announcements[address] = [self._status.clock() + delay for delay in ANNOUNCE_AFTER]
        else:
            self.desired.note_applied(address, None)
            self._announcements.pop(address, None)

    def _fields(self, change: AddressChange) -> dict[str, object]:
        services = names_of(self.desired.owners(change.address))
        return {"service": " ".join(services), "vip": change.address, "interface": self.interface}


class _Standstill:
    """Whether this process stood still for a `lifetime` (seconds), so that another director may have its addresses."""

    def __init__(self, clock: Callable[[], float], lifetime: int) -> None:
        self._clock = clock
        self._lifetime = lifetime
        self.renewed_at = clock()
        self._until = self._confirmed_at = -math.inf

    @property
    def awaits_lease(self) -> bool:
        """Whether the Lease has not been looked at since this process stood still."""
        return self._confirmed_at < self._until

    def confirm(self, asked_at: float, *, is_answered: bool) -> bool:
        """Note that the Lease was asked for. Returns whether anything has waited for that."""
        waited = self.awaits_lease
        if is_answered or self._clock() - self._until >= self._lifetime:
            self._confirmed_at = asked_at
        return waited and not self.is_in_question()

    def is_in_question(self) -> bool:
        """Whether another director may have the addresses by now."""
        now = self._clock()
        if (still := now - self.renewed_at) >= self._lifetime:
            self.renewed_at = self._until = now
            log.warning("director.stood_still", seconds=round(still, 1), next_step="looking at the Lease first")
        return self.awaits_lease


def _event_of(change: AddressChange) -> str:
    return "vip.bound" if isinstance(change, BindAddress) else "vip.unbound"
