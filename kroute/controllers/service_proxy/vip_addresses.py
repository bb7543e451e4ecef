"""The part of service_proxy that owns the VIPs on the dummy interface.

An address is bound last, when a Service that wants it is ready (the caller says which are), and unbound first. An
address that another program has unbound is bound again in the same order as a new one.
"""

from collections.abc import Callable, Sequence
from errno import EADDRNOTAVAIL, EEXIST, ENODEV

import structlog

from kroute.controllers.dummy_interface import DummyInterface
from kroute.controllers.live_addresses import LiveAddresses
from kroute.kernel.clients import AddressClient
from kroute.kernel.digest import LastLook
from kroute.kernel.errors import Failure
from kroute.kernel.net.addresses import AddressChange, BindAddress, UnbindAddress
from kroute.model.objects import ObjectKey
from kroute.model.plan import Vip
from kroute.reconcile.batch_writer import BatchWriter, log_changes
from kroute.reconcile.batches import sliced
from kroute.reconcile.comparison.vips import agrees
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.pass_status import PassStatus, names_of
from kroute.reconcile.resync_schedule import DigestPace
from kroute.reconcile.stage_gate import Revision

MayBind = Callable[[ObjectKey, str], bool]
MayUnbind = Callable[[Revision], bool]
"""Whether what this plan has dropped may be unbound."""
HasRoute = Callable[[ObjectKey], bool]

log = structlog.get_logger(__name__)


class VipAddresses:
    """Reconciles the addresses on the dummy interface."""

    def __init__(
        self,
        status: PassStatus,
        addresses: AddressClient,
        interface: DummyInterface,
        pace: DigestPace,
        live: LiveAddresses,
    ) -> None:
        self.desired: DesiredState[str, Vip] = DesiredState(agrees)
        self._status = status
        self._addresses = addresses
        self._interface = interface
        self._live = live
        live.include(self.desired.applied.keys())
        self._last = LastLook()
        self._pace = pace
        self._writer: BatchWriter[AddressChange, str] = BatchWriter(
            status,
            key_of=lambda change: change.address,
            tell=lambda changes: log_changes(log, changes, _event_of, self._fields),
            note=lambda change: self.desired.note_applied(change.address, self.desired.desired(change.address)),
            owners_of=self.desired.responsible,
        )

    async def look(self) -> bool:
        """Whether another program may have changed the addresses, and no event has said so."""
        if not self._pace.is_due() or self._interface.index is None:
            return False
        digest = await self._pace.take(self._addresses.digest(self._interface.name))
        return not self._last.is_same(digest, (len(self.desired.applied),))

    async def learn(self) -> list[Delta[str, Vip]]:
        """Scan the bound addresses into the applied state; returns the drift."""
        resync = self.desired.resync()
        self._last.read(await self._pace.take(self._addresses.digest(self._interface.name)))
        async for addresses in sliced(await self._bound()):
            for address in addresses:
                desired, known = self.desired.desired(address), self.desired.applied.get(address)
                is_known = desired is not None or known is not None
                if self._interface.is_ours or is_known:
                    resync.found(address, desired or known or Vip(address, None))
        return await resync.complete()

    async def _bound(self) -> set[str]:
        """The bound addresses.

        The kernel lists the addresses of a link by their position, and does not report that they have changed
        meanwhile: when the first ones are deleted, as many others are missing in the list. So while an applied address
        is missing, the list is read again, until it has nothing new. A monitor reports what is deleted between two
        lists.
        """
        found = await self._addresses.read(self._interface.name)
        while self.desired.applied.keys() - found:
            again = await self._addresses.read(self._interface.name)
            if again <= found:
                break
            found |= again
        return found

    def lost_all(self) -> None:
        """Note that the link was deleted, and all its addresses with it."""
        self._last.wrote()
        for address in list(self.desired.applied):
            self.desired.note_applied(address, None)

    async def missing(self) -> list[str]:
        """The addresses that are desired and not bound."""
        return [delta.key for delta in await self.desired.all_pending() if delta.applied is None]

    async def unbind(self, may_unbind: MayUnbind) -> list[str]:
        """Unbind the addresses that no plan wants, where nothing leads to them; returns those that were unbound."""
        if not (unwanted := self.desired.unwanted()):
            return []
        gone: list[AddressChange] = []
        waiting = self._status.waiting()
        dropped_by = self.desired.dropped_by
        due = [address for address in unwanted if address not in waiting and may_unbind(dropped_by(address))]
        async for batch in sliced(due):
            changes = [UnbindAddress(address) for address in batch]
            gone += await self._writer.write(changes, self._send, harmless={EADDRNOTAVAIL, ENODEV})
        return [change.address for change in gone]

    async def bind(self, may_bind: MayBind, has_route: HasRoute) -> list[str]:
        """Bind the missing addresses that may be bound for a Service that wants them; returns those that were bound.

        Where an owner's source route exists, the kernel's own route is deleted in the same write.
        """

        def is_free(address: str) -> bool:
            for owner in self.desired.owners(address):  # noqa: SIM110  asked of every address: a generator costs more
                if may_bind(owner, address):
                    return True
            return False

        if not any(map(is_free, self.desired.unsettled)):
            return []
        bound: list[AddressChange] = []
        waiting = self._status.waiting()
        async for batch in sliced(await self.missing()):
            free = [address for address in batch if address not in waiting and is_free(address)]
            changes = [self._binding(address, has_route) for address in free]
            if changes:
                bound += await self._writer.write(changes, self._send, harmless={EEXIST})
        if bound:
            self._live.changed()
        return [change.address for change in bound]

    def _binding(self, address: str, has_route: HasRoute) -> BindAddress:
        vip = self.desired.desired(address)
        routed = vip is not None and vip.source is not None and any(map(has_route, self.desired.owners(address)))
        return BindAddress(address, keep_kernel_route=not routed)

    async def _send(self, changes: Sequence[AddressChange]) -> list[Failure[AddressChange]]:
        failures = await self._addresses.write(self._interface.name, changes)
        self._last.wrote()
        return failures

    def _fields(self, change: AddressChange) -> dict[str, object]:
        services = names_of(self.desired.responsible(change.address))
        return {"service": " ".join(services), "vip": change.address}


def _event_of(change: AddressChange) -> str:
    return "vip.bound" if isinstance(change, BindAddress) else "vip.unbound"
